"""Error bands: an interval of measured over predicted values of cases that have something in common.

The shipped bands hold 90 % of the cases of models that no fit has seen; `rackline.validation.coverage` makes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, TypedDict, cast

from rackline.arch import AnyModel, Model
from rackline.catalog.index import stack_name
from rackline.errors import unknown_name
from rackline.files import rounded, shipped_toml, toml_text
from rackline.late import late
from rackline.parallel import Deployment, Layout
from rackline.system import Risk, System
from rackline.units import format_seconds

with late:
    from rackline.display import wording

COVERAGE = 0.9
"""Share of measured values that a band holds."""
SHARES = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
"""Shares of the measured values that the quantiles of a band are above."""
LIMITED = ("tpot_s", "ttft_s", "pools_tpot_s", "pools_ttft_s")
"""Metrics of latencies that a plan may limit."""
ANY = "*"
_DIGITS = 4
_SHIPPED = ("bands.toml", "further_bands.toml")


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Evidence:
    """What a prediction is about, and so which measurements tell how far it may be off; ANY stands for all.

    Args:
        stack: name of the catalogue.
        kind: of the model, "dense" or "mixture".
        chip: name of the catalogue.
        layout: "one" chip, "tp" (or pp), "attention_dp" (attention ranks with sequences of their own), "pools".
    """

    stack: str = ANY
    kind: str = ANY
    chip: str = ANY
    layout: str = ANY

    def wider(self) -> tuple[Evidence, ...]:
        """This and all wider groups around it, the narrowest first."""
        by_chip = replace(self, layout=ANY)
        by_kind = replace(by_chip, chip=ANY)
        return self, by_chip, by_kind, replace(by_kind, kind=ANY), Evidence()

    def text(self) -> str:
        """ "vllm mixture h100-sxm tp", or "all stacks"."""
        return " ".join(part for part in (self.stack, self.kind, self.chip, self.layout) if part != ANY) or "all stacks"


Key = tuple[str, Evidence]


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """An interval of measured / predicted.

    Args:
        metric: of these cases.
        of: what they have in common.
        low, high: predicted · low to predicted · high holds COVERAGE of the measured values.
        num_cases: cases behind it [count].
        num_models: models among them [count].
        quantiles: measured / predicted below which SHARES of the measured values lay, rising, of latencies that a plan
            may limit; else empty.
    """

    metric: str
    of: Evidence
    low: float
    high: float
    num_cases: int
    num_models: int
    quantiles: tuple[float, ...] = ()


def evidence_of(system: System | Deployment, layout: str) -> Evidence:
    """What a prediction of a system is about, under a kind of layout."""
    return Evidence(
        stack=stack_name(system.calibration.name),
        kind=kind_of_model(system.model),
        chip=system.cluster.chip.name,
        layout=layout,
    )


def kind_of_model(model: AnyModel) -> str:
    """ "mixture" of experts or "dense"."""
    return "mixture" if isinstance(model, Model) and model.is_moe else "dense"


def find_band(bands: Mapping[Key, Band], metric: str, of: Evidence) -> Band:
    """The band of the narrowest group that there is.

    Raises:
        InputError: no band for the metric.
    """
    for wide in of.wider():
        if (metric, wide) in bands:
            return bands[metric, wide]
    raise unknown_name("metric of an error band", metric, sorted({key[0] for key in bands}))


def band(metric: str, of: Evidence | None = None) -> tuple[float, float]:
    """(low, high): 90 % of measured values lay between low and high times the prediction.

    Args:
        metric: as in `measured` of a case, such as tpot_s, ttft_s, request_s or output_tokens_per_s.
        of: what is predicted; everything by default.

    Raises:
        InputError: no band for the metric.
    """
    found = find_band(shipped_bands(), metric, of or Evidence())
    return found.low, found.high


def to_toml(bands: Mapping[Key, Band], files: Iterable[str]) -> str:
    """The file that `read_bands` reads."""
    names = ", ".join(sorted(Path(name).name for name in files))
    comments = (
        f"Written by `rackline validate --write-bands` from {names}.",
        f"measured / predicted lies between low and high in {COVERAGE:.0%} of the cases of a group, of models that no",
        f"fit has seen; quantiles are at the shares {', '.join(f'{share:g}' for share in SHARES)}.",
    )
    rows = [
        {
            "metric": one.metric,
            **{part.name: getattr(one.of, part.name) for part in fields(Evidence)},
            "low": float(one.low),
            "high": float(one.high),
            "cases": one.num_cases,
            "models": one.num_models,
            **({"quantiles": list(one.quantiles)} if one.quantiles else {}),
        }
        for one in bands.values()
    ]
    return toml_text({"band": rounded(rows, _DIGITS)}, comments)


def read_bands(file: Mapping[str, Any]) -> dict[Key, Band]:
    """Bands of what was read from a file that `to_toml` wrote."""
    found = [
        Band(
            metric=row["metric"],
            of=Evidence(**{part.name: row[part.name] for part in fields(Evidence)}),
            low=float(row["low"]),
            high=float(row["high"]),
            num_cases=int(row["cases"]),
            num_models=int(row["models"]),
            quantiles=tuple(float(value) for value in row.get("quantiles", ())),
        )
        for row in cast("list[dict[str, Any]]", file["band"])
    ]
    return {(one.metric, one.of): one for one in found}


@cache
def shipped_bands() -> dict[Key, Band]:
    """The bands that come with the library."""
    return {key: one for name in _SHIPPED for key, one in read_bands(shipped_toml("rackline.bands", name)).items()}


JOULES = "joules_per_output_token"
FOLLOWS: Mapping[str, tuple[str, int]] = {
    "tokens_per_s_per_user": ("tpot_s", -1),
    "output_tokens_per_s_per_chip": ("tpot_s", -1),
    "usd_per_mtok_input": ("tpot_s", 1),
    "usd_per_mtok_output": ("tpot_s", 1),
    "usd_per_mtok_output_all_in": ("tpot_s", 1),
    "decode_pass_s": ("token_s", 1),
    "prefill_pass_s": ("prefill_s", 1),
}
"""Values that no case measures → the measured one that they depend on, and whether they rise (1) or fall (-1) with it.
Rates and costs of a fixed batch depend on the time per token; a single pass on that of a static batch."""


class Ends(TypedDict):
    """Both ends of an interval."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A predicted value with its band.

    Args:
        metric: the predicted quantity.
        predicted: the predicted value, in SI units.
        low, high: 90 % of the measured values of the group lay between them.
        group: description of the cases that the band comes from.
        num_cases: number of these cases [cases].
    """

    metric: str
    predicted: float
    low: float
    high: float
    group: str
    num_cases: int

    @property
    def ends(self) -> Ends:
        """Both ends."""
        return {"low": self.low, "high": self.high}


def intervals(predicted: Mapping[str, float], of: Evidence) -> list[Interval]:
    """Intervals of numbers that cases measure (tpot_s, ttft_s, request_s) or that follow one; others are left out.

    Args:
        predicted: metric → number.
        of: what is predicted; with pools, the bands of pools.
    """
    bands = shipped_bands()
    known = {metric for metric, _ in bands}
    found: list[Interval] = []
    for metric, value in predicted.items():
        if not math.isfinite(value):
            continue
        followed, sign = FOLLOWS.get(metric, (metric, 1))
        of_pools = f"pools_{followed}"
        followed = of_pools if of.layout == "pools" and of_pools in known else followed
        if followed in known:
            band = find_band(bands, followed, of)
            low, high = (value * ratio for ratio in sorted((band.low**sign, band.high**sign)))
            group, cases = band.of.text(), band.num_cases
            found.append(Interval(metric=metric, predicted=value, low=low, high=high, group=group, num_cases=cases))
    return found


# most chips over which a server spread its experts, of those that were measured on a chip
# (tests/validation/test_engine_against_pools.py holds it to the cases)
WIDEST_EXPERTS = {"h100-sxm": 16, "h200-sxm": 8, "b200-sxm": 8, "gb200": 32, "gb300": 32}


def width_line(layout: Layout, chip: str) -> str:
    """A warning that experts are spread over more chips than in any measured server; empty where they are not.

    What published decode rates of wider groups are of predicted ones: docs/accuracy.md, published figures of servers.
    """
    widest = WIDEST_EXPERTS.get(chip, 0)
    if not widest or layout.ep <= widest:
        return ""
    return (
        f"wider than what was measured: {layout.ep} chips share the experts, in servers measured on {chip} at most "
        f"{widest}; published decode rates of 48 to 144 chips are 0.76 to 1.2 times those predicted"
    )


def of_deployment(deployment: Deployment, predicted: Mapping[str, float], *, pools: bool = False) -> list[Interval]:
    """Intervals of numbers of a deployment; none for the ideal roofline, and none on a machine with its own numbers."""
    if not has_servers(deployment):
        return []
    return intervals(predicted, evidence_of(deployment, "pools" if pools else deployment.layout.kind))


def of_training(model: AnyModel, chip: str, stack: str, step_s: float, *, tuning: bool = False) -> list[Interval]:
    """The interval of a training step [s].

    Args:
        tuning: whether it is one of fine-tuning, with adapters or packed samples.
        model: that is trained.
        chip: that trains it.
        stack: name of the training stack.
    """
    metric = "tuning_step_s" if tuning else "step_s"
    return intervals({metric: step_s}, Evidence(stack=stack_name(stack), kind=kind_of_model(model), chip=chip))


def joules_of(deployment: Deployment, joules_per_output_token: float) -> Interval | None:
    """The interval of the energy of an output token; None where nothing like it was measured.

    Args:
        joules_per_output_token: predicted, with machines, to which the shares of chips alone are applied [J].
    """
    found = of_deployment(deployment, {JOULES: joules_per_output_token})
    return found[0] if found else None


def joules_line(found: Iterable[Interval | None]) -> str:
    """What measured servings deviate by from their energy per output token, in one sentence; empty without a band."""
    one = next((one for one in found if one is not None and one.metric == JOULES), None)
    if one is None:
        return ""
    return (
        f"90 % of measured servings ({one.num_cases} cases, chips alone) lay within: "
        f"{wording.written(one.low)} to {wording.written(one.high)} J an output token"
    )


NAMES: Mapping[str, str] = {
    "tpot_s": "time per output token",
    "ttft_s": "time to first token",
    "request_s": "request",
    "step_s": "step",
    "tuning_step_s": "step of fine-tuning",
    "output_tokens_per_s_per_chip": "output tokens/s/chip",
    "usd_per_mtok_input": "cost per M input",
    "usd_per_mtok_output": "cost per M output",
    "usd_per_mtok_output_all_in": "cost per M output, all-in",
}
"""Metric → its name in a line of intervals."""


def interval_line(found: Sequence[Interval], what: str = "servers") -> str:
    """What measured servers (or runs) of this kind deviate by, in one sentence; empty without intervals."""
    parts = [
        f"{NAMES[one.metric]} {wording.interval_text(one.metric, one.low, one.high)}"
        for one in found
        if one.metric in NAMES
    ]
    if not parts:
        return ""
    first = found[0]
    head = f"90 % of measured {what} ({first.group}, {first.num_cases} cases) lay within"
    return f"{head}: {'; '.join(parts)}"


def has_servers(system: System | Deployment) -> bool:
    """Whether measured servers say how far predictions for a system are off: not of the ideal roofline, nor of a
    machine with numbers of its own.
    """
    return not (system.calibration.name == "unit" or system.calibration.serving)


def chance_line(risk: Risk) -> str:
    """Which share of the servers of this kind keeps each limit, in one sentence; empty without limits."""
    parts = [
        f"{wording.percent(one.chance)} keep {one.metric.removesuffix('_s')} ≤ {format_seconds(one.limit_s)}"
        for one in risk.limits
    ]
    return f"of such servers {', '.join(parts)}" if parts else ""


def ends_of(found: Iterable[Interval]) -> dict[str, Ends]:
    """Metric → both ends."""
    return {one.metric: one.ends for one in found}

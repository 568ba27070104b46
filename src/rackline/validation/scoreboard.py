"""Errors of many predictions by measured key and by group; both predictions where speculation is unknown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar, Literal, TypedDict, get_args

import numpy as np

from rackline.arch import model
from rackline.bands.bands import ANY, kind_of_model
from rackline.errors import UnknownNameError
from rackline.fitting.solver import grouped
from rackline.serving.workload import PLAIN, Speculation, usual_speculation
from rackline.validation.cases import UNKNOWN_SPECULATION, Case, Predicted, Unsupported, laboratory_of
from rackline.validation.resolve import inline_of, model_of

GROUPED_BY = ("kind", "model", "chip", "stack", "version", "precision", "op")
WITHIN = 0.2
Place = Literal["between", "faster", "slower"]
SERVED = ("serve", "serve-disaggregated")
"""Kinds of cases that measure the time to first token and the time per output token of requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A prediction beside its measured value.

    Args:
        where: file and line of its case.
        metric: key of `measured`, or request_s.
        groups: value of each of GROUPED_BY, and of "layout", "laboratory" and "blocks".
    """

    case_id: str
    where: str
    metric: str
    measured: float
    predicted: float
    groups: Mapping[str, str]

    @property
    def error(self) -> float:
        """predicted / measured - 1."""
        return self.predicted / self.measured - 1.0

    @property
    def log_ratio(self) -> float:
        """|ln(predicted / measured)|, the same for half and for twice."""
        return abs(math.log(self.predicted / self.measured)) if self.predicted > 0 else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Errors of a group of cases; NaN if nothing was predicted.

    Args:
        n: cases with the measurement [count].
        supported: those of them with a prediction [count].
        median_abs_error, p90_abs_error: median and 90th percentile of |predicted / measured - 1| [1].
        share_within_20: share of the predictions within 20 % [1].
        bias: median(predicted / measured) - 1 [1].
    """

    n: int
    supported: int
    median_abs_error: float
    p90_abs_error: float
    share_within_20: float
    bias: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Errors of one metric in one group, such as all cases of a chip."""

    json_keys: ClassVar = (
        "by",
        "group",
        "metric",
        "*stats",
    )

    by: str
    group: str
    metric: str
    stats: Stats


class WorstPass(TypedDict):
    """A pass behind a prediction; times in seconds."""

    seconds: float
    binds: str
    calibration: str
    by_group_s: dict[str, float]
    by_resource_s: dict[str, float]


class WorstCase(TypedDict):
    """Measured and predicted values of a case, and where the time goes in its passes."""

    id: str
    where: str
    metric: str
    measured: float
    predicted: float
    error: float
    kind: str
    model: str
    chip: str
    stack: str
    precision: str
    op: str
    passes: dict[str, WorstPass]


@dataclass(frozen=True, slots=True, kw_only=True)
class BothWays:
    """A time per output token that may or may not come from speculative decoding.

    Args:
        case_id, model, chip, stack: those of the case.
        measured, plain, speculating: measured time, and predictions with one token per step and with drafts [s].
    """

    json_keys: ClassVar = (
        "id=case_id",
        "model",
        "chip",
        "stack",
        "measured_tpot_s=measured",
        "plain_tpot_s=plain",
        "speculating_tpot_s=speculating",
        "place",
    )

    case_id: str
    model: str
    chip: str
    stack: str
    measured: float
    plain: float
    speculating: float

    @property
    def place(self) -> Place:
        """Whether the measured time lies between both predictions, or is faster or slower than both."""
        if self.measured < min(self.plain, self.speculating):
            return "faster"
        return "slower" if self.measured > max(self.plain, self.speculating) else "between"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where the measured values of a group of cases lie.

    Args:
        name: name of the group.
        cases: number of cases [cases].
        shares: of the cases between both predictions, faster and slower than both [1].
        errors: median |predicted / measured - 1| with one token per step, and with drafts [1].
    """

    json_keys: ClassVar = (
        "group=name",
        "n=cases",
        "share_between=shares.0",
        "share_faster_than_both=shares.1",
        "share_slower_than_both=shares.2",
        "plain_median_abs_error=errors.0",
        "speculating_median_abs_error=errors.1",
    )

    name: str
    cases: int
    shares: tuple[float, float, float]
    errors: tuple[float, float]


def both_ways(
    cases: Iterable[Case], predict: Callable[[Sequence[Case], Speculation], Sequence[Predicted]]
) -> tuple[BothWays, ...]:
    """Predict the served cases with unknown speculation both ways; those without a prediction are left out.

    Args:
        predict: (cases, speculation) → values of each by metric, or the error that explains why there are none.
    """
    found: list[BothWays] = []
    open_ones = [
        case
        for case in cases
        if case.kind == "serve" and case.text("speculative", "") == UNKNOWN_SPECULATION and "tpot_s" in case.measured
    ]
    plainly, drafting = (predict(open_ones, how) for how in (PLAIN, usual_speculation()))
    for case, plain, speculating in zip(open_ones, plainly, drafting, strict=True):
        if not isinstance(plain, dict) or not isinstance(speculating, dict):
            continue
        found.append(
            BothWays(
                case_id=case.case_id,
                model=case.model or "-",
                chip=case.chip,
                stack=case.stack or "-",
                measured=case.measured["tpot_s"],
                plain=plain["tpot_s"],
                speculating=speculating["tpot_s"],
            )
        )
    return tuple(found)


def placed(name: str, rows: Sequence[BothWays]) -> Placed:
    """Where the measured values of these rows lie."""
    places = [row.place for row in rows]
    between, faster, slower = (places.count(place) / len(rows) for place in get_args(Place))
    return Placed(
        name=name,
        cases=len(rows),
        shares=(between, faster, slower),
        errors=(
            float(np.median([abs(row.plain / row.measured - 1.0) for row in rows])),
            float(np.median([abs(row.speculating / row.measured - 1.0) for row in rows])),
        ),
    )


def by_group(rows: Sequence[BothWays]) -> tuple[Placed, ...]:
    """All rows, then those of each model, stack and chip."""
    groups = grouped(rows, lambda row: f"{row.model.rsplit('/', 1)[-1]}, {row.stack}, {row.chip}")
    return (placed("all", rows), *(placed(name, found) for name, found in groups.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoreboard:
    """Result of `rackline validate`.

    Args:
        calibration: name of the calibration; "auto" takes each case's own stack.
        scores: one per predicted value.
        unsupported: cases without prediction.
        unknown_keys: ignored keys → number of cases that have them.
        worst: the worst cases with a breakdown of their passes, as plain data.
        both_ways: cases that may use speculative decoding, predicted without and with drafts.
    """

    json_keys: ClassVar = (
        "calibration",
        "cases=num_cases",
        "supported=num_supported",
        "metrics",
        "groups",
        "unsupported",
        "unknown_keys",
        "worst",
        "unknown_speculation.groups=placed",
        "unknown_speculation.cases=both_ways",
    )

    calibration: str
    num_cases: int
    scores: tuple[Score, ...]
    unsupported: tuple[Unsupported, ...]
    unknown_keys: Mapping[str, int] = field(default_factory=dict[str, int])
    worst: tuple[WorstCase, ...] = ()
    both_ways: tuple[BothWays, ...] = ()

    @property
    def bad_input(self) -> tuple[Unsupported, ...]:
        """Cases that are invalid themselves."""
        return tuple(case for case in self.unsupported if case.bad_input)

    @property
    def metrics(self) -> dict[str, Stats]:
        """Errors by measured key, over all files."""
        names = dict.fromkeys([score.metric for score in self.scores])
        names |= dict.fromkeys(metric for case in self.unsupported for metric in _metrics_of(case))
        return {
            name: statistics(
                [score for score in self.scores if score.metric == name],
                sum(name in _metrics_of(case) for case in self.unsupported),
            )
            for name in names
        }

    @property
    def groups(self) -> tuple[Group, ...]:
        """Errors by group, in the order of GROUPED_BY, the largest group first."""
        found: list[Group] = []
        for by in GROUPED_BY:
            scores = grouped(self.scores, lambda score, by=by: (score.metric, score.groups[by]))
            missing: Counter[tuple[str, str]] = Counter()
            for case in self.unsupported:
                missing.update((metric, group_of(case)[by]) for metric in _metrics_of(case))
            here = [
                Group(by=by, group=key[1], metric=key[0], stats=statistics(scores.get(key, []), missing[key]))
                for key in dict.fromkeys([*scores, *missing])
                if key[1]
            ]
            found += sorted(here, key=lambda group: (group.metric, -group.stats.n, group.group))
        return tuple(found)

    def reasons(self) -> dict[tuple[str, str], list[Unsupported]]:
        """Unsupported cases by (kind, cause), the most frequent first."""
        found = grouped(self.unsupported, lambda case: (case.kind, case.cause))
        return dict(sorted(found.items(), key=lambda item: -len(item[1])))

    @property
    def num_supported(self) -> int:
        """Cases that were predicted."""
        return self.num_cases - len(self.unsupported)

    @property
    def placed(self) -> tuple[Placed, ...]:
        """Where the measured values of cases with unknown speculation lie, by group."""
        return tuple(by_group(self.both_ways)) if self.both_ways else ()


def _metrics_of(case: Unsupported) -> tuple[str, ...]:
    """Keys of an unsupported case that are not scored, the derived one included."""
    derived = ("request_s",) if case.kind in SERVED and {"tpot_s", "ttft_s"} <= set(case.metrics) else ()
    return tuple(metric_of(case.kind, key) for key in (*case.metrics, *derived))


def metric_of(kind: str, key: str) -> str:
    """Metric that a measured key is scored as: pools of prefill and decode workers have their own metrics and bands.

    The output rate at a fixed concurrency is a different metric from that at unlimited request rate.

    >>> metric_of("serve", "tpot_s"), metric_of("serve-disaggregated", "tpot_s")
    ('tpot_s', 'pools_tpot_s')
    >>> metric_of("serve", "output_tokens_per_s"), metric_of("max-throughput", "output_tokens_per_s")
    ('served_tokens_per_s', 'output_tokens_per_s')
    """
    if (kind, key) == ("serve", "output_tokens_per_s"):
        return "served_tokens_per_s"
    return f"pools_{key}" if kind == "serve-disaggregated" else key


def group_of(case: Case | Unsupported) -> dict[str, str]:
    """The groups that a case belongs to; an empty name if its kind has none."""
    if isinstance(case, Case) and case.kind == "op":
        dtypes = "/".join(dict.fromkeys(case.text(name) for name in ("dtype", "kv_dtype") if case.text(name)))
        return {
            "kind": "op",
            "model": "",
            "chip": case.chip,
            "stack": case.stack or "-",
            "version": _version_of(case),
            "precision": dtypes,
            "op": case.text("op"),
            "layout": "",
            "laboratory": "",
            "blocks": "",
        }
    return {
        "kind": case.kind,
        "model": case.model or "-",
        "chip": case.chip or "-",
        "stack": case.stack or "-",
        "version": _version_of(case) if isinstance(case, Case) else "-",
        "precision": case.precision or "-",
        "op": "",
        "layout": _layout_of(case) if isinstance(case, Case) else "",
        "laboratory": laboratory_of(case) if isinstance(case, Case) else "",
        "blocks": blocks_of(case) if isinstance(case, Case) else "",
    }


def blocks_of(case: Case) -> str:
    """ "mixture" or "dense" by the model of a case; any where it names none, or one that nobody knows."""
    if not case.model and inline_of(case) is None:
        return ANY
    try:
        return kind_of_model(model_of(case)) if inline_of(case) is not None else _blocks_of_name(case.model)
    except UnknownNameError:
        return ANY


@cache
def _blocks_of_name(name: str) -> str:
    return kind_of_model(model(name, offline=True))


def _layout_of(case: Case) -> str:
    """Class of the layout: one chip, tp, attention_dp (ranks with sequences of their own), pools; any in training."""
    if case.kind == "train":
        return "*"
    if case.kind == "serve-disaggregated":
        return "pools"
    parts = {key: int(value) for key, value in case.layout.items() if not isinstance(value, str)}
    tp = parts.get("tp", 1)
    if parts.get("attention_dp", parts.get("moe_tp", 1) * parts.get("ep", 1) // tp) > 1:
        return "attention_dp"
    return "tp" if tp * parts.get("pp", 1) * parts.get("cp", 1) > 1 else "one"


def _version_of(case: Case) -> str:
    """Stack and version as text, such as "vllm 0.11.1", without additions of the source to the number."""
    number = case.stack_version.split(maxsplit=1)[0].removesuffix(",") if case.stack_version.strip() else "unknown"
    return f"{case.stack} {number}" if case.stack else "-"


def by_metric(scores: Iterable[Score]) -> dict[str, Stats]:
    """Errors of each metric that was scored."""
    return {metric: statistics(own) for metric, own in grouped(scores, lambda score: score.metric).items()}


def statistics(scores: Sequence[Score] | Iterable[Score], unsupported: int = 0) -> Stats:
    """Errors of a group.

    Args:
        scores: scores of its predicted values.
        unsupported: measured values without a prediction [count].

    >>> statistics([], 2).supported
    0
    """
    ratios = np.array([score.predicted / score.measured for score in scores], dtype=float)
    if not ratios.size:
        nothing = float("nan")
        return Stats(
            n=unsupported,
            supported=0,
            median_abs_error=nothing,
            p90_abs_error=nothing,
            share_within_20=nothing,
            bias=nothing,
        )
    errors = np.abs(ratios - 1.0)
    return Stats(
        n=int(ratios.size) + unsupported,
        supported=int(ratios.size),
        median_abs_error=float(np.median(errors)),
        p90_abs_error=float(np.quantile(errors, 0.9)),
        share_within_20=float(np.mean(errors <= WITHIN + 1e-12)),
        bias=float(np.median(ratios)) - 1.0,
    )

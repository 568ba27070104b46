"""A calibration fitted to a few passes of an engine, its file, and predictions of passes that only judge the fit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from rackline.files import rounded, toml_text
from rackline.fitting.solver import Parameter, Values, fit
from rackline.lab.engine import WORK_KINDS, Engine, Limits, Work, batch_of
from rackline.lab.rates import Device, Peaks, Rate, chip_name, link
from rackline.parallel import Deployment
from rackline.passes import Calibration, OperationCalibration, PassTable
from rackline.passes.features import Array
from rackline.serving.stack import Stack
from rackline.simulation import CacheConfig, Requests, poisson, pool_of, simulate

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false


_NOISE = 0.05  # relative error of a timing, which weighs the passes against the start
_FACTOR = 1e3  # by which a number may leave its start


def _n(name: str, start: float, known: float) -> Parameter:
    return Parameter(name=name, start=start, spread=known, low=start / _FACTOR, high=start * _FACTOR)


def starts(launch_s: float) -> list[Parameter]:
    """The numbers, where they start, and the factor within which that is known.

    Args:
        launch_s: time of a call that does nothing [s].
    """
    return [
        _n("launch_s", launch_s, 2.0),
        _n("product_compute", 0.7, 1.0),
        _n("product_memory", 0.8, 0.7),
        _n("product_exposed", 0.5, 1.0),
        _n("cache_memory", 0.5, 1.0),
        _n("sequence_s", launch_s, 2.0),
        _n("context_s", launch_s / 100.0, 2.0),
        _n("prompt_compute", 0.5, 1.0),
        _n("token_memory", 0.3, 1.5),
    ]


def calibration_of(values: Mapping[str, float], name: str, engine: str, context_block: int = 1) -> Calibration:
    """The calibration with some numbers: launches, products, both kinds of attention, and the small operations.

    Args:
        values: by the names of `starts`.
        name: of the calibration.
        engine: whose passes it describes.
        context_block: cached tokens that its attention reads at once [tokens].
    """
    launch: dict[str, Any] = {
        "overhead_s": values["launch_s"],
        "evidence": "measured",
        "origin": f"{engine}, this machine",
    }
    memory = min(values["token_memory"], 1.0)
    operations = {
        "gemm": OperationCalibration(
            eta_compute=values["product_compute"],
            eta_memory=values["product_memory"],
            exposed=min(values["product_exposed"], 1.0),
            **launch,
        ),
        "attention_decode": OperationCalibration(
            eta_compute=max(values["product_compute"], 1.0),
            eta_memory=values["cache_memory"],
            tile_s=values["sequence_s"],
            depth_s=values["context_s"],
            **launch,
        ),
        "attention_prefill": OperationCalibration(
            eta_compute=values["prompt_compute"], eta_memory=values["product_memory"], **launch
        ),
        "elementwise": OperationCalibration(eta_memory=memory, **launch),
        "embedding": OperationCalibration(eta_memory=memory, **launch),
    }
    return Calibration(
        name=name,
        stack=engine,
        step_policy="serial",
        evidence="measured",
        description=f"fitted to passes of {engine} on this machine",
        context_block=context_block,
        operations={(one, "*"): numbers for one, numbers in operations.items()},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A fitted calibration.

    Args:
        calibration: its numbers; shares of the chip's peaks may be above 1.
        values: of the numbers.
        determined: share of each number's uncertainty that the passes removed; near 0, it is where it started [1].
        errors: relative error of each fitted pass [1].
    """

    calibration: Calibration
    values: dict[str, float]
    determined: dict[str, float]
    errors: Array


def fitted(
    table: PassTable,
    works: Sequence[Work],
    seconds: Sequence[float],
    launch_s: float,
    name: str,
    context_block: int = 1,
) -> Fit:
    """The calibration nearest to measured passes and to the start.

    Args:
        table: of the engine's model, with the chip's peaks.
        works: the passes.
        seconds: that each took [s].
        launch_s: of a call that does nothing [s].
        name: of the calibration, and of its engine.
        context_block: cached tokens that the engine's attention reads at once [tokens].
    """
    numbers = starts(launch_s)
    batch = batch_of(list(works))
    wanted = np.asarray(seconds, dtype=float)

    def predicted(values: Values) -> Array:
        return table.with_calibration(calibration_of(values, name, name, context_block)).seconds(batch)

    known = np.array([one.spread for one in numbers], dtype=float)
    found = fit(numbers, lambda values: np.log(predicted(values) / wanted), noise=_NOISE, loss="squares", x_scale=known)
    calibration = calibration_of(found.values, name, name, context_block)
    errors = predicted(found.values) / wanted - 1.0
    spread = float(np.median(np.abs(errors)))
    operations = {key: replace(one, median_error=spread) for key, one in calibration.operations.items()}
    return Fit(
        calibration=replace(calibration, operations=operations),
        values=found.values,
        determined=dict(zip(found.values, (1.0 - np.minimum(found.spreads() / known, 1.0)).tolist(), strict=True)),
        errors=errors,
    )


_SHORT = 64
_MANY, _FEW = (16, 4, 4), (6, 1, 1)  # decode, prefill and mixed passes that are not fitted
_BATCHES = 6


def fitted_works(limits: Limits) -> tuple[Work, ...]:
    """The corners of batch and context, two prompts, and a prompt beside a batch."""
    few, most = 1, limits.sequences
    short, longest, prompt = _contexts(limits)
    return (
        _decode(few, short),
        _decode(few, longest),
        _decode(most, short),
        _decode(most, longest),
        _decode(max(most // 4, 1), (short + longest) // 4),
        Work(prompt_tokens=prompt // 8),
        Work(prompt_tokens=prompt),
        Work(sequences=max(most // 2, 1), context_len=longest // 2, prompt_tokens=prompt // 4),
    )


def held_out_works(limits: Limits, seed: int, *, few: bool = False) -> tuple[Work, ...]:
    """Passes drawn at random inside the range of the fitted ones; none of them is fitted.

    Batches, contexts and prompts are uniform in their logarithms; there are a few different batches, since an engine
    that compiles its passes does so for each.

    Args:
        limits: largest passes of the engine.
        seed: of the draws; another seed gives other passes.
        few: for a first look.
    """
    random = np.random.default_rng(seed)
    short, longest, prompt = _contexts(limits)

    def between(low: int, high: int) -> int:
        return round(math.exp(random.uniform(math.log(low), math.log(high))))

    batches = [between(1, limits.sequences) for _ in range(_BATCHES)]

    def decode() -> Work:
        return _decode(int(random.choice(batches)), between(short, longest))

    def prefill() -> Work:
        return Work(prompt_tokens=between(prompt // 8, prompt))

    def mixed() -> Work:
        return replace(decode(), prompt_tokens=prefill().prompt_tokens)

    found: list[Work] = []
    decodes, prompts, mixtures = _FEW if few else _MANY
    for count, draw in ((decodes, decode), (prompts, prefill), (mixtures, mixed)):
        wanted = len(found) + count
        while len(found) < wanted:
            work = draw()
            if work not in found and work not in fitted_works(limits):
                found.append(work)
    return tuple(found)


def _contexts(limits: Limits) -> tuple[int, int, int]:
    """(short, longest, longest prompt) [tokens]."""
    return min(_SHORT, limits.context_len // 2), limits.context_len - 16, limits.prompt_tokens


def _decode(sequences: int, context_len: int) -> Work:
    return Work(sequences=sequences, context_len=context_len)


Kind = Literal["decode", "prefill", "mixed", "served", "saturation"]
KINDS: tuple[Kind, ...] = (*WORK_KINDS, "served", "saturation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One time, predicted and measured.

    Args:
        kind: decode, prefill, mixed, served, or saturation: requests of which some always wait.
        sequences: that decode; 0 for none [sequences].
        context_len: that each has cached [tokens].
        prompt_tokens: of the prompt in the pass, or of the request [tokens].
        rate_per_s: of the arrivals of a served request, over the highest that the engine is predicted to hold [1].
        predicted_s, measured_s: time of the pass, or of the request from arrival to last token; at saturation, time
            that the engine takes for each request [s].
        spread: of the repeats, distance of the quartiles over the lower one; 0 for a request [1].
        is_fitted: whether the fit has seen it.
    """

    json_keys: ClassVar[tuple[str, ...]] = (
        "kind", "sequences", "context_len", "prompt_tokens", "load", "predicted_s", "measured_s", "error", "spread",
        "is_fitted",
    )  # fmt: skip

    kind: Kind
    sequences: int = 0
    context_len: int = 0
    prompt_tokens: int = 0
    load: float = 0.0
    predicted_s: float
    measured_s: float
    spread: float = 0.0
    is_fitted: bool = False

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_s / self.measured_s - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Errors of one kind.

    Args:
        n: times that were compared [count].
        median_abs_error, p90_abs_error: of the absolute relative errors; None without any [1].
    """

    n: int
    median_abs_error: float | None
    p90_abs_error: float | None


def score(rows: Sequence[Compared]) -> Score:
    """Errors of some rows.

    >>> one = Compared(kind="decode", predicted_s=1.1, measured_s=1.0)
    >>> round(score([one]).median_abs_error, 3), score([]).n
    (0.1, 0)
    """
    if not rows:
        return Score(n=0, median_abs_error=None, p90_abs_error=None)
    errors = np.abs([row.error for row in rows])
    return Score(n=len(rows), median_abs_error=float(np.median(errors)), p90_abs_error=float(np.quantile(errors, 0.9)))


def scores(rows: Iterable[Compared]) -> dict[Kind, Score]:
    """Errors by kind, of what was not fitted."""
    unseen = [row for row in rows if not row.is_fitted]
    return {kind: score([row for row in unseen if row.kind == kind]) for kind in KINDS}


LOADS = (0.3, 0.6, 0.85)  # of the highest rate
_FEWEST, _MOST = 8, 60  # requests of a trace
_BACKLOG = 3  # requests for each slot that are there at once


def served(
    engine: Engine, deployment: Deployment, stack: Stack, *, seed: int, trace_s: float, output_len: int
) -> list[Compared]:
    """Random arrivals at several loads, each served and simulated, a row for each request; then all at once, one row.

    Args:
        engine: that serves.
        deployment, stack: that are simulated.
        seed: random seed of the arrivals.
        trace_s: how long a trace should take about [s].
        output_len: mean of the answers, which are between 1 and twice that [tokens].
    """
    rows: list[Compared] = []
    random = np.random.default_rng(seed)
    settings = engine.scheduler
    alone = settings.admission == "prefill_first"
    budget = settings.prompt_tokens if alone else settings.max_batched_tokens
    one_prompt = stack.with_values(
        {"scheduler.max_batched_tokens": budget, "scheduler.max_num_seqs": settings.max_num_seqs}
    )
    cache = CacheConfig(
        pool_tokens=(settings.max_num_seqs + 1) * engine.limits.context_len, longest=engine.limits.context_len
    )
    pool = pool_of(deployment, one_prompt, cache=cache)
    number = _BACKLOG * settings.max_num_seqs
    backlog = Requests(
        arrival_s=np.zeros(number),
        input_len=np.full(number, settings.prompt_tokens),
        output_len=random.integers(2, 2 * output_len, number),
        name="all requests at once",
    )
    each_s = simulate(backlog, pool).makespan_s / number
    highest = 1.0 / each_s
    for load in LOADS:
        number = int(np.clip(load * highest * trace_s, _FEWEST, _MOST))
        requests = Requests(
            arrival_s=poisson(random, number, load * highest),
            input_len=np.full(number, settings.prompt_tokens),
            output_len=random.integers(2, 2 * output_len, number),
            name=f"random arrivals at {load:.0%} of the highest rate",
        )
        expected = simulate(requests, pool)
        found = engine.serve(requests)
        rows += [
            Compared(
                kind="served",
                sequences=1,
                prompt_tokens=settings.prompt_tokens,
                load=load,
                predicted_s=float(predicted),
                measured_s=float(measured),
            )
            for predicted, measured in zip(expected.e2e_s, found.e2e_s, strict=True)
        ]
    saturated = Compared(
        kind="saturation",
        sequences=settings.max_num_seqs,
        prompt_tokens=settings.prompt_tokens,
        predicted_s=each_s,
        measured_s=float(np.max(engine.serve(backlog).e2e_s)) / len(backlog),
    )
    return [*rows, saturated]


def machine_text(
    device: Device,
    rates: Sequence[Rate],
    peaks: Peaks,
    before: Peaks,
    engine: Engine,
    calibration: Calibration,
    measured: Mapping[str, Any],
) -> str:
    """The file: chip, cluster, calibration, stack, and how they were measured.

    Args:
        device: that was measured.
        rates: that it reached.
        peaks, before: best rates, with and without what the engine reached.
        engine: that was measured.
        calibration: fitted with the peaks `before`.
        measured: date, versions, spread, errors; becomes a table of its own.
    """
    date = str(measured["date"])
    what = f"measured by rackline on {date}: {device.name}, {engine.name} {' '.join(engine.versions.values())}"
    source: dict[str, Any] = {"fields": ["*"], "kind": "measured", "citation": what, "accessed": date}
    assumed = {"fields": ["*"], "kind": "assumed", "citation": f"scheduler of {engine.name} as measured"}
    name = chip_name(device)
    rate_s, latency_s = link(rates, peaks)
    parts = {
        "chip": {
            "name": name,
            "full_name": device.name,
            "vendor": device.vendor,
            "generation": device.kind,
            "peak_flop_per_s": dict(peaks.flop_per_s),
            "hbm_bytes": device.memory_bytes,
            "hbm_bytes_per_s": peaks.bytes_per_s,
            "cores": device.cores,
            "l2_bytes": device.cache_bytes,
            "sources": [source],
        },
        "cluster": {
            "name": name,
            "full_name": f"{device.count} × {device.name}" if device.count > 1 else device.name,
            "num_chips": device.count,
            "chips_per_host": device.count,
            "levels": [
                {
                    "name": "scale_up",
                    "size": device.count,
                    "bytes_per_s_each_way": rate_s,
                    "latency_s": latency_s,
                    "topology": "mesh",
                }
            ],
            "sources": [source],
        },
        "calibration": _calibration(calibration, peaks, before, engine, measured, source),
        "stack": {
            "name": f"{engine.name.replace('.', '-')}-here",
            "full_name": f"{engine.name} as measured",
            "scheduler": {
                "admission": engine.scheduler.admission,
                "max_batched_tokens": engine.scheduler.max_batched_tokens,
                "max_num_seqs": engine.scheduler.max_num_seqs,
                **({"neighbour_passes": True} if engine.scheduler.neighbour_passes else {}),
            },
            "memory": {"memory_fraction": 0.9},
            "sources": [assumed],
        },
        "measured": dict(measured),
    }
    return toml_text(
        rounded(parts),
        ["Written by rackline measure; works wherever a cluster, a chip or a calibration is asked for."],
    )


def _calibration(
    found: Calibration,
    peaks: Peaks,
    before: Peaks,
    engine: Engine,
    measured: Mapping[str, Any],
    source: Mapping[str, Any],
) -> dict[str, Any]:
    memory = before.bytes_per_s / peaks.bytes_per_s
    compute = before.flop_per_s[engine.dtype] / peaks.flop_per_s[engine.dtype]
    return {
        "name": f"{engine.name.replace('.', '-')}-here",
        "full_name": f"{engine.name} on this machine",
        "stack": engine.name,
        "description": found.description,
        "evidence": "measured",
        "step_policy": found.step_policy,
        "context_block": found.context_block,
        "operation": [
            {
                "class": kind,
                "dtype": dtype,
                "overhead_s": one.overhead_s,
                "eta_compute": min(one.eta_compute * compute, 1.0),
                "eta_memory": min(one.eta_memory * memory, 1.0),
                "exposed": one.exposed,
                "depth_s": one.depth_s,
                "tile_s": one.tile_s,
                "evidence": "measured",
                "rows": int(measured["fitted_passes"]),
                "median_error": one.median_error,
                "stack_version": next(iter(engine.versions.values())),
            }
            for (kind, dtype), one in found.operations.items()
        ],
        "sources": [dict(source)],
    }

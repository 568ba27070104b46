"""Why a server is slower than its deployment allows: causes that are simulated, and how likely each makes a run.

What was seen of a run is a vector: the logarithms of the time to the first token and of the time per output token of
each request, and of three percentiles of the time between tokens. For a cause of size x the simulator serves the same
requests on the server that this cause makes (`changed`), so that each cause shifts the vector in its own way d(x):
a lower clock by products, a small cache by waiting, a slow client by what arrives late. Against these stand the errors
that a server without a fault has: the numbers of the calibration, known to within the widths of
`rackline.validation.observed_fit`, shift the vector by J·θ, θ ~ N(0, 1), and every request by noise of its own. So

    y = d(x) + J·θ + s·ε,    ε ~ N(0, D),    1/s² ~ Gamma(a, a)

of which θ and s are integrated in closed form (a Student t with 2a + n degrees of freedom, n the number of independent
requests, as in `observed_fit`). The likelihood of a cause is its mean over sizes; two causes at once add their shifts.
Prior: nothing is wrong `_NOTHING`, two causes `_SECOND` as likely as one, all causes alike.

The next experiment is a load that is cheap to send and under which the two leading causes differ by most, in standard
deviations of the same model.
"""

from __future__ import annotations

import importlib.resources
import itertools
import math
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, Literal, assert_never

import numpy as np

from rackline.bands.bands import kind_of_model
from rackline.errors import InputError, RacklineError
from rackline.passes import Calibration
from rackline.passes.fallback import best_stack
from rackline.passes.features import Array
from rackline.simulation import Requests, Result
from rackline.simulation.statistics import spread_of_gaps
from rackline.validation.cases import Case
from rackline.validation.observed import KIND, requests_from, served_run
from rackline.validation.observed_fit import PARAMETERS, scaled, with_numbers
from rackline.validation.requests import ServedRun
from rackline.validation.resolve import Resolver

Act = Literal[
    "exchange", "compute", "experts", "eager", "graphs", "token budget", "sequences", "cache", "prefix cache", "host",
    "frontend", "client", "data type", "drafts", "neighbour",
]  # fmt: skip
_NOTHING, _SECOND = 0.2, 0.15  # a priori: a server that is asked about is seldom as fast as it should be
_SIZES, _FINER = 6, 5  # of a cause that are simulated, and steps between two of them
_STEP = 0.5  # for slopes, in widths of the prior
_NOISE = np.array([0.2, 0.05])  # of a request: time to the first token, time per token [natural logarithm]
_GAP_NOISE = np.array([0.05, 0.1, 0.2])  # of the 50th, 90th and 99th percentile of the time between tokens
_ALIKE = 0.02  # correlation of two requests of one run, as in the fits of observed runs
_SHAPE = 4.0  # of the prior of the noise
_BUSY = 1.0 / 7.0  # share of the time in which a neighbour computes
_LEAST_S = 1e-6
_LEAST_SHIFT = 0.02  # mean of what is seen [natural logarithm]
_FEWEST = 8
_TELLING = 3.0  # standard deviations by which an experiment separates two causes
_MOST_STEPS = 4
_SETTLED, _SETTLED_PAIRS = 9, 4  # hypotheses that are fitted
_OUTSIDE: tuple[str, ...] = ("neighbour", "frontend", "client")  # acts beside the engine
_EXCHANGE_WIDTH = 0.2  # of collectives, whose numbers are those of measured boxes


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Something that makes a server slow.

    Args:
        key, title: name, and what it is in words.
        act: what changes in the simulated server.
        unit: of its size.
        low, high: range of its size; equal where it has none.
        needs: what the deployment must have for it to happen; empty for none.
        check: what to look at on the server.
        source: where the check or the range is from.
    """

    key: str
    title: str
    act: Act
    unit: str
    check: str
    source: str
    low: float = 1.0
    high: float = 1.0
    needs: str = ""

    @property
    def sizes(self) -> tuple[float, ...]:
        """Sizes that are simulated, the smallest effect not necessarily first."""
        count = 1 if self.low == self.high else _SIZES
        return tuple(np.geomspace(self.low, self.high, count).tolist())


@cache
def causes() -> tuple[Cause, ...]:
    """All causes that are known, from `causes.toml`."""
    text = importlib.resources.files("rackline.validation").joinpath("causes.toml").read_text(encoding="utf-8")
    return tuple(Cause(**entry) for entry in tomllib.loads(text)["cause"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a client saw of a run, request by request; NaN for what it did not see.

    Args:
        ttft_s, tpot_s: time to the first token and time per output token, (n,) [s].
        gaps_s: 50th, 90th and 99th percentile of the time between tokens, (3,) [s].
    """

    ttft_s: Array
    tpot_s: Array
    gaps_s: Array

    @property
    def logs(self) -> Array:
        """Natural logarithms of all of it, (2 n + 3,)."""
        with np.errstate(invalid="ignore", divide="ignore"):
            every = np.concatenate([self.ttft_s, self.tpot_s, self.gaps_s])
            return np.log(np.where(every > 0.0, np.maximum(every, _LEAST_S), np.nan))

    def e2e_s(self, output_len: Array) -> Array:
        """Sent to last token, (n,) [s]."""
        return self.ttft_s + np.nan_to_num(self.tpot_s) * (output_len - 1.0)


def happens(cause: Cause, run: ServedRun) -> bool:
    """Whether a cause can occur in this deployment and load."""
    deployment = run.deployment
    match cause.needs:
        case "several chips":
            return deployment.layout.num_chips > 1
        case "experts":
            return kind_of_model(deployment.model) != "dense"
        case "graphs":
            return not run.stack.eager_decode and deployment.cluster.chip.generation != "cpu"
        case "shared prefixes":
            return run.cache.prefix_caching and run.requests.hashes is not None
        case "a narrow data type":
            return _wider(run) is not None
        case "drafts":
            return run.speculation.draft_tokens > 0
        case _:
            return True


def changed(run: ServedRun, act: Act, size: float, usual: Result) -> ServedRun:
    """The server that a cause makes.

    Args:
        size: in the unit of the cause.
        usual: the run without it, for what is relative to the load.
    """
    deployment, stack = run.deployment, run.stack
    numbers = deployment.calibration

    def calibrated(found: Calibration) -> ServedRun:
        return replace(run, deployment=replace(deployment, calibration=found))

    def served(**values: Any) -> ServedRun:
        return replace(run, stack=replace(stack, **values))

    match act:
        case "exchange":
            return calibrated(_exchanging(numbers, size))
        case "compute":
            return calibrated(scaled(numbers, 1.0, size, 1.0))
        case "experts":
            return calibrated(_of_experts(numbers, size))
        case "neighbour":
            mean = 1.0 + _BUSY * (size - 1.0)
            return calibrated(scaled(numbers, mean, mean, mean))
        case "eager":
            return served(eager_decode=True, graph_tokens=0, prompt_graph_tokens=0, eager_s_per_layer=size)
        case "graphs":
            return served(graph_tokens=max(round(size), 1), eager_s_per_layer=max(stack.eager_s_per_layer, 7.5e-4))
        case "token budget":
            return served(max_batched_tokens=max(min(round(size), stack.max_batched_tokens), run.cache.block_size))
        case "sequences":
            return served(max_num_seqs=max(round(size * most_running(usual)), 1))
        case "cache":
            # the smallest that still holds the longest request
            longest = int((run.requests.input_len + run.requests.output_len).max()) + 2 * run.cache.block_size
            return replace(run, cache=replace(run.cache, pool_tokens=max(round(size * _most_tokens(usual)), longest)))
        case "prefix cache":
            return replace(run, cache=replace(run.cache, prefix_caching=False))
        case "host":
            return calibrated(replace(numbers, host_s_per_step=numbers.host_s_per_step + size))
        case "data type":
            return replace(run, deployment=replace(deployment, precision=_wider(run) or deployment.precision))
        case "drafts":
            more = (run.speculation.tokens_per_step - 1.0) * size
            return replace(run, speculation=replace(run.speculation, tokens_per_step=1.0 + more))
        case "frontend" | "client":
            return run
        case _:
            assert_never(act)


def _of_experts(numbers: Calibration, slower: float) -> Calibration:
    own = {key: one for key, one in numbers.operations.items() if key[0] in ("moe", "padded_moe")}
    slow = scaled(replace(numbers, operations=own), slower, slower, slower).operations
    return replace(numbers, operations={**numbers.operations, **slow})


def _exchanging(numbers: Calibration, slower: float) -> Calibration:
    found = {
        name: replace(
            one,
            overheads_s=tuple(each * slower for each in one.overheads_s),
            eta_links=tuple(each / slower for each in one.eta_links),
            alpha_s=one.alpha_s * slower,
        )
        for name, one in numbers.collectives.items()
    }
    return replace(numbers, collectives=found)


def _wider(run: ServedRun) -> Any:
    """The deployment's data types with weights and products in 16 bits; None where they already are."""
    types = run.deployment.precision
    narrow = ("fp8", "fp4", "mxfp4", "int4", "int8")
    if types.linear_weights not in narrow and types.expert_weights not in narrow:
        return None
    wide = dict.fromkeys(("linear_weights", "expert_weights", "activations", "expert_activations"), "bf16")
    return replace(types, label="bf16", **wide)


def _integral(starts: Array, ends: Array, weights: Array) -> tuple[Array, Array]:
    """Times at which intervals begin or end, and the sum of the weights of those that are open from then on."""
    times, signed = np.concatenate([starts, ends]), np.concatenate([weights, -weights])
    order = np.argsort(times, kind="stable")
    return times[order], np.cumsum(signed[order])


def most_running(result: Result) -> int:
    """Most requests that ran at once [requests]."""
    done = result.finished
    _, open_now = _integral(result.admitted_s[done], result.finish_s[done], np.ones(int(done.sum())))
    return max(int(open_now.max(initial=1.0)), 1)


def _most_tokens(result: Result) -> float:
    """Most tokens that the requests at once hold at their ends [tokens]."""
    done = result.finished
    lengths = (result.requests.input_len + result.requests.output_len)[done].astype(float)
    _, held = _integral(result.admitted_s[done], result.finish_s[done], lengths)
    return float(held.max(initial=1.0))


def _beside(starts: Array, ends: Array) -> Array:
    """Mean number of intervals that are open during each, itself included, (n,)."""
    times, open_now = _integral(starts, ends, np.ones(len(starts)))
    area = np.concatenate([[0.0], np.cumsum(open_now[:-1] * np.diff(times))])
    within = np.interp(ends, times, area) - np.interp(starts, times, area)
    return np.maximum(within / np.maximum(ends - starts, _LEAST_S), 1.0)


def seen_of(result: Result, act: Act | None = None, size: float = 1.0) -> Seen:
    """What a client sees of a simulated run, with what a cause does outside of the engine."""
    ttft, tpot = np.array(result.ttft_s), np.array(result.tpot_s)
    spread = spread_of_gaps(result.gaps)
    gaps = np.array([spread["p50"], spread["p90"], spread["p99"]])
    if act is None:
        return Seen(ttft_s=ttft, tpot_s=tpot, gaps_s=gaps)
    match act:
        case "neighbour":
            mean = 1.0 + _BUSY * (size - 1.0)
            gaps = gaps * np.array([1.0, size, size]) / mean
        case "frontend":
            ttft = ttft + _in_queue(result, size)
        case "client":
            beside = _beside(result.first_s, result.finish_s)
            each = size * float(np.nanmedian(tpot / beside))  # time to read one token
            slow = np.fmax(tpot, each * beside)
            ttft, gaps = ttft + each * beside, gaps * float(np.nanmedian(slow / tpot))
            tpot = slow
        case (
            "exchange" | "compute" | "experts" | "eager" | "graphs" | "token budget" | "sequences" | "cache"
            | "prefix cache" | "host" | "data type" | "drafts"
        ):  # fmt: skip
            pass  # inside the engine, which is simulated
        case _:
            assert_never(act)
    return Seen(ttft_s=ttft, tpot_s=tpot, gaps_s=gaps)


def _in_queue(result: Result, share: float) -> Array:
    """Waiting and service at one server that takes this share of the time between requests, by prompt tokens [s]."""
    order = np.argsort(result.arrival_s, kind="stable")
    at, lengths = result.arrival_s[order], result.requests.input_len[order].astype(float)
    between = float(at[-1] - at[0]) / max(len(at) - 1, 1)
    service = share * between * lengths / lengths.mean()
    done = np.cumsum(service)
    # Lindley's recursion without a loop: a request ends at its service after the latest start of a busy period
    ends = done + np.maximum.accumulate(at - (done - service))
    found = np.empty_like(at)
    found[order] = ends - at
    return found


def seen_run(run: ServedRun, case: Case) -> Seen:
    """What was measured of a run; the time between tokens where each piece of an answer was one token."""
    gaps = np.full(3, math.nan)
    if case.kind == KIND:
        every = [one for one in requests_from(case) if one.is_finished and len(one.token_s) == one.tokens]
        between = [np.diff(np.array(one.token_s)) for one in every if len(one.token_s) > 1]
        if between:
            gaps = np.percentile(np.concatenate(between), [50, 90, 99])
    return Seen(ttft_s=run.measured["ttft_s"], tpot_s=run.measured["tpot_s"], gaps_s=gaps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A cause with what speaks for it.

    Args:
        cause: that is suspected.
        probability: that it is at work, alone or with another [1].
        size: mean of its size, in the unit of the cause.
        share_of_gap: of the measured excess of the mean request time, explained by it alone [1].
    """

    json_keys: ClassVar = (
        "cause=cause.key", "title=cause.title", "probability", "size", "unit=cause.unit", "share_of_gap",
        "check=cause.check", "source=cause.source",
    )  # fmt: skip

    cause: Cause
    probability: float
    size: float
    share_of_gap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A load that separates two causes.

    Args:
        load: what is sent, in words.
        options: of `rackline observe`.
        duration_s: how long it takes on the suspected server [s].
        separation: of the two causes [standard deviations].
    """

    json_keys: ClassVar = ("load", "options", "duration_s", "separation")

    load: str
    options: str
    duration_s: float
    separation: float

    @property
    def tells(self) -> bool:
        """Whether it separates them by three standard deviations."""
        return self.separation >= _TELLING


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Why a run was slow.

    Args:
        run_id: of the run.
        suspects: causes, the likeliest first.
        nothing: probability that nothing is wrong [1].
        measured_s, expected_s: mean time of a request, measured and of a server without a fault [s].
        within: where the measured mean lies in the errors of the calibration [standard deviations].
        requests: that were compared [count].
        experiment: that separates the two leading causes; None where no load does better than looking.
        pair: the likeliest two causes at once; None where none of two was fitted.
        pair_probability: of these two [1].
    """

    json_keys: ClassVar = (
        "run_id", "suspects", "nothing", "measured_s", "expected_s", "within", "requests", "experiment", "pair",
        "pair_probability",
    )  # fmt: skip

    run_id: str
    suspects: tuple[Suspect, ...]
    nothing: float
    measured_s: float
    expected_s: float
    within: float
    requests: int
    experiment: Experiment | None = None
    pair: tuple[str, str] | None = None
    pair_probability: float = 0.0


class _Errors:
    """The errors of a server without a fault, and the evidence of shifts under them.

    Args:
        slopes: J, shift of each entry by one standard deviation of each number, (entries, numbers).
        noise: standard deviation of each entry, (entries,).
        independent: number of independent entries.
    """

    def __init__(self, slopes: Array, noise: Array, independent: float) -> None:
        self.slopes = slopes / noise[:, None]
        self.noise = noise
        self.share = independent / max(len(noise), 1)
        inner = np.eye(slopes.shape[1]) + self.share * self.slopes.T @ self.slopes
        self.factor = np.linalg.cholesky(inner)

    def products(self, left: Array, right: Array) -> Array:
        """leftᵀ R⁻¹ right, for columns of entries, with R = J Jᵀ + D (Woodbury)."""
        a, b = left / self.noise[:, None], right / self.noise[:, None]
        inside = np.linalg.solve(self.factor, self.slopes.T @ a), np.linalg.solve(self.factor, self.slopes.T @ b)
        return self.share * (a.T @ b) - self.share**2 * inside[0].T @ inside[1]


@dataclass(frozen=True, slots=True)
class _Numbers:
    """A server whose calibration is off by some standard deviations of each number.

    Args:
        run: with the shipped numbers.
        wide: whether its chip borrows them.
    """

    run: ServedRun
    wide: bool

    @property
    def count(self) -> int:
        """Numbers that may be off."""
        return len(PARAMETERS) + (self.run.deployment.layout.num_chips > 1)

    def at(self, off: Array) -> ServedRun:
        """The server with each number `off` by a number of standard deviations, (count,)."""
        run, numbers = self.run, self.run.deployment.calibration
        shipped = {
            "memory": 1.0,
            "compute": 1.0,
            "launches": 1.0,
            "prefill_slowdown": run.stack.prefill_slowdown,
            "host_s_per_step": numbers.host_s_per_step,
            "host_s_per_sequence": run.stack.host_s_per_sequence,
            "first_token_s": run.stack.first_token_s,
        }
        values: dict[str, float] = {}
        for one, by in zip(PARAMETERS, off.tolist(), strict=False):
            width = (one.borrowed if self.wide else one.own) * by
            value = shipped[one.name]
            values[one.name] = value * math.exp(width) if one.unit == "1" else max(value + width, 0.0)
        found = with_numbers(run, values)
        if len(off) == len(PARAMETERS):
            return found
        slower = _exchanging(found.deployment.calibration, math.exp(_EXCHANGE_WIDTH * float(off[-1])))
        return replace(found, deployment=replace(found.deployment, calibration=slower))

    def logs(self, off: Array, faults: Sequence[tuple[Cause, float]], usual: Result) -> Array:
        """What a client sees of it with faults of these sizes, (entries,).

        Raises:
            RacklineError: it does not run.
        """
        run = self.at(off)
        for cause, size in faults:
            run = changed(run, cause.act, size, usual)
        result = run.simulated()
        found = seen_of(result).logs
        for cause, size in faults:
            if cause.act in _OUTSIDE:
                found = found + seen_of(result, cause.act, size).logs - seen_of(result).logs
        return found

    def slopes(self, around: Array, usual: Result) -> Array:
        """Shift of what is seen by one standard deviation of each number, (entries, count)."""
        steps = np.eye(self.count) * _STEP
        return np.array([(self.logs(step, (), usual) - around) / _STEP for step in steps]).T


@dataclass(frozen=True, slots=True)
class _Settled:
    """A hypothesis where it agrees best with what was seen.

    Args:
        causes: none, one or two.
        sizes: of each.
        log_evidence: of what was seen, over sizes and numbers.
    """

    causes: tuple[Cause, ...]
    sizes: tuple[float, ...]
    log_evidence: float


def _settle(
    numbers: _Numbers,
    usual: Result,
    logs: Array,
    noise: Array,
    independent: float,
    start: Sequence[tuple[Cause, float]],
) -> _Settled | None:
    """Numbers and sizes that agree best with what was seen, by Gauss and Newton, and the evidence around them.

    Numbers have their normal prior, the place of a size in its range a uniform one (as a normal one of its variance),
    the variance of the noise an inverse gamma one; the evidence is that of Laplace's approximation.
    """
    of = tuple(cause for cause, _ in start)
    free = [index for index, cause in enumerate(of) if cause.high > cause.low]
    share = independent / max(len(noise), 1)

    def sizes(at: Array) -> tuple[float, ...]:
        places = dict(zip(free, np.clip(at[numbers.count :], 0.0, 1.0).tolist(), strict=True))
        return tuple(cause.low * (cause.high / cause.low) ** places.get(i, 0.0) for i, cause in enumerate(of))

    def residual(at: Array) -> Array:
        found = numbers.logs(at[: numbers.count], list(zip(of, sizes(at), strict=True)), usual)
        return np.nan_to_num((logs - found) / noise, nan=0.0)

    center = np.concatenate([np.zeros(numbers.count), np.full(len(free), 0.5)])
    precision = np.concatenate([np.ones(numbers.count), np.full(len(free), 12.0)])
    at = center.copy()
    for place, index in enumerate(free):
        cause, size = start[index]
        at[numbers.count + place] = math.log(size / cause.low) / math.log(cause.high / cause.low)
    steps = np.concatenate([np.full(numbers.count, _STEP), np.full(len(free), 0.05)])

    def variance(square: float) -> float:
        return (2.0 * _SHAPE + share * square) / (2.0 * _SHAPE + independent)

    def cost(found: Array, place: Array) -> float:
        square = float(found @ found)
        s2 = variance(square)
        away = place - center
        return 0.5 * ((2.0 * _SHAPE + share * square) / s2 + (independent + 2.0 * _SHAPE) * math.log(s2)
                      + float((precision * away**2).sum()))  # fmt: skip

    try:
        left = residual(at)
        now = cost(left, at)
        curve = np.diag(precision)
        for _ in range(_MOST_STEPS):
            slopes = np.empty((len(left), len(at)))
            for column, step in enumerate(steps):
                there = at.copy()
                there[column] += step if column < numbers.count or there[column] + step <= 1.0 else -step
                slopes[:, column] = (left - residual(there)) / (there[column] - at[column])
            weight = share / variance(float(left @ left))
            curve = np.diag(precision) + weight * slopes.T @ slopes
            way = np.linalg.solve(curve, weight * slopes.T @ left - precision * (at - center))
            for _ in range(3):
                there = at + way
                there[numbers.count :] = np.clip(there[numbers.count :], 0.0, 1.0)
                then = residual(there)
                if cost(then, there) < now:
                    break
                way = 0.3 * way
            else:
                break
            gained = now - cost(then, there)
            at, left, now = there, then, cost(then, there)
            if gained < 0.3:
                break
        for place in range(numbers.count, len(at)):  # times jump with a size where requests wait for room
            for width in (0.06, 0.015):
                for there in at + np.eye(len(at))[place] * width * np.arange(-4, 5)[:, None]:
                    if 0.0 <= there[place] <= 1.0 and (value := cost(then := residual(there), there)) < now:
                        at, left, now = there, then, value
    except RacklineError:
        return None
    volume = float(np.linalg.slogdet(curve)[1]) - float(np.log(precision).sum())
    return _Settled(of, sizes(at), -now - 0.5 * volume)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shift:
    """What a cause of one size does to what is seen."""

    cause: Cause
    size: float
    logs: Array
    mean_s: float


def _shifts(run: ServedRun, usual: Result, of: Sequence[Cause], done: Callable[[str, int, int], None]) -> list[_Shift]:
    """The shifts of all causes, finely between the sizes that are simulated."""
    around = seen_of(usual).logs
    found: list[_Shift] = []
    lengths = run.requests.output_len.astype(float)
    for number, cause in enumerate(of, start=1):
        rows: list[tuple[float, Array, float]] = []
        for size in cause.sizes:
            try:
                result = changed(run, cause.act, size, usual).simulated()
            except RacklineError:
                continue  # a server so bad does not run at all
            seen = seen_of(result, cause.act, size)
            if float(np.nanmean(np.abs(seen.logs - around))) < _LEAST_SHIFT:
                continue  # nobody could tell it from a server without a fault
            rows.append((size, seen.logs - around, float(np.nanmean(seen.e2e_s(lengths)))))
        found += [_Shift(cause=cause, size=size, logs=logs, mean_s=mean) for size, logs, mean in _finer(rows)]
        done(cause.key, number, len(of))
    return found


def _finer(rows: Sequence[tuple[float, Array, float]]) -> Iterator[tuple[float, Array, float]]:
    """Rows with others between each two, linear in the logarithm of the size."""
    for (size, logs, mean), (to, logs_to, mean_to) in itertools.pairwise(rows):
        for part in np.arange(_FINER) / _FINER:
            way = size * (to / size) ** part, logs + part * (logs_to - logs), mean * (mean_to / mean) ** part
            yield float(way[0]), way[1], float(way[2])
    yield from rows[-1:]


def diagnose(
    case: Case,
    calibration: str = "auto",
    done: Callable[[str, int, int], None] | None = None,
) -> Diagnosis:
    """Find why a run was slow.

    Args:
        case: an observed run, or one of a `runs.json`, with its deployment.
        calibration: of the server without a fault: "auto" (that of the run's stack), a name or a file.
        done: called with (what, finished, all) after each cause.

    Raises:
        InputError: not a run with its requests, or too few of them.
        RacklineError: what was served is not said, or does not run.
    """
    if case.kind not in (KIND, "requests"):
        allowed = "a run with its requests, as `rackline observe --save` writes"
        raise InputError(what=case.case_id, given=f"a case of kind {case.kind}", allowed=allowed, where=case.where)
    run = served_run(Resolver(calibration_name=calibration), case)
    if len(run.requests) < _FEWEST:
        given = f"{len(run.requests)} finished requests"
        raise InputError(what=case.case_id, given=given, allowed=f"at least {_FEWEST}", where=case.where)
    return explained(case.case_id, run, seen_run(run, case), done)


def _silent(what: str, finished: int, of: int) -> None:
    """Nobody watches."""


def explained(name: str, run: ServedRun, seen: Seen, done: Callable[[str, int, int], None] | None = None) -> Diagnosis:
    """Why what was seen of a run differs from its simulation; see `diagnose`."""
    usual = run.simulated()
    expected = seen_of(usual)
    around, logs = expected.logs, seen.logs
    possible = [cause for cause in causes() if happens(cause, run)]
    shifts = _shifts(run, usual, possible, done or _silent)
    numbers = _Numbers(run, best_stack(run.deployment.cluster.chip) == "generic")
    slopes = numbers.slopes(around, usual)
    every = np.column_stack([slopes, *(one.logs for one in shifts)])
    known = np.isfinite(logs - around) & np.isfinite(every).all(axis=1)
    count = len(run.requests)
    noise = np.concatenate([np.repeat(_NOISE, count), _GAP_NOISE])
    independent = float(known.sum()) / (1.0 + _ALIKE * (count - 1))
    errors = _Errors(slopes[known], noise[known], independent)
    y, d = (logs - around)[known][:, None], np.column_stack([one.logs for one in shifts])[known]
    yy, yd, dd = float(errors.products(y, y)[0, 0]), errors.products(y, d)[0], errors.products(d, d)
    alone = yy - 2.0 * yd + np.diag(dd)
    both = alone[:, None] + alone[None, :] - yy + 2.0 * dd
    seen_logs = np.where(known, logs, np.nan)
    settled = [
        found
        for start in _starts(shifts, alone, both)
        if (found := _settle(numbers, usual, seen_logs, noise, independent, start)) is not None
    ]
    chances = _chances(settled, len(possible))
    lengths = run.requests.output_len.astype(float)
    ok = np.isfinite(seen.ttft_s)
    measured_s = float(seen.e2e_s(lengths)[ok].mean())
    expected_s = float(np.nanmean(expected.e2e_s(lengths)[ok]))
    suspects = tuple(
        sorted(
            (_suspect(cause, settled, chances, shifts, measured_s, expected_s) for cause in possible),
            key=lambda one: (-round(one.probability, 1), -one.share_of_gap, -one.probability),
        )
    )
    spread = math.sqrt(float((np.nanmean(slopes[: 2 * count], axis=0) ** 2).sum()) + float(_NOISE.mean()) ** 2)
    pairs = [
        (chance, (one.causes[0].key, one.causes[1].key))
        for chance, one in zip(chances, settled, strict=True)
        if len(one.causes) == 2
    ]
    chance, pair = max(pairs, default=(0.0, None))
    return Diagnosis(
        run_id=name,
        suspects=suspects,
        nothing=sum(chance for chance, one in zip(chances, settled, strict=True) if not one.causes),
        measured_s=measured_s,
        expected_s=expected_s,
        within=math.log(measured_s / expected_s) / spread,
        requests=count,
        experiment=None if len(suspects) < 2 else _experiment(run, usual, suspects[:2]),
        pair=pair,
        pair_probability=chance,
    )


def _starts(shifts: Sequence[_Shift], alone: Array, both: Array) -> Iterator[list[tuple[Cause, float]]]:
    """Hypotheses that are worth a closer look, by shifts alone: none, the best single causes, the best two."""
    yield []
    best: dict[str, int] = {}
    order: list[int] = np.argsort(alone).tolist()
    for index in order:
        best.setdefault(shifts[index].cause.key, index)
    for index in list(best.values())[:_SETTLED]:
        yield [(shifts[index].cause, shifts[index].size)]
    keys = np.array([one.cause.key for one in shifts])
    pairs: dict[frozenset[str], tuple[int, int]] = {}
    flat_order: list[int] = np.argsort(np.where(keys[:, None] < keys[None, :], both, np.inf), axis=None)[:4000].tolist()
    for flat in flat_order:
        row, column = divmod(flat, len(shifts))
        if row != column:
            pairs.setdefault(frozenset((shifts[row].cause.key, shifts[column].cause.key)), (row, column))
    for row, column in list(pairs.values())[:_SETTLED_PAIRS]:
        yield [(shifts[index].cause, shifts[index].size) for index in (row, column)]


def _chances(settled: Sequence[_Settled], possible: int) -> list[float]:
    """Probability of each hypothesis."""
    several = max(possible * (possible - 1) / 2.0, 1.0)
    prior = (_NOTHING, (1.0 - _NOTHING) * (1.0 - _SECOND) / possible, (1.0 - _NOTHING) * _SECOND / several)
    logs = np.array([one.log_evidence + math.log(prior[len(one.causes)]) for one in settled])
    weights = np.exp(logs - logs.max())
    return (weights / weights.sum()).tolist()


def _suspect(
    cause: Cause,
    settled: Sequence[_Settled],
    chances: Sequence[float],
    shifts: Sequence[_Shift],
    measured_s: float,
    expected_s: float,
) -> Suspect:
    mine = [
        (chance, one.sizes[one.causes.index(cause)])
        for chance, one in zip(chances, settled, strict=True)
        if cause in one.causes
    ]
    total = sum(chance for chance, _ in mine)
    known = [one for one in shifts if one.cause is cause]
    if not total or not known:
        return Suspect(cause=cause, probability=0.0, size=math.nan, share_of_gap=0.0)
    size = math.exp(sum(chance * math.log(found) for chance, found in mine) / total)
    order = sorted(known, key=lambda one: one.size)
    mean_s = float(np.interp(math.log(size), [math.log(one.size) for one in order], [one.mean_s for one in order]))
    gap_s = measured_s - expected_s
    share = (mean_s - expected_s) / gap_s if gap_s > 0.0 else 0.0
    return Suspect(cause=cause, probability=total, size=size, share_of_gap=min(max(share, 0.0), 1.0))


_LOADS: tuple[tuple[str, Callable[[int, int, int], tuple[int, int, int, int]]], ...] = (
    ("one user, so that nothing waits", lambda i, o, n: (1, i, o, 8)),
    ("one user and answers of two tokens: prompts alone", lambda i, o, n: (1, i, 2, 16)),
    ("one user, short prompts, long answers: decode steps alone", lambda i, o, n: (1, 32, max(o, 128), 4)),
    ("half as many users", lambda i, o, n: (max(n // 2, 1), i, o, max(n, 8))),
    ("twice as many users", lambda i, o, n: (2 * n, i, o, 4 * n)),
    ("as many users with short prompts", lambda i, o, n: (n, 32, o, 2 * n)),
)
"""Loads that are cheap to send: in words, and (users, prompt, answer, requests) from prompt, answer and users."""


def _experiment(run: ServedRun, usual: Result, leading: Sequence[Suspect]) -> Experiment | None:
    """The quickest load that tells the two leading causes apart, else the one that does so best."""
    lengths = int(run.requests.input_len.mean()), max(int(run.requests.output_len.mean()), 2)
    users = most_running(usual)
    found: list[Experiment] = []
    for words, load in _LOADS:
        number, prompt, answer, count = load(*lengths, users)
        tried = replace(run, requests=_closed(number, prompt, answer, min(count, 512)))
        try:
            results: list[tuple[Result, Act, float]] = [
                (changed(tried, one.cause.act, one.size, usual).simulated(), one.cause.act, one.size) for one in leading
            ]
        except RacklineError:
            continue
        a, b = (seen_of(*each).logs for each in results)
        known = np.isfinite(a) & np.isfinite(b)
        entries = int(known.sum())
        noise = np.concatenate([np.repeat(_NOISE, len(tried.requests)), _GAP_NOISE])[known]
        independent = entries / (1.0 + _ALIKE * (len(tried.requests) - 1))
        distance = math.sqrt(float((((a - b)[known] / noise) ** 2).mean()) * independent)
        took_s = max(float(np.nanmax(each[0].finish_s)) for each in results)
        options = f"--users {number} --input {prompt} --output {answer} --requests {len(tried.requests)}"
        found.append(Experiment(load=words, options=options, duration_s=took_s, separation=distance))
    telling = [one for one in found if one.tells]
    if telling:
        return min(telling, key=lambda one: one.duration_s)
    return max(found, key=lambda one: one.separation, default=None)


def _closed(users: int, prompt: int, answer: int, count: int) -> Requests:
    """Requests of users who send the next when the last has ended."""
    number = np.arange(count)
    return Requests(
        arrival_s=np.zeros(count),
        input_len=np.full(count, prompt, dtype=np.int64),
        output_len=np.full(count, answer, dtype=np.int64),
        after=np.where(number < users, -1, number - users),
        name=f"{users} users",
    )

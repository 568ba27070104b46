"""Faults that make a server slow: which there are, the server that each makes, and what a client sees of it.

What a client sees of a run is a vector: the time to the first token and the time per output token of each request, and
three percentiles of the time between tokens. Most faults act inside the server and are simulated (`changed`); those of
the frontend, of the load generator and of a neighbour change what is seen of a simulated run (`seen_of`). Under two
faults other loads take unlike times, which is how the next experiment is chosen (`next_experiment`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar, Literal, assert_never

import numpy as np

from rackline.bands.bands import kind_of_model
from rackline.errors import RacklineError
from rackline.files import shipped_toml
from rackline.parallel.precision import Precision, storage_bytes
from rackline.passes import Calibration
from rackline.passes.features import Array
from rackline.simulation import Lengths, Result, closed_loop_of
from rackline.validation.cases import Case
from rackline.validation.observed import KIND, requests_from
from rackline.validation.observed_fit import independence, scaled
from rackline.validation.requests import ServedRun

Act = Literal[
    "exchange", "compute", "experts", "eager", "graphs", "token budget", "sequences", "cache", "prefix cache", "host",
    "frontend", "client", "data type", "drafts", "neighbour", "cores",
]  # fmt: skip
_SIZES = 6  # of a cause that are simulated
_BUSY = 1.0 / 7.0  # share of the time in which a neighbour computes
LEAST_S = 1e-6
_TELLING = 3.0  # standard deviations by which an experiment separates two causes


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
        return tuple(np.geomspace(self.low, self.high, 1 if self.low == self.high else _SIZES).tolist())


@cache
def causes() -> tuple[Cause, ...]:
    """All causes that are known, from `causes.toml`."""
    return tuple(Cause(**entry) for entry in shipped_toml("rackline.validation", "causes.toml")["cause"])


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
            return np.log(np.where(every > 0.0, np.maximum(every, LEAST_S), np.nan))

    def e2e_s(self, output_len: Array) -> Array:
        """Sent to last token, (n,) [s]."""
        return self.ttft_s + np.nan_to_num(self.tpot_s) * (output_len - 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """How far a server without a fault is from its simulation [natural logarithm].

    Args:
        requests: standard deviation of a request: time to the first token, time per output token, (2,).
        gaps: of the 50th, 90th and 99th percentile of the time between tokens, (3,).
        request_shift, gap_shift: mean of ln(measured / simulated) of the same, (2,), (3,).
    """

    requests: Array = field(default_factory=lambda: np.array([0.2, 0.05]))
    gaps: Array = field(default_factory=lambda: np.array([0.05, 0.1, 0.2]))
    request_shift: Array = field(default_factory=lambda: np.zeros(2))
    gap_shift: Array = field(default_factory=lambda: np.zeros(3))

    def noise(self, count: int) -> Array:
        """Standard deviations of all that is seen of a number of requests, (2 count + 3,)."""
        return np.concatenate([np.repeat(self.requests, count), self.gaps])

    def shift(self, count: int) -> Array:
        """Means of the same, (2 count + 3,)."""
        return np.concatenate([np.repeat(self.request_shift, count), self.gap_shift])


def error_when_well(runs: Sequence[tuple[ServedRun, Seen]]) -> Error:
    """How a server differs from its simulation in runs of it when it was well; noise is no less than that of any.

    Args:
        runs: with what was seen of them, at least one.
    """
    least = Error()
    offs = [seen.logs - seen_of(run.simulated()).logs for run, seen in runs]
    parts = [
        np.split(off, [len(run.requests), 2 * len(run.requests)]) for off, (run, _) in zip(offs, runs, strict=True)
    ]
    each = [np.concatenate([part[place] for part in parts]) for place in (0, 1)]
    each = [one[np.isfinite(one)] for one in each]
    gaps = np.array([part[2] for part in parts])
    gaps = gaps[np.isfinite(gaps).all(axis=1)]
    return Error(
        requests=np.maximum(least.requests, [float(one.std()) if len(one) else 0.0 for one in each]),
        gaps=np.maximum(least.gaps, gaps.std(axis=0, ddof=1)) if len(gaps) > 1 else least.gaps,
        request_shift=np.array([float(one.mean()) if len(one) else 0.0 for one in each]),
        gap_shift=gaps.mean(axis=0) if len(gaps) else least.gap_shift,
    )


_NEEDS: Mapping[str, Callable[[ServedRun], bool]] = {
    "": lambda run: True,
    "several chips": lambda run: run.deployment.layout.num_chips > 1,
    "experts": lambda run: kind_of_model(run.deployment.model) != "dense",
    "graphs": lambda run: not run.stack.graphs.eager_decode and run.deployment.cluster.chip.generation != "cpu",
    "shared prefixes": lambda run: run.cache.prefix_caching and run.requests.hashes is not None,
    # llama.cpp gives each slot a part of its own: a request waits for a slot alone
    "a shared cache": lambda run: not run.stack.scheduler.neighbour_passes,
    "a processor": lambda run: run.deployment.cluster.chip.generation == "cpu",
    # a host that runs the passes itself is slow in all of them: the cause `cores`
    "an accelerator": lambda run: run.deployment.cluster.chip.generation != "cpu",
    "a narrow data type": lambda run: _wider(run) is not None,
    "drafts": lambda run: run.speculation.draft_tokens > 0,
}


def happens(cause: Cause, run: ServedRun) -> bool:
    """Whether a cause can occur in this deployment and load."""
    return _NEEDS[cause.needs](run)


def changed(run: ServedRun, act: Act, size: float, usual: Result) -> ServedRun:
    """The server that a cause makes.

    Args:
        size: in the unit of the cause.
        usual: the run without it, for what is relative to the load.
    """
    deployment, stack, drafts = run.deployment, run.stack, run.speculation
    numbers, budget = deployment.calibration, stack.scheduler.max_batched_tokens
    longest = int((run.requests.input_len + run.requests.output_len).max()) + 2 * run.cache.block_size

    def calibrated(found: Calibration) -> ServedRun:
        return replace(run, deployment=replace(deployment, calibration=found))

    def served(values: Mapping[str, Any]) -> ServedRun:
        return replace(run, stack=stack.with_values(values))

    def cached(**values: Any) -> ServedRun:
        return replace(run, cache=replace(run.cache, **values))

    servers: dict[Act, Callable[[], ServedRun]] = {
        "exchange": lambda: calibrated(exchanging(numbers, size)),
        "compute": lambda: calibrated(scaled(numbers, 1.0, size, 1.0)),
        "experts": lambda: calibrated(_of_experts(numbers, size)),
        "neighbour": lambda: calibrated(scaled(numbers, *[_mean_beside(size)] * 3)),
        "cores": lambda: calibrated(scaled(numbers, size, size, size)),
        "eager": lambda: served(
            {
                "graphs.eager_decode": True,
                "graphs.captured_tokens": 0,
                "graphs.captured_prompt_tokens": 0,
                "graphs.eager_s_per_layer": size,
            }
        ),
        "graphs": lambda: served(
            {
                "graphs.captured_tokens": max(round(size), 1),
                "graphs.eager_s_per_layer": max(stack.graphs.eager_s_per_layer, 7.5e-4),
            }
        ),
        "token budget": lambda: served(
            {"scheduler.max_batched_tokens": max(min(round(size), budget), run.cache.block_size)}
        ),
        "sequences": lambda: served({"scheduler.max_num_seqs": max(round(size * most_running(usual)), 1)}),
        # the smallest that still holds the longest request
        "cache": lambda: cached(pool_tokens=max(round(size * _most_tokens(usual)), longest)),
        "prefix cache": lambda: cached(prefix_caching=False),
        "host": lambda: calibrated(replace(numbers, host_s_per_step=numbers.host_s_per_step + size)),
        "data type": lambda: replace(
            run, deployment=replace(deployment, precision=_wider(run) or deployment.precision)
        ),
        "drafts": lambda: replace(
            run, speculation=replace(drafts, tokens_per_step=1.0 + (drafts.tokens_per_step - 1.0) * size)
        ),
        "frontend": lambda: run,
        "client": lambda: run,
    }
    return servers[act]()


def _mean_beside(size: float) -> float:
    """Mean time beside a neighbour that slows what it meets `size` times, over that without it [1]."""
    return 1.0 + _BUSY * (size - 1.0)


def _of_experts(numbers: Calibration, slower: float) -> Calibration:
    own = {key: one for key, one in numbers.operations.items() if key[0] in ("moe", "padded_moe")}
    slow = scaled(replace(numbers, operations=own), slower, slower, slower).operations
    return replace(numbers, operations={**numbers.operations, **slow})


def exchanging(numbers: Calibration, slower: float) -> Calibration:
    """A calibration whose exchanges take `slower` times as long."""
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


def _wider(run: ServedRun) -> Precision | None:
    """The deployment's data types with weights and products in 16 bits; None where they already are."""
    types = run.deployment.precision
    if min(storage_bytes(types.linear_weights), storage_bytes(types.expert_weights)) >= storage_bytes("bf16"):
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


def beside_of(starts: Array, ends: Array) -> Array:
    """Mean number of intervals that are open during each, itself included, (n,)."""
    times, open_now = _integral(starts, ends, np.ones(len(starts)))
    area = np.concatenate([[0.0], np.cumsum(open_now[:-1] * np.diff(times))])
    within = np.interp(ends, times, area) - np.interp(starts, times, area)
    return np.maximum(within / np.maximum(ends - starts, LEAST_S), 1.0)


def seen_of(result: Result, act: Act | None = None, size: float = 1.0) -> Seen:
    """What a client sees of a simulated run, with what a cause does outside of the engine."""
    spread = result.inter_token_s()
    gaps = np.array([spread["p50"], spread["p90"], spread["p99"]])
    seen = Seen(ttft_s=np.array(result.ttft_s), tpot_s=np.array(result.tpot_s), gaps_s=gaps)
    return seen if act is None else outside(seen, result, act, size)


def outside(seen: Seen, result: Result, act: Act, size: float) -> Seen:
    """What is seen of a run with what a cause does outside of the engine; `seen` itself where it does nothing there."""
    match act:
        case "neighbour":
            return replace(seen, gaps_s=seen.gaps_s * np.array([1.0, size, size]) / _mean_beside(size))
        case "frontend":
            return replace(seen, ttft_s=seen.ttft_s + _in_queue(result, size))
        case "client":
            beside = beside_of(result.first_s, result.finish_s)
            each = size * float(np.nanmedian(seen.tpot_s / beside))  # time to read one token
            slow = np.fmax(seen.tpot_s, each * beside)
            longer = float(np.nanmedian(slow / seen.tpot_s))
            return Seen(ttft_s=seen.ttft_s + each * beside, tpot_s=slow, gaps_s=seen.gaps_s * longer)
        case (
            "exchange" | "compute" | "cores" | "experts" | "eager" | "graphs" | "token budget" | "sequences" | "cache"
            | "prefix cache" | "host" | "data type" | "drafts"
        ):  # fmt: skip
            return seen
        case _:
            assert_never(act)


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


_LOADS: tuple[tuple[str, Callable[[int, int, int], tuple[int, int, int, int]]], ...] = (
    ("one user, so that nothing waits", lambda i, o, n: (1, i, o, 8)),
    ("one user and answers of two tokens: prompts alone", lambda i, o, n: (1, i, 2, 16)),
    ("one user, short prompts, long answers: decode steps alone", lambda i, o, n: (1, 32, max(o, 128), 4)),
    ("half as many users", lambda i, o, n: (max(n // 2, 1), i, o, max(n, 8))),
    ("twice as many users", lambda i, o, n: (2 * n, i, o, 4 * n)),
    ("as many users with short prompts", lambda i, o, n: (n, 32, o, 2 * n)),
)
"""Loads that are cheap to send: in words, and (users, prompt, answer, requests) from prompt, answer and users."""


def next_experiment(
    run: ServedRun, usual: Result, leading: Sequence[tuple[Cause, float]], error: Error
) -> Experiment | None:
    """The quickest load that tells two causes apart, else the one that does so best.

    Args:
        usual: the run without a fault.
        leading: the two causes with their sizes.
        error: of the server without a fault.
    """
    lengths = int(run.requests.input_len.mean()), max(int(run.requests.output_len.mean()), 2)
    users = most_running(usual)
    found: list[Experiment] = []
    for words, load in _LOADS:
        number, prompt, answer, count = load(*lengths, users)
        lengths_of = Lengths(input_len=prompt, output_len=answer)
        tried = replace(run, requests=closed_loop_of(np.random.default_rng(0), min(count, 512), number, lengths_of))
        try:
            results: list[tuple[Result, Act, float]] = [
                (changed(tried, cause.act, size, usual).simulated(), cause.act, size) for cause, size in leading
            ]
        except RacklineError:
            continue
        a, b = (seen_of(*each).logs for each in results)
        known = np.isfinite(a) & np.isfinite(b)
        noise = error.noise(len(tried.requests))[known]
        independent = int(known.sum()) * independence(len(tried.requests))
        distance = math.sqrt(float((((a - b)[known] / noise) ** 2).mean()) * independent)
        took_s = max(float(np.nanmax(each[0].finish_s)) for each in results)
        options = f"--users {number} --input {prompt} --output {answer} --requests {len(tried.requests)}"
        found.append(Experiment(load=words, options=options, duration_s=took_s, separation=distance))
    telling = [one for one in found if one.tells]
    if telling:
        return min(telling, key=lambda one: one.duration_s)
    return max(found, key=lambda one: one.separation, default=None)

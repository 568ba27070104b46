"""Whether the compiled loop of `kernel` can run a simulation, and the arrays that it works on."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from rackline.passes import ExpertLoad, TimeTable
from rackline.passes import features as f
from rackline.passes.features import Array
from rackline.simulation.clock import TableClock
from rackline.simulation.loop_arrays import (
    Around,
    Chunks,
    Columns,
    Limits,
    Log,
    PassLine,
    PassTimes,
    Requested,
    Running,
    Served,
    new_state,
)
from rackline.simulation.policies import Policy
from rackline.simulation.rank_spec import RankSpec

# Loading the compiled loop takes about a second, compiling it (once per machine) about six.
LEAST_REQUESTS = 20_000
LEAST_REQUESTS_UNCOMPILED = 200_000
PIECE = 20_000  # requests between two checks for progress and interruptions


@dataclass(frozen=True, slots=True)
class FastRun:
    """Result of the compiled loop; unknown times are NaN."""

    admitted_s: Array
    first_s: Array
    finish_s: Array
    preempted: Array
    gaps: dict[int, int]
    steps: int
    passes: int
    finished: int
    busy_s: float
    sequence_s: float
    used_s: float
    blocks_left: int
    samples: Array
    interrupted: bool


def available() -> bool:
    """Whether the compiler is installed (extra `fast`)."""
    return importlib.util.find_spec("numba") is not None


def is_worth_it(count: int) -> bool:
    """Whether the compiled loop saves more time than it takes to load, or to compile if it is not in the cache."""
    if count < LEAST_REQUESTS or not available():
        return False
    compiled = any(Path(__file__).with_name("__pycache__").glob("kernel.advance-*.nbi"))
    return compiled or count >= LEAST_REQUESTS_UNCOMPILED


def is_plain(policy: Policy, spec: RankSpec) -> bool:
    """Whether the compiled loop supports this policy and rank."""
    return (
        (policy.order, policy.passes, policy.chunked, policy.interval_s) == (None, "mixed", True, 0.0)
        and (spec.reserve or policy.reserve) == "chunk"
        and not spec.prefix_caching
        and not spec.swap_tokens_per_s
        and spec.adapters is None
        and not spec.neighbour_passes
    )


def is_plain_clock(clock: object, spec: RankSpec) -> bool:
    """Whether the loop can time its passes: one stream of rows, full attention, no drafts, linear decode steps."""
    if not isinstance(clock, TableClock) or clock.draft is not None or clock.verified != 1 or clock.two_batch_overlap:
        return False
    around = clock.engine.stack
    if spec.fixed_tokens or around.eager_decode or around.graph_tokens or around.host_s_per_sequence:
        return False
    if not clock.table.kinds:
        return False
    if any(not kind.causal or kind.a or kind.b != 1.0 or kind.start for kind in clock.table.kinds):
        return False
    table = clock.engine.table
    load = table.experts
    if load is not None and not isinstance(load, ExpertLoad):
        return False
    if len(table.time_table().streams) != 1:
        return False
    for n in range(1, spec.max_num_seqs + 1):
        line = clock.line(n, n)
        if line is None or line.from_kv > n:
            return False
    return True


def run_fast(
    clock: TableClock, spec: RankSpec, arrivals: Array, inputs: Array, outputs: Array, progress: Any = None
) -> FastRun:
    """Serve independent requests on one rank, with chunked prefill, first come, first served.

    Args:
        clock, spec: as `is_plain_clock` and `is_plain` accept them.
        arrivals: when the scheduler sees each request, ascending [s], (n,).
        inputs, outputs: prompt and output lengths [tokens], (n,).
        progress: called from time to time with (requests done, all requests, simulated time).
    """
    k: Any = importlib.import_module("rackline.simulation.kernel")

    seqs = spec.max_num_seqs
    state = new_state()
    limits = Limits(spec.num_blocks, seqs, spec.max_batched_tokens, len(arrivals))
    requested = Requested(arrivals.astype(float), inputs.astype(np.int64), outputs.astype(np.int64))
    served, log = Served.none(limits.requests), Log.none()
    running, chunks = Running.none(seqs, spec.block_size), Chunks.none(seqs)
    stack = np.zeros(seqs + 2, dtype=np.int64)
    times = _times(clock, seqs)
    interrupted = False
    stops = [*requested.arrival_s[PIECE::PIECE].tolist(), inf]  # interruptions are checked between two pieces
    try:
        for until in stops:
            k.advance(until, limits, state, requested, served, running, stack, chunks, log, times)
            if progress is not None:
                progress(int(state["finished"][0]), limits.requests, float(state["now"][0]))
    except KeyboardInterrupt:
        interrupted = True
    end = state[0]
    return FastRun(
        admitted_s=served.admitted_s,
        first_s=served.first_s,
        finish_s=served.finish_s,
        preempted=served.preempted,
        gaps={int(place) - k.GAP_ZERO: int(log.gaps[place]) for place in np.flatnonzero(log.gaps)},
        steps=int(end["steps"]),
        passes=int(end["passes"]),
        finished=int(end["finished"]),
        busy_s=float(end["busy_s"]),
        sequence_s=float(end["sequence_s"]),
        used_s=float(end["used_s"]),
        blocks_left=int(end["used"]),
        samples=log.samples[: int(end["samples"])],
        interrupted=interrupted,
    )


def _times(clock: TableClock, seqs: int) -> PassTimes:
    """Arrays that time a pass of up to `seqs` sequences: decode lines, features, expert load, coefficients."""
    table = clock.engine.table
    times = table.time_table()
    place = {name: index for index, name in enumerate(times.feature_names)}
    place.setdefault(f.GROUP_TOKENS, len(place))

    def at(*names: str) -> Array:
        return np.array([place.get(name, -1) for name in names], dtype=np.int64)

    decode = np.zeros((seqs + 1, 3))
    for n in range(1, seqs + 1):
        line = clock.line(n, n)
        if line is not None:
            decode[n] = line.base_s, line.per_kv_s, line.per_longest_s
    of_pass = at(
        f.ONE, f.TOKENS, f.LOGIT_ROWS, f.GROUP_TOKENS, f.DECODE_SEQUENCES, f.DECODE_TOKENS, f.HAS_DECODE,
        f.HAS_PREFILL, f.CHUNK_TOKENS, f.PREFILL_TOKENS, f.CHUNK_PREFIX_TOKENS,
    )  # fmt: skip
    of_kinds = [
        at(f.kv_tokens(kind.label), f.kv_pairs(kind.label), f.max_context(kind.label), f.attention_pairs(kind.label))
        for kind in clock.table.kinds
    ]
    load = table.experts
    loads, touched = np.zeros(0), np.zeros(0)
    if isinstance(load, ExpertLoad):
        loads = np.concatenate([[load.points_per_octave], load.tokens_per_token])
        touched = np.asarray(load.touched, dtype=float)
    of_experts = at(f.GROUP_TOKENS, f.EXPERT_TOKENS, f.EXPERTS_TOUCHED)
    return PassTimes(
        decode=decode,
        columns=Columns(of_pass, np.array(of_kinds, dtype=np.int64), of_experts, loads, touched),
        line=line_arrays(times, place),
        around=Around(
            float(clock.table.skew_s),
            float(clock.table.stage_imbalance),
            float(clock.engine.stack.prefill_slowdown),
            float(clock.floor_s),
            float(clock.engine.stack.prompt_graph_tokens),
        ),
        x=np.zeros(len(place)),
    )


def line_arrays(times: TimeTable, place: Mapping[str, int]) -> PassLine:
    """Coefficients of a pass with one stream as `kernel` reads them: linear parts, absolute differences, alternatives.

    Args:
        times: time table of one layout.
        place: feature → column.
    """
    (stream,) = times.streams
    width = len(place)

    def wide(rows: Array) -> Array:
        return np.ascontiguousarray(np.pad(np.atleast_2d(rows), ((0, 0), (0, width - rows.shape[-1]))))

    starts, ramps = [0], list[float]()
    options, gaps, overheads = ([np.zeros((0, width))] for _ in range(3))
    for choice in stream.choices:
        number = choice.linear.shape[1]
        starts.append(starts[-1] + number)
        options.append(wide(choice.linear[0]))
        gaps.append(wide(choice.difference[0]))
        ramps += [float(choice.ramp[0, i, 0]) for i in range(number)]
        overheads.append(wide(choice.overhead[0]))
    linear = wide(stream.linear[0])[0].copy()
    linear[place[f.ONE]] += times.host_s
    return PassLine(
        linear,
        wide(stream.difference[0]) if stream.difference.shape[1] else np.zeros((0, width)),
        np.array(starts, dtype=np.int64),
        np.concatenate(options),
        np.concatenate(gaps),
        np.array(ramps, dtype=float),
        np.concatenate(overheads),
    )

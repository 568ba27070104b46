"""The arrays of the compiled loop of `kernel`, grouped into named tuples, which numba accepts directly."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rackline.passes.features import Array

MOST_SAMPLES = 4096
NUM_GAPS = 8000  # bins of the histogram of inter-token times
NOTHING, ENDLESS = -(1 << 60), 1 << 60

STATE = np.dtype(
    [
        ("running", np.int64),  # decoding sequences
        ("base_sum", np.int64),  # sum of their bases; the context of a sequence is its base plus the clock
        ("clock", np.int64),  # decode steps so far
        ("used", np.int64),  # KV blocks
        ("head", np.int64),  # next request that has not been admitted yet
        ("stacked", np.int64),  # waiting preempted requests
        ("partial", np.int64),  # request whose prompt is partly computed, or -1
        ("partial_done", np.int64),  # its tokens so far
        ("partial_held", np.int64),  # its KV blocks
        ("admissions", np.int64),
        ("steps", np.int64),
        ("passes", np.int64),
        ("finished", np.int64),
        ("longest_base", np.int64),  # of the decoding sequences
        ("next_end", np.int64),  # clock at which the first decoding sequence finishes
        ("samples", np.int64),
        ("now", np.float64),
        ("busy_s", np.float64),
        ("sequence_s", np.float64),  # decoding sequences × time
        ("used_s", np.float64),  # KV blocks × time
        ("next_sample", np.float64),
        ("sample_s", np.float64),
    ]
)
"""The mutable state, as one record [tokens, blocks, counts, s]."""


class Limits(NamedTuple):
    """Limits of a rank: KV blocks, sequences, tokens per pass; and the number of requests."""

    blocks: int
    sequences: int
    tokens: int
    requests: int


class Requested(NamedTuple):
    """Arrival times, ascending [s], and prompt and output lengths [tokens], (n,) each."""

    arrival_s: Array
    input_len: Array
    output_len: Array


class Served(NamedTuple):
    """Outcome of each request, (n,) each: times are NaN until they are known [s].

    `stopped_s` is when it was preempted while decoding, `generated` its tokens before that, `order` its place in the
    order of admission.
    """

    admitted_s: Array
    first_s: Array
    finish_s: Array
    stopped_s: Array
    generated: Array
    preempted: Array
    order: Array

    @classmethod
    def none(cls, count: int) -> Served:
        """Arrays for `count` requests, nothing known yet."""
        unknown = [np.full(count, np.nan) for _ in range(4)]
        nothing = [np.zeros(count, dtype=np.int64) for _ in range(3)]
        return cls(*unknown, *nothing)


class Running(NamedTuple):
    """Decoding sequences, one per slot; `phases` counts them by the position of their next token in a block."""

    request: Array
    base: Array
    end: Array
    order: Array
    phases: Array

    @classmethod
    def none(cls, sequences: int, block_size: int) -> Running:
        """Empty slots for `sequences` sequences."""
        sizes = [sequences + 1] * 4 + [block_size]
        return cls(*(np.zeros(size, dtype=np.int64) for size in sizes))


class Chunks(NamedTuple):
    """Chunks of prompts in a pass: request, tokens taken, tokens done before."""

    request: Array
    take: Array
    done: Array

    @classmethod
    def none(cls, sequences: int) -> Chunks:
        """Room for one chunk per sequence."""
        return cls(*(np.zeros(sequences + 1, dtype=np.int64) for _ in range(3)))


class Log(NamedTuple):
    """Histogram of inter-token times, and samples of (time, running, waiting, used blocks)."""

    gaps: Array
    samples: Array

    @classmethod
    def none(cls) -> Log:
        """An empty log."""
        return cls(np.zeros(NUM_GAPS, dtype=np.int64), np.zeros((MOST_SAMPLES, 4)))


class Columns(NamedTuple):
    """Columns of the features of a pass (-1 where the table has no such feature), and the expert load.

    `of_pass` is in the order of `kernel`; `of_kinds` has one row per kind of attention; `of_experts` is (tokens of a
    group, tokens of the busiest rank, experts touched there).
    """

    of_pass: Array
    of_kinds: Array
    of_experts: Array
    loads: Array
    touched: Array


class PassLine(NamedTuple):
    """Coefficients of a pass with one stream: linear and |difference| parts, and the alternatives of each choice."""

    linear: Array
    difference: Array
    starts: Array
    options: Array
    gaps: Array
    ramps: Array
    overheads: Array


class Around(NamedTuple):
    """Adjustments of a pass with prompts: fixed time [s], stage imbalance, prefill slowdown, least time [s], and the
    largest pass that has neither of the last two [tokens]."""

    skew_s: float
    stage_imbalance: float
    prefill_slowdown: float
    floor_s: float
    graph_tokens: float


class PassTimes(NamedTuple):
    """Everything that times a pass: (constant, per KV token, per longest context) of n decoding sequences;
    coefficients.

    `x` is the feature vector, overwritten by each pass with prompts.
    """

    decode: Array
    columns: Columns
    line: PassLine
    around: Around
    x: Array


def new_state() -> Any:
    """State of an empty server at time zero, as an array of one record."""
    state = np.zeros(1, dtype=STATE)
    state["partial"] = -1
    state["next_end"] = ENDLESS
    return state

"""The arrays of the compiled loop of `kernel`, grouped by nouns: named tuples, which numba accepts directly."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rackline.passes.features import Array

MOST_SAMPLES = 4096
NUM_GAPS = 8000  # bins of the histogram of inter-token times
NOTHING, ENDLESS = -(1 << 60), 1 << 60

STATE = np.dtype(
    [
        ("running", np.int64),  # sequences that decode
        ("base_sum", np.int64),  # of their bases: context of a sequence is its base plus the clock
        ("clock", np.int64),  # decode steps so far
        ("used", np.int64),  # KV blocks
        ("head", np.int64),  # next request that was never admitted
        ("stacked", np.int64),  # preempted requests that wait
        ("partial", np.int64),  # request whose prompt is not whole yet, or -1
        ("partial_done", np.int64),  # its tokens so far
        ("partial_held", np.int64),  # its KV blocks
        ("admissions", np.int64),
        ("steps", np.int64),
        ("passes", np.int64),
        ("finished", np.int64),
        ("longest_base", np.int64),  # of what decodes
        ("next_end", np.int64),  # clock at which the first of what decodes is finished
        ("samples", np.int64),
        ("now", np.float64),
        ("busy_s", np.float64),
        ("sequence_s", np.float64),  # decoding sequences × time
        ("used_s", np.float64),  # KV blocks × time
        ("next_sample", np.float64),
        ("sample_s", np.float64),
    ]
)
"""Numbers that change, as one record [tokens, blocks, counts, s]."""


class Limits(NamedTuple):
    """What a rank holds and takes: KV blocks, sequences, tokens of a pass; and how many requests come."""

    blocks: int
    sequences: int
    tokens: int
    requests: int


class Requested(NamedTuple):
    """When each request arrives, rising [s], and its prompt and answer [tokens]."""

    arrival_s: Array
    input_len: Array
    output_len: Array


class Served(NamedTuple):
    """What becomes of each request: times are NaN until they are known [s].

    `stopped_s` is when it was preempted while decoding, `generated` its tokens before that, `order` of admission.
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
        """Nothing is known yet."""
        unknown = [np.full(count, np.nan) for _ in range(4)]
        nothing = [np.zeros(count, dtype=np.int64) for _ in range(3)]
        return cls(*unknown, *nothing)


class Running(NamedTuple):
    """Sequences that decode, one a place; `phases` counts them by where in a block their next token falls."""

    request: Array
    base: Array
    end: Array
    order: Array
    phases: Array

    @classmethod
    def none(cls, sequences: int, block_size: int) -> Running:
        """Room for a number of sequences."""
        sizes = [sequences + 1] * 4 + [block_size]
        return cls(*(np.zeros(size, dtype=np.int64) for size in sizes))


class Chunks(NamedTuple):
    """Pieces of prompts in a pass: request, tokens taken, tokens done before."""

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
        """An empty one."""
        return cls(np.zeros(NUM_GAPS, dtype=np.int64), np.zeros((MOST_SAMPLES, 4)))


class Columns(NamedTuple):
    """Where the features of a pass stand (-1 where the table has no such feature), and the experts' load.

    `of_pass` in the order of `kernel`, `of_kinds` a row a kind of attention, `of_experts` (tokens of a group, of the
    busiest rank, experts touched there).
    """

    of_pass: Array
    of_kinds: Array
    of_experts: Array
    loads: Array
    touched: Array


class PassLine(NamedTuple):
    """The line of a pass with one stream: linear and |difference| parts, and alternatives (options) a choice."""

    linear: Array
    difference: Array
    starts: Array
    options: Array
    gaps: Array
    ramps: Array
    overheads: Array


class Around(NamedTuple):
    """What stands around a pass with prompts: fixed time [s], factor, factor of what is not decode, floor [s] and
    tokens of the largest pass without it."""

    skew_s: float
    stage_imbalance: float
    prefill_slowdown: float
    floor_s: float
    graph_tokens: float


class PassTimes(NamedTuple):
    """All that times a pass: (constant, per KV token, per longest context) of n decoding sequences; the whole line.

    `x` is the vector of features that each pass with prompts writes anew.
    """

    decode: Array
    columns: Columns
    line: PassLine
    around: Around
    x: Array


def new_state() -> Any:
    """An empty server at time zero, as an array of one record."""
    state = np.zeros(1, dtype=STATE)
    state["partial"] = -1
    state["next_end"] = ENDLESS
    return state

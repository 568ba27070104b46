"""The most requests per second that the passes of a deployment allow, under any scheduler.

A replica's ranks and micro-batches step together, and a pass takes as long as the slowest of them. So over a long time
T its passes last at least as long as those of the mean rank: with n_k sequences decoding and c_k prompt tokens in pass
k, and X requests served,

    T = sum t_k,    sum n_k = X · (output_len - 1) / tokens per step,    sum c_k = X · new tokens

**Decoding.** t_k is at least the step of n_k sequences alone, so a token takes sum t_k / sum n_k >= E[step(n) / n] of a
replica's time, on average over tokens. A sequence waits in each of its steps for the whole pass, so E[step(n)] is at
most its time per output token. Both hold for any sequence of batches; the least of E[step(n) / n] with E[step(n)] up to
the limit is the lower convex envelope of the points (step(n), step(n) / n), n up to the slots, at the limit. A
percentile limits that share of the requests; the others may be as slow as they like.

**Prompts.** A pass takes at least as long as the arithmetic of its prompt tokens: at least the marginal time of a
prompt in a large pass, in which weights, launches and latencies are spread over the most tokens.

Schedulers that run prompts in passes of their own take the sum of both. Where prompts and decode tokens share passes,
prompts may use the arithmetic that decoding leaves idle: it is at least the longer of both.

Sources: Dantzig 1957 for the envelope (a linear programme with one constraint mixes two of its columns); Williams et
al. 2009, roofline, for the longer of traffic and arithmetic.
"""

from __future__ import annotations

import numpy as np

from rackline.passes.features import Array, as_array
from rackline.search.served import Group
from rackline.serving.workload import Workload
from rackline.simulation import Pool, TableClock
from rackline.simulation.clock import Chunk, Clock
from rackline.system import Constraints

_EVERY = 16  # sequences up to which each number is evaluated; then in steps of _RATIO
_RATIO = 1.05
_LARGE = 1 << 17  # tokens of a pass in which nothing but arithmetic and traffic of its tokens counts


def most_requests_per_s(group: Group, limits: Constraints) -> float:
    """Upper bound of the rate of a deployment within its limit on the time per output token [requests/s].

    The limit on the time to first token is left out. 0 where not even a sequence that is alone is fast enough.
    """
    work, pool = group.workload, group.pool
    decoding = _outputs(work) * decode_s(pool, work, limits)
    if group.prefill is not None:
        front = group.prefill.pool
        return group.copies * min(pool.replicas / decoding, front.replicas / prompt_s(front, work))
    parts = decoding, prompt_s(pool, work)
    return group.copies * pool.replicas / (max(parts) if pool.policy.passes == "mixed" else sum(parts))


def decode_s(pool: Pool, work: Workload, limits: Constraints) -> float:
    """Lower bound of a replica's time per output token, over all sequences that decode in it [s].

    Steps are those at the shortest context where they are held against the limit, and at the mean one where they are
    added up: requests may be short where many decode together.
    """
    clock, total = pool.clock, _totals(pool, work)
    short, mean = _contexts(clock, work)
    # of some sequences on all ranks, the fullest rank has at least the mean number, rounded up
    shortest, each = (
        np.array([_step_s(clock, -(-count // pool.ranks), context, float(count * clock.verified)) for count in total])
        for context in (short, mean)
    )
    # any number between two of these takes at least the step of the smaller, for less than the larger
    per_step = (np.append(total[1:], total[-1] + 1) - 1.0) * pool.micro_batches * clock.tokens_per_step
    per_token = each / per_step
    limit_s, least = limits.tpot_s, float(np.min(per_token))
    if limit_s is None:
        return least
    share_kept, longer = _within(work, limits.tpot_percentile)
    kept = _envelope(shortest / clock.tokens_per_step, per_token, limit_s * longer)
    return kept if np.isinf(kept) else share_kept * kept + (1.0 - share_kept) * least


def prompt_s(pool: Pool, work: Workload) -> float:
    """Lower bound of a replica's time per prompt [s]."""
    clock = pool.clock
    new = max(round(work.new_tokens), 1)
    before = max(round(work.input_len) - new, 0)

    def pass_s(prompts: int) -> float:
        chunks = [Chunk(new, before)] * prompts
        return clock.prompts(0, 0.0, 0.0, chunks, float(pool.ranks * prompts * new), 0.0)

    most = max(_LARGE // new, 2)
    counts = [*np.unique(np.geomspace(1, most, 8).astype(int)).tolist(), 2 * most]
    seconds = [pass_s(count) for count in counts]
    marginal = (seconds[-1] - seconds[-2]) / (counts[-1] - counts[-2])
    least = min(marginal, *(second / count for second, count in zip(seconds, counts, strict=True)))
    if isinstance(clock, TableClock):
        stack = clock.engine.stack
        # decode tokens beside them, or a CUDA graph, keep a pass from slowing down
        if stack.held_tokens or pool.policy.passes == "mixed":
            least /= max(stack.prefill_slowdown, 1.0)
    return least / (pool.ranks * pool.micro_batches)


def _outputs(work: Workload) -> float:
    """Decode tokens of a request on average [tokens]."""
    return work.output_len - 1.0


def _totals(pool: Pool, work: Workload) -> list[int]:
    """Sequences on all ranks that share a pass: one, and more up to what has a slot and a place in memory."""
    most = pool.spec.max_num_seqs
    if pool.spec.grows:
        shortest = work.input_len if work.mixture is None else float(np.min(work.mixture.input_len))
        most = max(min(most, int(pool.spec.pool_tokens // shortest)), 1)
    most *= pool.ranks
    count = int(np.log(max(most / _EVERY, 1.0)) / np.log(_RATIO)) + 2
    found = {*range(1, _EVERY + 1), *np.geomspace(_EVERY, max(most, _EVERY), count).astype(int).tolist(), most}
    return sorted(total for total in found if total <= most)


def _contexts(clock: Clock, work: Workload) -> tuple[float, float]:
    """The shortest context of a step, and the mean one over all tokens, at which it reads no more than they do."""
    inputs, outputs, shares = (
        (np.array([work.input_len]), np.array([work.output_len]), np.ones(1))
        if work.mixture is None
        else (work.mixture.input_len, work.mixture.output_len, work.mixture.shares)
    )
    short = float(np.min(inputs))
    tokens = shares * (outputs - 1.0)
    mean = float(tokens @ (inputs + 0.5 * (outputs - 2.0)) / tokens.sum())
    kinds = clock.table.kinds if isinstance(clock, TableClock) else ()
    return short, mean if all(kind.start <= short for kind in kinds) else short


def _step_s(clock: Clock, sequences: int, context: float, group_tokens: float) -> float:
    """A decode step of a rank whose sequences have one context [s]."""
    line, kv = clock.line(sequences, group_tokens), sequences * context
    if line is not None and kv >= line.from_kv and context >= line.from_context:
        return line.base_s + line.per_kv_s * kv + line.per_longest_s * context
    return float(clock.steps(np.full(sequences, context), np.zeros(1), group_tokens)[0])


def _within(work: Workload, percentile: float | None) -> tuple[float, float]:
    """Share of the tokens that keep a limit on requests, and how far their mean may be above it [ratio].

    Long answers have more of the tokens than of the requests, by their length over the mean.
    """
    heavy = 1.0
    if work.mixture is not None:
        heavy = float(np.max(work.mixture.output_len) - 1.0) / _outputs(work)
    if percentile is None:
        return 1.0, heavy
    return max(1.0 - heavy * (1.0 - percentile / 100.0), 0.0), 1.0


def _envelope(x: Array, y: Array, at: float) -> float:
    """The lower convex envelope of points, nowhere rising, at a place; infinite before the first of them."""
    if at < float(np.min(x)):
        return float("inf")
    order = np.lexsort((y, x))
    hull: list[tuple[float, float]] = []
    for px, py in zip(as_array(x[order]).tolist(), np.minimum.accumulate(y[order]).tolist(), strict=True):
        while len(hull) > 1 and (hull[-1][0] - hull[-2][0]) * (py - hull[-2][1]) <= (hull[-1][1] - hull[-2][1]) * (
            px - hull[-2][0]
        ):
            hull.pop()
        if not hull or px > hull[-1][0]:
            hull.append((px, py))
    return float(np.interp(at, [point[0] for point in hull], [point[1] for point in hull]))

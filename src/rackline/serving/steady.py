"""Continuous batching in steady state: every slot is decoding, and finished requests are replaced by new prompts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from rackline.passes import Batch, PassTable, TimeTable
from rackline.passes.features import ONE, Array, FloatLike, as_array
from rackline.serving.prompt_queue import busiest_share
from rackline.serving.stack import IDEAL, Stack
from rackline.serving.workload import PLAIN, Mode, Speculation, Workload, Workloads

_TURNS = 4  # of iterations that each change little


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyState:
    """Latencies of a full engine; floats or arrays (layouts, points).

    Args:
        requests_per_s: rate of a replica, over all its ranks and micro-batches [requests/s].
        decode_s: step without prompt tokens [s].
        mixed_s: step (or extra pass) with prompt tokens [s].
        prefill_share: q, share of steps with prompt tokens on any rank [1].
        tpot_s: time per output token of one request [s].
        ttft_s: time to first token, waiting and prefill of one request [s].
        prompt_s: time per prompt in passes full of prompts [s].
        hold_s: time that a request occupies a slot before it decodes; 0 except with decode first [s].
        prefill_utilisation: load of the prefill path; at 1 the batch cannot be kept full [1].
        prefill_cost_share: share of the engine's time that goes to prompts [1].
    """

    requests_per_s: Array
    decode_s: Array
    mixed_s: Array
    prefill_share: Array
    tpot_s: Array
    ttft_s: Array
    prompt_s: Array
    hold_s: Array
    prefill_utilisation: Array
    prefill_cost_share: Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # compared and hashed as itself: it holds arrays
class Engine:
    """A pass table with the properties of layout and stack that determine the steady state.

    Args:
        table: pass table of one layout or of many.
        attention_dp: ranks with different sequences [count].
        micro_batches: micro-batches in flight in the pipeline [count].
        stage_imbalance: slowest over mean pipeline stage [1].
        num_layers: layers of the model [count].
        stack: the serving stack around the kernels.
        speculation: drafts per step, and the tokens that a step yields.
        draft: pass table of one draft, required with speculation.
    """

    table: PassTable
    attention_dp: FloatLike
    micro_batches: FloatLike = 1.0
    stage_imbalance: FloatLike = 1.0
    num_layers: int = 0
    stack: Stack = IDEAL
    speculation: Speculation = PLAIN
    draft: PassTable | None = None

    def take(self, layouts: Array) -> Engine:
        """The engines of selected layouts, whose quantities have a leading axis of layouts."""

        def pick(value: FloatLike) -> FloatLike:
            return value[layouts] if isinstance(value, np.ndarray) and value.ndim else value

        return replace(
            self,
            table=self.table.take(layouts),
            attention_dp=pick(self.attention_dp),
            micro_batches=pick(self.micro_batches),
            stage_imbalance=pick(self.stage_imbalance),
        )

    def time_table(self, two_batch_overlap: bool) -> TimeTable:
        """The time table under the step policy of the mode."""
        return self.table.time_table("overlap" if two_batch_overlap else self.table.calibration.step_policy)

    def skew_s(self) -> FloatLike:
        """Time that ranks wait for each other in one pass: rank_skew_s · log2(ranks) per all-reduce [s]."""
        for row in self.table.rows:
            if row.choice == "all_reduce" or row.name == "all_reduce":
                calls = as_array(row.launches.get(ONE, 0.0))
                waits = self.stack.kernels.rank_skew_s * calls * np.log2(np.maximum(as_array(row.group_size), 1.0))
                return waits[:, None] if waits.ndim else float(waits)
        return 0.0

    def seconds(self, batch: Batch, times: TimeTable, *, two_batch_overlap: bool, threads: int = 1) -> Array:
        """Time of a pass of one rank by its kernels [s]; without `group_tokens`, all ranks have equal loads.

        Two-batch overlap runs two half batches whose compute and communication overlap: twice the time of one half.
        """
        half = 0.5 if two_batch_overlap else 1.0
        decode = as_array(batch.decode_sequences) * half
        prefill = as_array(batch.prefill_sequences) * half
        tokens = decode * batch.decode_tokens + prefill * batch.chunk_tokens
        work = Batch(
            decode_sequences=decode,
            decode_tokens=batch.decode_tokens,
            context_len=batch.context_len,
            prefill_sequences=prefill,
            chunk_tokens=batch.chunk_tokens,
            prefix_tokens=batch.prefix_tokens,
            group_tokens=tokens * self.attention_dp if batch.group_tokens is None else batch.group_tokens * half,
        )
        device = times.seconds(self.table.features(work), threads=threads) / half
        return (device + self.skew_s()) * self.stage_imbalance

    def with_prompts_s(
        self, decode_s: FloatLike, mixed_s: FloatLike, *, tokens: FloatLike = np.inf, sequences: FloatLike = 0.0
    ) -> Array:
        """A pass with prompts as the stack runs it: with the prefill slowdown, and at least the time of the host [s].

        What a CUDA graph holds is as fast as its kernels.

        Args:
            decode_s: the same pass without its prompts, as the stack runs it; 0 if prompts have a pass of their own
                [s].
            mixed_s: kernel time of the pass [s].
            tokens: tokens of the pass on one rank, which decide whether it fits a CUDA graph [tokens].
            sequences: sequences decoding in it on one rank [sequences].
        """
        alone_s = self.without_host_s(decode_s, sequences)
        slower: FloatLike = self.stack.graphs.prefill_slowdown
        if self.stack.graphs.held_tokens:
            slower = np.where(as_array(tokens) > self.stack.graphs.held_tokens, slower, 1.0)
        stretched = np.maximum(mixed_s - alone_s, 0.0) * slower + alone_s
        return behind(stretched, self.host_s(tokens, sequences, prompts=True))

    def host_s(self, tokens: FloatLike, sequences: FloatLike, *, prompts: bool) -> FloatLike:
        """Host time of a pass [s]: it launches all layers unless a CUDA graph does, and handles the sequences.

        Args:
            tokens, sequences: tokens and sequences of the pass on one rank.
            prompts: whether it has prompt tokens.
        """
        stack = self.stack
        launches_s = self.num_layers * stack.graphs.eager_s_per_layer
        of_sequences_s = stack.host.s_per_sequence * as_array(sequences) if stack.host.s_per_sequence else 0.0
        if not prompts and not stack.graphs.captured_tokens:
            return launches_s * stack.graphs.eager_decode + of_sequences_s
        held = stack.graphs.held_tokens if prompts else stack.graphs.captured_tokens
        return np.where(as_array(tokens) > held, launches_s, 0.0) + of_sequences_s

    def without_host_s(self, decode_s: FloatLike, sequences: FloatLike) -> FloatLike:
        """Kernel time of a decode step, from its time as the stack runs it [s]."""
        stack = self.stack
        if not (stack.graphs.captured_tokens or stack.host.s_per_sequence):
            return decode_s
        host_s = as_array(self.host_s(as_array(sequences) * self.speculation.verified_tokens, sequences, prompts=False))
        return np.maximum(as_array(decode_s) ** 4 - host_s**4, 0.0) ** 0.25

    def decode_s(self, batch: Batch, times: TimeTable, *, two_batch_overlap: bool, threads: int = 1) -> Array:
        """A decode-only pass (with drafts, the verification pass), as the stack runs it [s]."""
        device = self.seconds(batch, times, two_batch_overlap=two_batch_overlap, threads=threads)
        tokens = as_array(batch.decode_sequences) * batch.decode_tokens
        return behind(device, self.host_s(tokens, batch.decode_sequences, prompts=False))

    def pass_s(self, batch: Batch, times: TimeTable) -> Array:
        """A pass with or without prompts, as the stack runs it [s]."""
        if not np.any(as_array(batch.prefill_sequences)):
            return self.decode_s(batch, times, two_batch_overlap=False)
        decoded, prompts = as_array(batch.decode_sequences), as_array(batch.prefill_sequences)
        alone = np.zeros(())
        if np.any(decoded):
            step_s = self.decode_s(replace(batch, prefill_sequences=0.0), times, two_batch_overlap=False)
            alone = np.where(decoded > 0, step_s, 0.0)
        pushed = decoded * batch.decode_tokens + prompts * batch.chunk_tokens
        device = self.seconds(batch, times, two_batch_overlap=False)
        return np.where(prompts > 0, self.with_prompts_s(alone, device, tokens=pushed, sequences=decoded), alone)

    def drafts_s(self, sequences: FloatLike, context_len: FloatLike) -> FloatLike:
        """Time of all drafts of a step, one after another, with `sequences` sequences on a rank [s]."""
        if self.draft is None or not self.speculation.draft_tokens:
            return 0.0
        alone = replace(self, table=self.draft, stage_imbalance=1.0, speculation=PLAIN, draft=None)
        one = Batch(decode_sequences=sequences, context_len=context_len)
        return self.speculation.draft_tokens * alone.seconds(one, alone.time_table(False), two_batch_overlap=False)


def prompt_arrivals(
    engine: Engine, workload: Workload | Workloads, mode: Mode, sequences_per_rank: Array
) -> tuple[Array, Array]:
    """Prompts that arrive per step at each rank [prompts], and new tokens that fit in a step [tokens].

    The product of the arrivals and the new tokens per prompt, over the tokens that fit, is the load of the prefill path
    if prompts and decode tokens share a pass.
    """
    speculation = engine.speculation
    beside = sequences_per_rank * speculation.verified_tokens if mode.is_mixed else 0.0
    room = np.maximum(float(mode.max_batched_tokens) - beside, 1.0)
    arrivals = sequences_per_rank * speculation.tokens_per_step / (workload.output_len - 1.0)
    return arrivals * (1.0 - engine.stack.arrivals.synchrony), room


def decodes_beside(engine: Engine, mode: Mode) -> Array:
    """Whether sequences decode in passes with prompts, at least those of ranks that have none."""
    peers = as_array(engine.attention_dp) * as_array(engine.micro_batches)
    others = peers > 1.0 if mode.admission == "prefill_first" and not engine.speculation.draft_tokens else False
    return np.logical_or(mode.is_mixed, others) & np.ones(peers.shape, dtype=bool)


def _collected(
    arrivals: Array, peers: Array, some: Array, extra: Array, calm_s: Array, away_s: float, full: Array
) -> tuple[Array, Array]:
    """Share of steps with prompts on any peer, and what these add [s], where requests come back after a while.

    A request that takes its place at once arrives at the end of a step, however long the step was. One that is away
    arrives later: a step with prompts, which is longer, collects those that ended in the steps before it, as far as
    they were away that long. So prompts of several peers share a step more often, and fewer steps have some; as far as
    a step holds them: prompts of several steps are as they were.

    Args:
        arrivals: prompts per step at each peer [prompts].
        some, extra: of arrivals that are equally many in each step [1], [s].
        calm_s: a step without prompts [s].
        away_s: time outside of all passes [s].
        full: tokens that a step with prompts holds, over those of equal arrivals [ratio].
    """
    of_one = _busiest_of(arrivals, peers)
    share, longer = some, extra
    for _ in range(_TURNS):
        steps = np.maximum(np.minimum(calm_s + longer, away_s) / calm_s, 1.0)  # that a step with prompts collects
        of_calm = arrivals * peers / (1.0 + share * (steps - 1.0))
        none, none_after = np.exp(-of_calm), np.exp(-of_calm * steps)
        chained = np.minimum((1.0 - none) / (1.0 - none + none_after), some)
        together = np.maximum(arrivals * peers / np.maximum(chained, 1e-9), 1.0)  # in a step with prompts
        mean = np.maximum(2.0 * (together - 1.0), 1e-6)
        for _ in range(_TURNS):  # of mean / (1 - exp(-mean)) = together
            empty = np.exp(-mean)
            value = mean / (1.0 - empty)
            mean = np.maximum(mean - (value - together) * (1.0 - empty) / (1.0 - value * empty), 1e-6)
        more = np.maximum(_busiest_of(mean / peers, peers) / of_one - 1.0, 0.0)
        part = np.where(peers > 1.0, np.minimum((full - 1.0) / np.maximum(more, 1e-9), 1.0), 0.0)
        share, longer = some + part * (chained - some), extra * (1.0 + part * more)
    return share, longer


def _busiest_of(arrivals: Array, peers: Array) -> Array:
    """Prompts of the busiest peer in a step in which it has some."""
    some = np.maximum(arrivals, 1e-9)
    return some / -np.expm1(-some) * busiest_share(some, peers)


def behind(device_s: FloatLike, host_s: FloatLike) -> Array:
    """A pass in which device and host work concurrently: the longer time counts, with a smooth transition [s].

    Equation:
        (device⁴ + host⁴)^(1/4)

    >>> float(behind(1.0, 0.0)), round(float(behind(1.0, 1.0)), 3)
    (1.0, 1.189)
    """
    device, host = as_array(device_s), as_array(host_s)
    return (device**4 + host**4) ** 0.25 if host.any() else device


def steady_state(
    engine: Engine,
    workload: Workload | Workloads,
    mode: Mode,
    sequences_per_rank: FloatLike,
    *,
    decode_s: Array | None = None,
    threads: int = 1,
) -> SteadyState:
    """Latencies with `sequences_per_rank` sequences decoding on each rank and pipeline micro-batch.

    Args:
        workload: one workload, or one per row for an engine of one layout.
        sequences_per_rank: b [sequences], scalar or (points,) or (layouts or workloads, points).
        decode_s: the decode step without drafts, if it is known already [s].

    Returns:
        Arrays of shape () or (points,) or (layouts, points). Where prefill_utilisation is 1 or more there is no steady
        state, and ttft_s is infinite.

    Assumes: Poisson arrivals (the prefill path is an M/D/1 queue), equal lengths, equal ranks.
    Sources: M/D/1 mean wait rho / (2 (1 - rho)) service times, Pollaczek 1930.
    """
    b = as_array(sequences_per_rank)
    times = engine.time_table(mode.two_batch_overlap)
    overlap = mode.two_batch_overlap
    verified = engine.speculation.verified_tokens
    per_step = engine.speculation.tokens_per_step
    if decode_s is None:
        decode = Batch(decode_sequences=b, decode_tokens=verified, context_len=workload.mean_context)
        decode_s = engine.decode_s(decode, times, two_batch_overlap=overlap, threads=threads)
    drafts_s = engine.drafts_s(b, workload.mean_context)
    new = workload.new_tokens
    ranks = as_array(engine.attention_dp)
    peers = ranks * as_array(engine.micro_batches)
    arrivals, room = prompt_arrivals(engine, workload, mode, b)
    gathered: FloatLike = 1.0  # passes whose prompts run together
    if mode.alignment is not None:
        held_s, idle_s = mode.alignment.gaps_s(arrivals / decode_s, decode_s, decode_s, peers, b)
        gathered = 1.0 + (held_s + idle_s) / decode_s
        arrivals = arrivals * gathered
    load = arrivals * new / room
    share = np.maximum(-np.expm1(-arrivals), load)
    if mode.is_mixed:
        share = np.minimum(share, 1.0)
    chunk = np.minimum(new, room)
    carried = np.minimum(arrivals * new / share, room)
    beside_prompts = decodes_beside(engine, mode)
    # after a pass with its own prompts a rank decodes: its sequences end in passes in which they decode
    own = share if mode.is_mixed else np.where(beside_prompts, share / (1.0 + share / gathered), share)
    none = np.log1p(-np.minimum(own, 1.0 - 1e-12))
    some = np.maximum(-np.expm1(peers * none), own)
    in_group = np.maximum(-np.expm1(ranks * none), own)
    busiest = np.minimum(carried * busiest_share(arrivals, peers), room)
    beside = b if mode.is_mixed else np.zeros_like(b)
    batch = Batch(
        decode_sequences=beside,
        decode_tokens=verified,
        context_len=workload.mean_context,
        prefill_sequences=busiest / chunk,
        chunk_tokens=chunk,
        prefix_tokens=workload.prefix_tokens + (new - chunk) / 2.0,
        group_tokens=np.maximum(ranks * (beside * verified + carried * own / in_group), beside * verified + busiest),
    )
    mixed_s = engine.seconds(batch, times, two_batch_overlap=overlap, threads=threads)
    pushed = beside * verified + busiest
    before_s = decode_s if mode.is_mixed else 0.0
    device_s = mixed_s
    mixed_s = engine.with_prompts_s(before_s, device_s, tokens=pushed, sequences=beside)
    if engine.stack.graphs.need_all_ranks:  # a rank without prompts makes the pass of all eager
        eager_s = engine.with_prompts_s(before_s, device_s, sequences=beside)
        mixed_s = eager_s + (mixed_s - eager_s) * np.minimum(own**ranks / in_group, 1.0)
    extra = np.where(beside_prompts, np.maximum(mixed_s - decode_s, 0.0), mixed_s)
    beyond = engine.stack.arrivals.beyond_passes_s(workload)
    if beyond and np.any(peers > 1.0) and mode.alignment is None:
        full = np.maximum(room / busiest, 1.0)
        some, extra = _collected(arrivals, peers, some, extra, decode_s + drafts_s, beyond, full)
    some = some / gathered
    step_s = decode_s + drafts_s + some * extra
    if not mode.is_mixed:  # a rank waits for its own prompts
        step_s = np.where(beside_prompts, step_s * (1.0 + share / gathered), step_s)
    cost_share = some * extra / step_s
    utilisation = load if mode.is_mixed else cost_share
    with np.errstate(divide="ignore", invalid="ignore"):
        waiting = np.where(utilisation < 1.0, utilisation / (2.0 * (1.0 - utilisation)), np.inf)
    joining = arrivals * peers * engine.stack.scheduler.batch_wait_steps  # the first of those that join waits longest
    gathering_s = engine.stack.scheduler.batch_wait_steps * step_s * (1.0 + 0.5 * joining) / (1.0 + joining)
    ttft = beyond + 0.5 * gathered * step_s + gathering_s + (np.ceil(new / chunk) * mixed_s) * (1.0 + waiting)
    whole = np.minimum(new, float(mode.max_batched_tokens))
    full = Batch(
        prefill_sequences=np.ones((1,) * b.ndim) * (mode.max_batched_tokens / whole),  # one point per layout
        chunk_tokens=whole,
        prefix_tokens=workload.prefix_tokens + (new - whole) / 2.0,
    )
    full_s = engine.with_prompts_s(
        0.0,
        engine.seconds(full, times, two_batch_overlap=overlap, threads=threads),
        tokens=float(mode.max_batched_tokens),
    )
    prompt_s = full_s * new / mode.max_batched_tokens
    hold_s = np.zeros_like(step_s)
    if mode.is_batch_by_batch:
        # a batch is prefilled together and decodes alone; a request waits half of that on average
        step_s = decode_s + drafts_s
        hold_s = np.maximum(b, 1.0) * prompt_s
        cycle_s = hold_s + (workload.output_len - 1.0) * step_s / per_step
        ttft = beyond + 0.5 * cycle_s + hold_s
        cost_share = utilisation = hold_s / cycle_s
    return SteadyState(
        requests_per_s=b * peers / ((workload.output_len - 1.0) * step_s / per_step + hold_s),
        decode_s=decode_s + drafts_s,
        mixed_s=mixed_s,
        prefill_share=some,
        tpot_s=step_s / per_step,
        ttft_s=ttft,
        prompt_s=prompt_s,
        hold_s=hold_s,
        prefill_utilisation=utilisation,
        prefill_cost_share=cost_share,
    )


_MOST = 64.0  # prompts per step above which the distribution is taken as symmetric around mean - _BEHIND
_BEHIND = 0.65
_POINTS = 200


def median_prompts(arrivals: Array) -> Array:
    """Median amount of prompt tokens that arrive in a step, in units of the mean prompt [1].

    Equation:
        F(x) = e^-r + sum over n >= 1 of Poisson(n; r) Gamma(x; n),  F(median) = 1/2, and 0 up to r = ln 2

    Args:
        arrivals: r, prompts per step [1].

    Assumes: Poisson arrivals and exponentially distributed prompt lengths.

    >>> median_prompts(np.array([0.5, 1.0, 4.0])).round(2).tolist()
    [0.0, 0.4, 3.49]
    """
    rates, medians = _tabulated()
    r = as_array(arrivals)
    return np.where(r < _MOST, np.interp(r, rates, medians), r - _BEHIND)


@cache
def _tabulated() -> tuple[Array, Array]:
    from scipy.special import gammainc, gammaln

    rates = np.concatenate([[0.0, np.log(2.0)], np.geomspace(0.7, _MOST, _POINTS)])
    numbers = np.arange(1.0, 2.5 * _MOST)
    medians = np.zeros_like(rates)
    shares = np.exp(numbers * np.log(rates[2:, None]) - rates[2:, None] - gammaln(numbers + 1.0))
    low, high = np.zeros(_POINTS), np.full(_POINTS, 2.0 * _MOST)
    for _ in range(50):
        middle = 0.5 * (low + high)
        below = np.exp(-rates[2:]) + (shares * gammainc(numbers, middle[:, None])).sum(axis=1) < 0.5
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    medians[2:] = high
    return rates, medians


def median_step_s(engine: Engine, workload: Workload | Workloads, mode: Mode, sequences_per_rank: Array) -> Array:
    """Median inter-token time of a request with `sequences_per_rank` sequences decoding on each rank [s].

    Args:
        workload: one workload, or one per row.
        sequences_per_rank: (points,) or (workloads, points) [sequences].

    Returns:
        Array in the shape of `sequences_per_rank`; with drafts, the median step over the mean tokens per step.

    Assumes: ranks in lockstep share the prompts evenly.
    """
    b = as_array(sequences_per_rank)
    overlap = mode.two_batch_overlap
    times = engine.time_table(overlap)
    verified, per_step = engine.speculation.verified_tokens, engine.speculation.tokens_per_step
    peers = as_array(engine.attention_dp) * as_array(engine.micro_batches)
    decode = Batch(decode_sequences=b, decode_tokens=verified, context_len=workload.mean_context)
    decode_s = engine.decode_s(decode, times, two_batch_overlap=overlap)
    room = np.maximum(float(mode.max_batched_tokens) - (b * verified if mode.is_mixed else 0.0), 1.0)
    arrivals = peers * b * per_step / (workload.output_len - 1.0) * (1.0 - engine.stack.arrivals.synchrony)
    tokens = np.minimum(median_prompts(arrivals) / peers * workload.new_tokens, room)
    some = np.maximum(tokens, 1.0)
    chunk = np.minimum(workload.new_tokens, some)
    with_prompts = Batch(
        decode_sequences=b if mode.is_mixed else np.zeros_like(b),
        decode_tokens=verified,
        context_len=workload.mean_context,
        prefill_sequences=some / chunk,
        chunk_tokens=chunk,
        prefix_tokens=workload.cached_tokens + (workload.new_tokens - chunk) / 2.0,
    )
    mixed_s = engine.seconds(with_prompts, times, two_batch_overlap=overlap)
    if mode.is_mixed:
        mixed_s = engine.with_prompts_s(decode_s, mixed_s, tokens=b * verified + some, sequences=b)
    else:
        mixed_s = decode_s + engine.with_prompts_s(0.0, mixed_s, tokens=some)
    if mode.is_batch_by_batch:  # no prompts between the steps of a batch
        mixed_s = decode_s
    return (np.where(tokens > 0.0, mixed_s, decode_s) + engine.drafts_s(b, workload.mean_context)) / per_step

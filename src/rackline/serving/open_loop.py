"""An open loop: requests arrive at random, independently of the server; waiting for slots; users who think."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from rackline.errors import require
from rackline.passes import Batch, TimeTable
from rackline.passes.features import Array, FloatLike, as_array
from rackline.serving.alignment import AlignedPasses, Alignment, aligned, prompts_of
from rackline.serving.prompt_passes import PROMPTS, GraphPasses
from rackline.serving.prompt_queue import PromptPasses, PromptQueue, busiest_share, first_tokens, prompt_queue
from rackline.serving.steady import Engine, SteadyState, decodes_beside
from rackline.serving.workload import Mode, Workload

_ITERATIONS = 6  # of the rate at which a batch size holds; each reduces the error
_FOUND = 0.1  # relative error of the number in flight above which there is no such rate: beyond saturation
_ROUNDING = 1e-9  # relative: more than rounding errors of a rate come to
UNEVEN = 0.9  # sequences by which the busiest of many ranks exceeds the mean when each request goes to the least loaded


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # beyond saturation
def open_loop(
    engine: Engine,
    workload: Workload,
    mode: Mode,
    sequences_per_rank: FloatLike,
    *,
    decode_s: Array | None = None,
    growth_s: Array | None = None,
    max_batched_tokens: FloatLike | None = None,
    threads: int = 1,
    iterations: int = _ITERATIONS,
) -> SteadyState:
    """Mean latencies under random arrivals, at the rate at which `sequences_per_rank` sequences decode on average.

    The rate of a replica is sequences / (J · tpot + hold), summed over its ranks and micro-batches.

    Args:
        sequences_per_rank: n, mean on each rank and micro-batch [sequences]; scalar, (points,) or (layouts, points),
            increasing along the points.
        decode_s: the decode step at this concurrency, without drafts, if it is known already [s].
        growth_s: increase of the decode step with one more sequence, if it is known already [s].
        max_batched_tokens: token budget per pass of each layout, (layouts, 1), instead of the mode's [tokens].
        iterations: iterations to find the rate [count].

    Returns:
        Arrays of shape () or (points,) or (layouts, points). Where prefill_utilisation is 1 or more there is no steady
        state, and ttft_s is infinite.

    Assumes: Poisson arrivals, memory for all requests, requests of about equal length.
    Sources: see `rackline.serving.prompt_queue`; the number of requests in a busy period and its variance, Borel 1942.
    """
    if np.ndim(sequences_per_rank) == 0:
        one = np.reshape(as_array(sequences_per_rank), 1)
        found = open_loop(engine, workload, mode, one, decode_s=decode_s, threads=threads, iterations=iterations)
        return SteadyState(**{name: np.asarray(getattr(found, name))[..., 0] for name in SteadyState.__slots__})
    n = as_array(sequences_per_rank)
    budget = as_array(float(mode.max_batched_tokens) if max_batched_tokens is None else max_batched_tokens)
    times = engine.time_table(mode.two_batch_overlap)
    step_s = _step(engine, workload, mode, n, times, decode_s, threads)
    steps = (workload.output_len - 1.0) / engine.speculation.tokens_per_step
    peers = as_array(engine.attention_dp) * as_array(engine.micro_batches)
    if growth_s is None:
        growth_s = _step(engine, workload, mode, np.maximum(n, 1.0) + 1.0, times, None, threads) - step_s
    busiest_s = step_s + growth_s * UNEVEN * (1.0 - 1.0 / peers)
    verified, beside = engine.speculation.verified_tokens, n if mode.is_mixed else np.zeros_like(n)
    load = _Load(
        engine=engine,
        workload=workload,
        mode=mode,
        budget=budget,
        n=n,
        times=times,
        threads=threads,
        verified=verified,
        ranks=as_array(engine.attention_dp),
        peers=peers,
        beside=beside,
        room=np.maximum(budget - beside * verified, 1.0),
    )
    if mode.alignment is not None:
        return _aligned_loop(load, mode.alignment, step_s, busiest_s)
    passes, graphs = _passes(load, step_s, busiest_s)
    if mode.is_batch_by_batch:
        return _batch_after_batch(engine, workload, n, steps, step_s, growth_s, passes)
    chunked = decodes_beside(engine, mode)
    sizes = workload.prompt_sizes()
    first = first_tokens(workload.new_tokens, passes.room, sizes)
    whole_s = passes.decode_s + passes.first_s + passes.per_token_s * (passes.room - first)
    most = 0.999 * passes.room / (workload.new_tokens * whole_s)
    # prompts that arrive in a pass if every request saw the mean pass
    coming = n / steps
    some = np.where(chunked, -np.expm1(-coming * peers), coming * peers)
    more = np.maximum(coming - some, 0.0) * workload.new_tokens * passes.per_token_s
    rate = coming / (passes.decode_s + some * (passes.first_s + np.where(chunked, 0.0, passes.decode_s)) + more)
    rate = np.minimum(rate, most)
    least = 1e-3 * rate

    def queue_at(rate: Array) -> PromptQueue:
        found = prompt_queue(passes, rate, workload.new_tokens, sizes=sizes)
        return found if graphs is None else graphs.queue(found, rate, steps, as_array(growth_s))

    queue = queue_at(rate)
    tpot_s = _step_seen_s(queue, passes, mode, chunked, n, rate, steps, growth_s)
    slope = np.clip(tpot_s / passes.decode_s, 1.0, 5.0)  # of ln(rate · tpot) against ln(rate), at first
    before, at = np.zeros_like(rate), rate
    for turn in range(iterations):
        error = np.log(np.maximum(rate * steps * tpot_s / n, 1e-9))
        most = np.where(error > 0.0, rate, most)
        least = np.where(error > 0.0, least, rate)
        if turn:
            slope = _slope(error - before, np.log(rate / at), slope)
        before, at = error, rate
        rate = rate * np.exp(np.clip(-error / slope, -0.7, 0.7))
        # a rate that is found lies within rounding of one end: it stays
        inside = (rate > least * (1.0 - _ROUNDING)) & (rate < most * (1.0 + _ROUNDING))
        rate = np.where(inside, rate, np.sqrt(least * most))
        queue = queue_at(rate)
        tpot_s = _step_seen_s(queue, passes, mode, chunked, n, rate, steps, growth_s)
    error = np.clip(np.log(np.maximum(rate * steps * tpot_s / n, 1e-9)), -3.0, 3.0)  # remaining error
    moved = np.exp(-error / _slope(error - before, np.log(rate / at), slope))
    rate = rate * moved
    tpot_s = n / (rate * steps)
    prompts = queue.pass_s - passes.decode_s * (1.0 - queue.some * ~chunked)
    idle = np.maximum(1.0 - prompts / queue.pass_s, 0.0) * np.exp(-rate * peers * steps * passes.decode_s)
    wait_s = queue.wait_s - 0.5 * idle * passes.decode_s
    load = queue.load * moved
    found = (np.abs(error) < _FOUND) & (load < 1.0)
    exists = found & ((n * workload.new_tokens / steps < passes.room) | (not mode.is_mixed))
    return SteadyState(
        requests_per_s=rate * peers,
        decode_s=step_s,
        mixed_s=queue.prompt_pass_s,
        prefill_share=queue.some,
        tpot_s=tpot_s / engine.speculation.tokens_per_step,
        ttft_s=np.where(exists, engine.stack.arrivals.beyond_passes_s(workload) + wait_s, np.inf),
        prompt_s=(passes.first_s + np.where(chunked, 0.0, passes.decode_s)) * workload.new_tokens / first,
        hold_s=np.zeros_like(tpot_s),
        prefill_utilisation=np.where(exists, load, np.maximum(load, 1.0)),
        prefill_cost_share=prompts / queue.pass_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """What prompts meet: an engine whose ranks decode n sequences each, and the room that its passes leave.

    Args:
        budget: tokens of a pass of a rank [tokens].
        n: sequences that decode on a rank [sequences].
        verified: tokens of a sequence in a step [tokens].
        ranks, peers: attention-dp ranks; ranks and micro-batches [count].
        beside: sequences of a rank that decode in the pass of its own prompts [sequences].
        room: prompt tokens that a pass takes from a rank [tokens].
    """

    engine: Engine
    workload: Workload
    mode: Mode
    budget: Array
    n: Array
    times: TimeTable
    threads: int
    verified: float
    ranks: Array
    peers: Array
    beside: Array
    room: Array

    def kernels_s(self, tokens: Array, group_tokens: Array, chunk: Array, prefix: Array) -> Array:
        """Device time of a pass with prompts [s].

        Args:
            tokens: of prompts, on one rank.
            group_tokens: of prompts, on all ranks.
            chunk: tokens of each prompt.
            prefix: tokens of it that ran before.
        """
        batch = Batch(
            decode_sequences=self.beside,
            decode_tokens=self.verified,
            context_len=self.workload.mean_context,
            prefill_sequences=tokens / chunk,
            chunk_tokens=chunk,
            prefix_tokens=prefix,
            group_tokens=self.ranks * self.beside * self.verified + np.maximum(group_tokens, tokens),
        )
        overlap = self.mode.two_batch_overlap
        return self.engine.seconds(batch, self.times, two_batch_overlap=overlap, threads=self.threads)


def _aligned_loop(load: _Load, alignment: Alignment, step_s: Array, busiest_s: Array) -> SteadyState:
    """The open loop of ranks that wait for each other's prompts, see `rackline.serving.prompt_passes`."""
    engine, workload, mode = load.engine, load.workload, load.mode
    ranks, peers, beside, room = load.ranks, load.peers, load.beside, load.room
    loads, tokens = prompts_of(workload.new_tokens, room, peers)
    first = first_tokens(workload.new_tokens, room, workload.prompt_sizes())
    prefix = workload.prefix_tokens + np.maximum(workload.new_tokens - first, 0.0) / 2.0
    graphs_s: list[Array] = []
    eager_s: list[Array] = []
    for prompts, busiest in zip(loads, tokens, strict=True):
        device = load.kernels_s(busiest, ranks * prompts * workload.new_tokens, np.minimum(first, busiest), prefix)
        before = step_s if mode.is_mixed else 0.0
        for found, pushed in ((graphs_s, beside * load.verified + busiest), (eager_s, np.inf)):
            found.append(np.maximum(engine.with_prompts_s(before, device, tokens=pushed, sequences=beside), busiest_s))
    alone = 1.0 - (-np.expm1(-loads)) ** peers  # some rank has none, and decodes
    parts = alone if engine.stack.graphs.need_all_ranks else 0.0
    passes = AlignedPasses(
        alignment=alignment,
        prompts=loads,
        seconds=np.stack(graphs_s) * (1.0 - parts) + np.stack(eager_s) * parts,
        decode_s=busiest_s,
        room=room,
        peers=peers,
        mixed=mode.is_mixed,
    )
    steps = (workload.output_len - 1.0) / engine.speculation.tokens_per_step
    found = aligned(passes, workload.new_tokens, load.n, steps)
    return SteadyState(
        requests_per_s=found.rate * peers,
        decode_s=step_s,
        mixed_s=found.prompt_s,
        prefill_share=found.some,
        tpot_s=found.step_s / engine.speculation.tokens_per_step,
        ttft_s=np.where(found.load < 1.0, engine.stack.arrivals.beyond_passes_s(workload) + found.wait_s, np.inf),
        prompt_s=found.prompt_s,
        hold_s=np.zeros_like(found.prompt_s),
        prefill_utilisation=found.load,
        prefill_cost_share=np.clip((found.prompt_s - busiest_s * mode.is_mixed) * found.some / found.step_s, 0.0, 1.0),
    )


def _slope(more_error: Array, more_rate: Array, known: Array) -> Array:
    """Between two rates, where they differ: at least 1, because the time per token never falls with the rate."""
    apart = np.abs(more_rate) > 1e-9
    return np.where(apart, np.clip(more_error / np.where(apart, more_rate, 1.0), 1.0, 20.0), known)


def _batch_after_batch(
    engine: Engine, workload: Workload, n: Array, steps: float, step_s: Array, growth_s: Array, passes: PromptPasses
) -> SteadyState:
    """Decode first: the requests that arrived while a batch decoded, and during their prefill, form the next batch.

    This is a server with vacations: it serves prompts until none is waiting, then is away for G = J steps of a batch of
    n.

        wait = E[G²] / (2 E[G]) + lambda w² / (2 (1 - rho)),  n = lambda G / (1 - rho),  rho = lambda w

    Sources: M/G/1 with vacations, Levy and Yechiali 1975.
    """
    batch_s = steps * step_s
    prompt_s = passes.first_s + passes.decode_s
    in_pass = np.clip(n, 1.0, np.maximum(passes.room / workload.new_tokens, 1.0))
    pieces = np.ceil(workload.new_tokens / passes.room - 1e-9)
    one_s = np.where(
        pieces > 1.0, prompt_s * workload.new_tokens / passes.room, prompt_s + 0.0 * n
    )  # w: time per prompt in a pass with in_pass of them
    more_s = passes.per_token_s * np.minimum(workload.new_tokens, passes.room)
    each_s = np.where(pieces > 1.0, one_s, (one_s + (in_pass - 1.0) * more_s) / in_pass)
    rate = n / (batch_s + n * each_s)
    calm = 1.0 - rate * each_s
    feedback = np.clip(rate * steps * growth_s / calm, 0.0, 0.95)
    uneven = 1.0 / (calm * calm * (1.0 - feedback * feedback))  # variance of the batch size over its mean
    variance = (steps * growth_s) ** 2 * n * uneven
    waiting_s = 0.5 * (batch_s + variance / batch_s) + 0.5 * rate * each_s**2 / calm
    nobody = np.exp(-rate * batch_s)
    idle = nobody / (rate * (batch_s + nobody / rate) / calm)  # share of the arrivals that find the server idle
    together_s = each_s * (in_pass + 1.0) / 2.0
    rest_s = 0.5 * np.maximum(n + uneven - in_pass, 0.0) * each_s  # of the batch that a request sees
    return SteadyState(
        requests_per_s=rate * as_array(passes.peers),
        decode_s=step_s,
        mixed_s=each_s * in_pass,
        prefill_share=n / (n + steps * in_pass),
        tpot_s=(batch_s + steps * growth_s * uneven + rest_s) / (workload.output_len - 1.0),
        ttft_s=engine.stack.arrivals.beyond_passes_s(workload) + (1.0 - idle) * (waiting_s + together_s) + idle * one_s,
        prompt_s=each_s,
        hold_s=np.zeros_like(rest_s),
        prefill_utilisation=1.0 - calm,
        prefill_cost_share=1.0 - calm,
    )


def _step(
    engine: Engine, workload: Workload, mode: Mode, n: Array, times: TimeTable, decode_s: Array | None, threads: int
) -> Array:
    """A pass without prompts, with at least one sequence, drafts included [s]."""
    held = np.maximum(n, 1.0)
    context = workload.mean_context
    if decode_s is None or np.any(n < 1.0):
        batch = Batch(decode_sequences=held, decode_tokens=engine.speculation.verified_tokens, context_len=context)
        decode_s = engine.decode_s(batch, times, two_batch_overlap=mode.two_batch_overlap, threads=threads)
    return decode_s + engine.drafts_s(held, context)


def _passes(load: _Load, step_s: Array, busiest_s: Array) -> tuple[PromptPasses, GraphPasses | None]:
    """Time that prompts add to a pass: the first one, and each further token at a typical load.

    Where CUDA graphs hold some passes with prompts and not others, it is that of the others, and the second part of the
    answer has both.
    """
    engine, workload, mode, n = load.engine, load.workload, load.mode, load.n
    ranks, peers, room = load.ranks, load.peers, load.room
    chunked = mode.is_mixed
    apart_of_decode = decodes_beside(engine, mode) & (not chunked)
    eager = engine.stack.graphs.need_all_ranks & (ranks > 1.0)
    new, sizes = workload.new_tokens, workload.prompt_sizes()
    first = first_tokens(new, room, sizes)
    # one rank alone, prompts of one size that fit a graph: passes may lie on both sides of it
    held = engine.stack.graphs.held_tokens
    both = chunked and held / PROMPTS < new < held and sizes is None and not engine.speculation.draft_tokens
    apart = (peers == 1.0) & (load.budget > held) & (n < held) & both

    def kernels_s(tokens: Array, group: Array, chunk: Array = first, prefix: Array | None = None) -> Array:
        before = workload.prefix_tokens + np.maximum(new - chunk, 0.0) / 2.0 if prefix is None else prefix
        return load.kernels_s(tokens, group * tokens, chunk, before)

    def stretched_s(device: Array, tokens: Array) -> Array:
        if np.any(apart_of_decode):  # the others decode beside it
            alone = engine.with_prompts_s(0.0, device, tokens=np.where(eager, np.inf, tokens))
            return np.where(apart_of_decode, np.maximum(alone, busiest_s), alone)
        if chunked:
            pushed = np.where(apart | eager, np.inf, load.beside * load.verified + tokens)
            return engine.with_prompts_s(step_s, device, tokens=pushed, sequences=n) - step_s
        return engine.with_prompts_s(0.0, device, tokens=tokens)

    def extra_s(tokens: Array, group: Array, chunk: Array = first, prefix: Array | None = None) -> Array:
        return stretched_s(kernels_s(tokens, group, chunk, prefix), tokens)

    def one_prompt_s(group: Array) -> Array:
        if sizes is None:
            return extra_s(first, group)
        mean_s = np.zeros_like(first)
        for share, tokens in zip(sizes.shares, sizes.tokens, strict=True):  # a short prompt costs more per token
            chunk = np.minimum(tokens, room)
            cached = tokens / new * workload.cached_tokens
            mean_s = mean_s + share * extra_s(chunk, group, chunk, cached + np.maximum(tokens - chunk, 0.0) / 2.0)
        return mean_s

    steps = (workload.output_len - 1.0) / engine.speculation.tokens_per_step
    one = np.ones_like(n)
    first_s = one_prompt_s(one)
    share = -np.expm1(-n * peers / steps)
    loaded = step_s + first_s if chunked else first_s
    mean_s = (1.0 - share) * step_s + share * loaded + np.where(~apart_of_decode & (not chunked), step_s * share, 0.0)
    rate = n / steps / mean_s
    together = np.maximum(rate * ((1.0 - share) * step_s**2 + share * loaded**2) / mean_s, 1e-3)
    busiest = busiest_share(together, peers) * together / -np.expm1(-together)
    total = ranks * together / -np.expm1(-ranks * together)
    group = np.maximum(total / busiest, 1.0)
    if np.any(ranks > 1):
        first_s = one_prompt_s(group)
    together = n if mode.is_batch_by_batch else 1.1 * busiest
    usual = np.minimum(np.maximum(2.0 * first, together * new), room)
    usual = np.where(usual > 1.01 * first, usual, 0.5 * room)
    usual_s = kernels_s(usual, group)
    passes = PromptPasses(
        decode_s=busiest_s,
        first_s=first_s if chunked else first_s - busiest_s,
        per_token_s=np.maximum((stretched_s(usual_s, usual) - first_s) / (usual - first), 0.0),
        room=room,
        peers=peers,
    )
    if not np.any(apart):
        return passes, None
    one_s = kernels_s(first, one)
    return passes, GraphPasses(
        engine=engine,
        applies=apart,
        decode_s=step_s,
        kernels_s=one_s,
        kernels_s_per_prompt=np.maximum(usual_s - one_s, 0.0) / (usual - first) * new,
        sequences=n,
        new_tokens=new,
        spread=workload.input_spread,
        room=room,
    )


def _step_seen_s(
    queue: PromptQueue,
    passes: PromptPasses,
    mode: Mode,
    beside: Array,
    n: Array,
    rate: Array,
    steps: float,
    growth_s: Array,
) -> Array:
    """Time of a step as a request sees it; with drafts, a step yields several tokens [s]."""
    decode, peers = passes.decode_s, as_array(passes.peers)
    prompts_s = queue.pass_s - decode
    cycle_s, decodes = queue.pass_s, np.ones_like(queue.some)
    growth = queue.growth
    last = queue.backlog + (queue.left_behind - queue.backlog) * np.exp(-steps / np.maximum(queue.settling, 1e-9))
    if not mode.is_mixed:
        # a rank waits for its own prompts, and one that is alone has no other passes with prompts
        decodes = np.maximum(1.0 - np.where(beside, queue.own, queue.some), 1e-6)
        cycle_s = queue.pass_s / decodes
        prompts_s = queue.pass_s - decode * np.where(beside, 1.0, decodes)
        growth = np.where(beside, queue.growth, cycle_s / decode)
        last = np.where(
            beside,
            last,
            np.minimum(rate * queue.prompt_tokens / np.maximum(rate * queue.pass_s, 1e-30) * decode, queue.left_behind),
        )
    share = np.clip(prompts_s / queue.pass_s, 0.0, 0.97)
    excess_s = (queue.left_behind - last) * (prompts_s / queue.prompt_tokens) / ((1.0 - share) * steps)
    held = np.maximum(n, 1.0)
    feedback = np.clip(rate * steps * growth_s * growth, 0.0, 0.9)
    in_passes = np.maximum(rate * steps * (cycle_s - growth * growth_s * held) / (1.0 - feedback), 0.0)
    bursts = 1.0 + (1.0 / (1.0 - share) ** 2 - 1.0) * steps / (steps + queue.settling)
    seen = np.maximum(in_passes + bursts / (1.0 - feedback) / peers, 1.0)
    return cycle_s + growth * growth_s * (seen - held) + excess_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """How long a request takes on one copy of a deployment, by request rate.

    1 / latency is about a line in the rate, as for a queue or a batch whose size follows the rate.

    Args:
        alone_s: of a request that is alone [s].
        loaded_s: at the highest rate that is served [s].
        requests_per_s: that rate [requests/s].
    """

    alone_s: float
    loaded_s: float
    requests_per_s: float

    def at(self, requests_per_s: float) -> float:
        """Mean time of a request at a rate [s].

        >>> Response(alone_s=1.0, loaded_s=2.0, requests_per_s=10.0).at(5.0)
        1.3333333333333333
        """
        share = requests_per_s / self.requests_per_s
        return 1.0 / ((1.0 - share) / self.alone_s + share / self.loaded_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """Users of a fleet.

    Args:
        users: who are there, each waiting for an answer or thinking [count].
        think_s: mean time from an answer to the user's next request [s].

    Raises:
        InputError: nobody, or a negative time.
    """

    users: float
    think_s: float = 0.0

    def __post_init__(self) -> None:
        require(self.users >= 1, what="users", given=self.users, allowed="at least 1", nearest="1")
        require(self.think_s >= 0, what="think_s", given=self.think_s, allowed="0 s or more", nearest="0")

    def most(self, response: Response) -> float:
        """Users that one copy serves at its highest rate, by Little's law: r · (Z + R) [count].

        >>> Population(users=1, think_s=8.0).most(Response(alone_s=1.0, loaded_s=2.0, requests_per_s=10.0))
        100.0
        """
        return response.requests_per_s * (self.think_s + response.loaded_s)

    def requests_per_s(self, response: Response, copies: int = 1) -> float:
        """Rate of all copies at which thinking and waiting users add up to all of them [requests/s].

        Equation:
            N = r · (Z + R(r)), N users of a copy, with 1 / R a line in r: the smaller root of a quadratic

        Args:
            copies: that share the users evenly [count].

        Assumes: requests arrive about at random, as many users do who think for a while.
        Sources: Little 1961, A proof for the queuing formula L = λW; Lazowska et al. 1984, interactive response time.

        >>> found = Population(users=100, think_s=8.0).requests_per_s(
        ...     Response(alone_s=1.0, loaded_s=2.0, requests_per_s=10.0)
        ... )
        >>> round(found, 9)
        10.0
        """
        users, most = self.users / copies, response.requests_per_s
        alone = 1.0 / response.alone_s
        slope = max(alone - 1.0 / response.loaded_s, 0.0)
        # most Z slope x² - (users slope + most Z alone + most) x + users alone = 0, x the share of the highest rate
        square, line = most * self.think_s * slope, users * slope + most * self.think_s * alone + most
        root = sqrt(max(line * line - 4.0 * square * users * alone, 0.0))
        return copies * most * 2.0 * users * alone / (line + root)

"""Ranks in lockstep against a program that steps through every pass of every rank, with equal times and preemptions."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from rackline.passes.features import Array
from rackline.simulation import (
    POLICIES,
    Handover,
    Lengths,
    PlainClock,
    Pool,
    RankSpec,
    Requests,
    open_arrivals,
    simulate,
)
from rackline.simulation.clock import Chunk, Line
from rackline.simulation.rank import Rank

# odd numbers, so that no pass ends when a request arrives but for rounding
BASE_S, SEQUENCE_S, KV_S, PROMPT_S = 0.0100271828, 1.0173205e-4, 1.0314159e-5, 1.0141421e-4
ROOF = 40.0  # KV tokens of a sequence from which its cache takes longer to read than its tokens to compute


@dataclass(frozen=True, slots=True, kw_only=True)
class RoofClock:
    """A step that waits for the tokens of all ranks, and for the slower one of compute and memory."""

    verified: int = 1
    tokens_per_step: float = 1.0

    @property
    def straight_from(self) -> float:
        return 0.0

    def straight(self, sequences: int, kv_tokens: Any, longest: Any, group_tokens: float) -> Any:
        roof = np.maximum(KV_S * kv_tokens, KV_S * ROOF * sequences)
        return BASE_S + SEQUENCE_S * sequences + roof + 1e-6 * longest + 1e-5 * group_tokens

    def steps(self, contexts: Array, advance: Array, group_tokens: float) -> Array:
        raise AssertionError("no context is read in part")

    def bends(self, sequences: int, group_tokens: float) -> Sequence[float] | None:
        return (ROOF * sequences,)

    def line(self, sequences: int, group_tokens: float, kv_tokens: float = np.inf) -> Line | None:
        bend = ROOF * sequences
        fixed = BASE_S + SEQUENCE_S * sequences + 1e-5 * group_tokens
        if kv_tokens >= bend:
            return Line(fixed, KV_S, 1e-6, from_kv=bend)
        return Line(fixed + KV_S * bend, 0.0, 1e-6, to_kv=bend)

    def prompts(
        self,
        sequences: int,
        kv_tokens: float,
        longest: float,
        chunks: Sequence[Chunk],
        group_tokens: float,
        alone_s: float,
        *,
        others_decode: bool = False,
    ) -> float:
        work = sum(chunk.tokens * (1.0 + 1e-3 * chunk.prefix) for chunk in chunks)
        return float(self.straight(sequences, kv_tokens, longest, group_tokens)) + PROMPT_S * work


@dataclass(slots=True)
class PlainRank:
    """A rank as lists; what it needs is counted anew whenever it is asked."""

    spec: RankSpec
    waiting: deque[int] = field(default_factory=deque[int])
    running: list[int] = field(default_factory=list[int])
    done: dict[int, int] = field(default_factory=dict[int, int])  # prompts: tokens so far
    decoding: dict[int, list[int]] = field(default_factory=dict[int, list[int]])  # request → [context, tokens left]

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.spec.block_size)

    def used(self) -> int:
        return sum(map(self.blocks, self.done.values())) + sum(
            self.blocks(context) for context, _ in self.decoding.values()
        )

    def next_blocks(self) -> int:
        """New blocks for the next token of all that decode."""
        return sum(context % self.spec.block_size == 0 for context, _ in self.decoding.values())

    def free(self) -> int:
        return self.spec.num_blocks - self.used()


class PassByPass:
    """A replica that goes from pass to pass."""

    def __init__(self, clock: RoofClock, spec: RankSpec, ranks: int, requests: Requests, *, hands_over: bool) -> None:
        self.clock, self.spec, self.hands_over = clock, spec, hands_over
        self.ranks = [PlainRank(spec) for _ in range(ranks)]
        self.inputs, self.outputs = requests.input_len.tolist(), requests.output_len.tolist()
        self.generated = [0] * len(requests)
        self.preempted = [0] * len(requests)
        self.first = [np.nan] * len(requests)
        self.finish = [np.nan] * len(requests)
        self.ended: list[tuple[float, int]] = []

    def run(self, arrivals: Sequence[tuple[float, int]], ready: set[int]) -> None:
        queue, now = deque(arrivals), 0.0
        while True:
            while queue and queue[0][0] <= now:
                loads = [(len(rank.waiting) + len(rank.running), rank.used(), i) for i, rank in enumerate(self.ranks)]
                self.ranks[min(loads)[2]].waiting.append(queue.popleft()[1])
            if any(rank.waiting or rank.running for rank in self.ranks):
                now = self.one_pass(now, ready)
            elif queue:
                now = max(now, queue[0][0])
            else:
                return

    def one_pass(self, now: float, ready: set[int]) -> float:
        lost = False
        found: list[list[tuple[int, int, int]]] = []
        for rank in self.ranks:
            self.join(rank, ready, now)
            while rank.decoding and rank.next_blocks() > rank.free():
                self.preempt(rank)
                lost = True
            chunks, preempts = self.chunks(rank, ready, admit=not lost)
            found.append(chunks)
            lost = lost or preempts
        new = sum(take for chunks in found for _, take, _ in chunks)
        group = sum(len(rank.decoding) for rank in self.ranks) + new
        seconds = 0.0
        for rank, chunks in zip(self.ranks, found, strict=True):
            contexts = [context for context, _ in rank.decoding.values()]
            if contexts or chunks:
                n, kv, longest = len(contexts), sum(contexts), max(contexts, default=0)
                pieces = [Chunk(take, done) for _, take, done in chunks]
                seconds = max(seconds, self.clock.prompts(n, kv, longest, pieces, group, 0.0))
        end = now + seconds
        for rank, chunks in zip(self.ranks, found, strict=True):
            for request, state in sorted(rank.decoding.items()):
                state[0] += 1
                state[1] -= 1
                if not state[1]:
                    self.leave(rank, request, end)
            for request, take, done in chunks:
                if request not in rank.done:
                    continue
                rank.done[request] = done + take
                if done + take == self.inputs[request] + self.generated[request]:
                    if np.isnan(self.first[request]):
                        self.first[request] = end
                    self.start(rank, request, end)
        return end

    def join(self, rank: PlainRank, ready: set[int], now: float) -> None:
        while rank.waiting and rank.waiting[0] in ready and len(rank.running) < self.spec.max_num_seqs:
            request = rank.waiting[0]
            if rank.blocks(self.inputs[request]) > rank.free():
                return
            ready.discard(rank.waiting.popleft())
            rank.running.append(request)
            rank.done[request] = self.inputs[request]
            self.start(rank, request, now)

    def chunks(self, rank: PlainRank, ready: set[int], *, admit: bool) -> tuple[list[tuple[int, int, int]], bool]:
        budget, preempts = self.spec.max_batched_tokens - len(rank.decoding), False
        found: list[tuple[int, int, int]] = []
        kept = rank.next_blocks()  # not given to prompts in this pass, even if a sequence is preempted for one
        taken: dict[int, int] = {}  # tokens in blocks that this pass fills
        for request in list(rank.done):
            if budget <= 0 or request not in rank.done:
                continue
            done = rank.done[request]
            take = min(self.inputs[request] + self.generated[request] - done, budget)
            while rank.blocks(done + take) - rank.blocks(done) > rank.free() - kept - self.filled(rank, taken):
                admit, preempts = False, True
                if self.preempt(rank) == request:
                    break
            if request not in rank.done:
                break
            taken[request] = done + take
            found.append((request, take, done))
            budget -= take
        while admit and rank.waiting and budget > 0 and len(rank.running) < self.spec.max_num_seqs:
            request = rank.waiting[0]
            target = self.inputs[request] + self.generated[request]
            take, done = (0, target) if request in ready else (min(target, budget), 0)
            if rank.blocks(done + take) > rank.free() - kept - self.filled(rank, taken):
                break
            ready.discard(request)
            rank.running.append(rank.waiting.popleft())
            rank.done[request], taken[request] = done, done + take
            found.append((request, take, done))
            budget -= take
        return found, preempts

    def filled(self, rank: PlainRank, taken: dict[int, int]) -> int:
        return sum(rank.blocks(end) - rank.blocks(rank.done[one]) for one, end in taken.items() if one in rank.done)

    def preempt(self, rank: PlainRank) -> int:
        request = rank.running.pop()
        if request in rank.decoding:
            self.generated[request] = self.outputs[request] - rank.decoding.pop(request)[1]
        else:
            del rank.done[request]
        self.preempted[request] += 1
        rank.waiting.appendleft(request)
        return request

    def start(self, rank: PlainRank, request: int, now: float) -> None:
        """The prompt is cached and has its token."""
        target = rank.done[request]
        left = self.outputs[request] - self.generated[request] - 1
        if self.hands_over or not left:
            self.leave(rank, request, now)
        else:
            del rank.done[request]
            rank.decoding[request] = [target, left]

    def leave(self, rank: PlainRank, request: int, now: float) -> None:
        rank.running.remove(request)
        rank.done.pop(request, None)
        rank.decoding.pop(request, None)
        self.finish[request] = now
        self.ended.append((now, request))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Requests, RankSpec, int, int]:
    """Requests at few different times and of few different lengths, a rank, and how many decode and prefill."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.sampled_from([3, 30, 60]))
    grid = draw(st.sampled_from([0.05, 0.5]))  # several arrive at once
    requests = Requests(
        arrival_s=np.sort(rng.integers(0, 20, count)) * grid,
        input_len=rng.choice([1, 32, 60, 150], count),
        output_len=rng.choice([1, 2, 16, 70], count),
    )
    spec = RankSpec(
        pool_tokens=draw(st.sampled_from([256, 400, 4000])),
        block_size=draw(st.sampled_from([1, 8, 16])),
        max_num_seqs=draw(st.sampled_from([2, 8, 30])),
        max_batched_tokens=draw(st.sampled_from([40, 100, 500])),
    )
    return requests, spec, draw(st.integers(1, 5)), draw(st.integers(0, 3))


@given(case=cases())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_ranks_give_what_a_program_gives_that_steps_through_every_pass(
    case: tuple[Requests, RankSpec, int, int],
) -> None:
    requests, spec, ranks, ahead = case
    clock = RoofClock()
    pool = Pool(clock=clock, spec=spec, policy=POLICIES.find("chunked"), ranks=ranks)
    prefill = Handover(
        pool=Pool(clock=clock, spec=spec, policy=POLICIES.find("chunked"), ranks=ahead or 1), tokens_per_s=1e5
    )
    result = simulate(requests, pool, prefill=prefill if ahead else None)
    arrivals = list(zip(requests.arrival_s.tolist(), range(len(requests)), strict=True))
    ready: set[int] = set()
    finish = np.full(len(requests), np.nan)
    preempted = np.zeros(len(requests), dtype=int)
    if ahead:
        front = PassByPass(clock, spec, ahead, requests, hands_over=True)
        front.run(arrivals, set())
        moved = [(end + requests.input_len[one] / 1e5, one) for end, one in front.ended if requests.output_len[one] > 1]
        ready = {one for _, one in moved}
        finish = np.where(requests.output_len == 1, front.finish, np.nan)
        preempted += front.preempted
        arrivals = sorted(moved, key=lambda event: event[0])
    behind = PassByPass(clock, spec, ranks, requests, hands_over=False)
    behind.run(arrivals, ready)
    finish = np.where(np.isnan(finish), behind.finish, finish)
    np.testing.assert_allclose(result.finish_s, finish, rtol=0.0, atol=1e-9)
    np.testing.assert_array_equal(result.preempted, preempted + behind.preempted)
    if not ahead:
        np.testing.assert_allclose(result.first_s, behind.first, rtol=0.0, atol=1e-9)


def test_a_rank_to_which_nothing_happens_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 24 ranks as with one, a request is admitted and finishes on one of them."""
    counts: list[int] = []
    settle = Rank.settle

    def counted(self: Rank) -> None:
        counts[-1] += 1
        settle(self)

    monkeypatch.setattr(Rank, "settle", counted)
    requests = open_arrivals(np.random.default_rng(1), 400, 20.0, Lengths(input_len=200, output_len=100))
    clock = PlainClock(base_s=0.01, per_sequence_s=1e-4, per_kv_s=1e-8, per_prompt_token_s=1e-6)
    for ranks in (1, 24):
        counts.append(0)
        pool = Pool(clock=clock, spec=RankSpec(pool_tokens=1_000_000), policy=POLICIES.find("chunked"), ranks=ranks)
        assert simulate(requests, pool).finished.all()
    assert counts[1] <= 3 * counts[0]


@pytest.mark.parametrize("output_len", [1, 2])
def test_a_sequence_whose_only_token_came_with_its_prompt_leaves_at_once(output_len: int) -> None:
    """Also where it is the last, or the only one that a rank has room for."""
    requests = Requests(
        arrival_s=np.array([0.0, 0.0, 1.0]),
        input_len=np.array([20, 20, 20]),
        output_len=np.array([1, 1, output_len]),
        computed=np.array([20, 20, 0]),
    )
    spec = RankSpec(pool_tokens=32, max_num_seqs=1)
    pool = Pool(clock=PlainClock(base_s=0.01), spec=spec, policy=POLICIES.find("chunked"), ranks=1)
    result = simulate(requests, pool)
    np.testing.assert_allclose(result.finish_s, [0.0, 0.0, 1.0 + 0.01 * output_len], atol=1e-12)
    assert result.blocks_left == 0

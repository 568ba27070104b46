"""Classes, routers, refusal and the frontend: against queueing theory and an independent program in SimPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil, factorial
from typing import Any

import numpy as np
import pytest
import simpy

from rackline.passes.features import Array
from rackline.simulation import POLICIES, ROUTERS, PlainClock, Pool, RankSpec, Requests, simulate
from rackline.simulation.entrance import ADMISSIONS, AdmissionRule, Frontend, Stage
from rackline.simulation.routers import SessionAffinity

STEP_S = 0.001
ROOMY = RankSpec(pool_tokens=10_000_000, max_num_seqs=4096, max_batched_tokens=1 << 20)


def _pool(places: int, name: str) -> Pool:
    """A replica that serves so many requests at a time, each in 1 ms per token of its answer."""
    return Pool(clock=PlainClock(base_s=STEP_S), spec=replace(ROOMY, max_num_seqs=places), policy=POLICIES.find(name))


def _poisson(seed: int, rates: list[float], count: int, service_s: float = 1.0) -> Requests:
    """Requests of several tiers with exponential service."""
    rng = np.random.default_rng(seed)
    total = sum(rates)
    outputs = np.maximum(np.rint(rng.exponential(service_s / STEP_S, count)), 1).astype(int)
    return Requests(
        arrival_s=rng.exponential(1.0 / total, count).cumsum(),
        input_len=np.ones(count, int),
        output_len=outputs,
        priority=rng.choice(len(rates), count, p=np.array(rates) / total),
    )


def _erlang_b(servers: int, offered: float) -> float:
    """Share of requests that find all servers busy and are lost (Erlang 1917)."""
    return offered**servers / factorial(servers) / sum(offered**n / factorial(n) for n in range(servers + 1))


def _erlang_c(servers: int, offered: float) -> float:
    """Share of requests that wait (Erlang 1917)."""
    lost = _erlang_b(servers, offered)
    return lost / (1.0 - offered / servers * (1.0 - lost))


def _seen(requests: Requests, servers: int) -> tuple[list[float], float]:
    """Rates of the tiers as they were drawn, over what the servers can do, and the mean service [s]."""
    service_s = float(requests.output_len.mean()) * STEP_S
    counts = np.bincount(np.asarray(requests.priority))
    return (counts / float(requests.arrival_s[-1]) * service_s / servers).tolist(), service_s


def test_tiers_that_do_not_preempt_are_cobhams() -> None:
    """Cobham 1954, "Priority assignment in waiting line problems", for c equal servers:

    W_k = W_0 / ((1 - s_k-1) (1 - s_k)), with W_0 = C(c, a) / (c μ) and s_k the load of the tiers up to k.
    """
    servers = 3
    requests = _poisson(1, [0.5, 0.8, 0.6], 10_000)
    waits = simulate(requests, _pool(servers, "priority")).queue_s
    shares, service_s = _seen(requests, servers)
    load = sum(shares)
    together = float(simulate(requests, _pool(servers, "fcfs")).queue_s.mean())  # of the same sample, without tiers
    assert together == pytest.approx(_erlang_c(servers, load * servers) * service_s / servers / (1.0 - load), rel=0.15)
    upto, first = 0.0, together * (1.0 - load)
    for tier, share in enumerate(shares):
        before, upto = upto, upto + share
        mine = waits[requests.priority == tier]
        assert float(mine.mean()) == pytest.approx(first / ((1.0 - before) * (1.0 - upto)), rel=0.07)


def test_tiers_that_preempt_resume_where_they_were() -> None:
    """M/M/1 with preemptive-resume priority (White and Christie 1958), E[S²] = 2 E[S]²:

    T_k = E[S] / (1 - s_k-1) + Σ_i≤k λ_i E[S²] / 2 / ((1 - s_k-1) (1 - s_k)).
    """
    requests = _poisson(3, [0.3, 0.35], 14_000)
    result = simulate(requests, _pool(1, "preemptive"))
    shares, service_s = _seen(requests, 1)
    upto = 0.0
    for tier, share in enumerate(shares):
        before, upto = upto, upto + share
        expected = service_s * (1.0 / (1.0 - before) + upto / ((1.0 - before) * (1.0 - upto)))
        mine = result.e2e_s[requests.priority == tier]
        assert float(mine.mean()) == pytest.approx(expected, rel=0.08)
    assert result.preempted[requests.priority == 1].sum() > 1000
    assert not result.preempted[requests.priority == 0].any()
    assert result.blocks_left == 0


def test_requests_that_find_no_place_are_lost_as_erlang_says() -> None:
    servers, offered = 4, 3.0
    requests = replace(_poisson(4, [offered], 10_000), priority=None)
    rule = AdmissionRule(name="concurrency", limit=servers)
    result = simulate(requests, _pool(servers, "fcfs"), admission=rule)
    assert float(result.refused.mean()) == pytest.approx(_erlang_b(servers, offered), rel=0.06)
    assert float(np.nanmax(result.queue_s)) < 2.0 * STEP_S  # who is admitted does not wait
    assert result.finished.sum() + result.refused.sum() == len(requests)


def test_a_frontend_of_c_servers_is_m_m_c_and_a_tandem_with_the_engine() -> None:
    """Jackson 1957: the engine behind an M/M/c queue is a queue of its own."""
    rng = np.random.default_rng(5)
    servers, rate = 3, 0.7
    count = 12_000
    requests = _poisson(6, [rate], count)
    prompts = np.maximum(np.rint(rng.exponential(3000.0, count)), 1).astype(int)  # 3 s on a server of 1,000 tokens/s
    requests = replace(requests, input_len=prompts, priority=None)
    stage = Stage(name="tokeniser", tokens_per_s=1000.0, servers=servers)
    result = simulate(requests, _pool(1, "fcfs"), frontend=[stage])
    waits = _erlang_c(servers, 3.0 * rate) * 3.0 / (servers - 3.0 * rate)
    (data,) = result.frontend
    assert data["wait_s"]["mean"] == pytest.approx(waits, rel=0.1)
    assert data["utilization"] == pytest.approx(rate, rel=0.03)
    assert float(result.e2e_s.mean()) == pytest.approx(waits + 3.0 + 1.0 / (1.0 - rate), rel=0.08)


def test_stages_follow_each_other_first_come_first_served() -> None:
    """By hand: two servers of 1 s a request, then one of 2 s."""
    requests = Requests(arrival_s=np.array([0.0, 0.0, 0.5]), input_len=np.full(3, 100), output_len=np.ones(3, int))
    stages = [Stage(name="one", tokens_per_s=100.0, servers=2), Stage(name="two", tokens_per_s=50.0, servers=1)]
    left = Frontend(stages, requests).pass_all(requests.arrival_s, np.zeros(3, dtype=bool))
    assert left.tolist() == [3.0, 5.0, 7.0]


# an independent program: replicas step by step in SimPy, routers written from their formulas

PLACES, BLOCK, UNIT = 3, 4, 8
CLOCK = {"base_s": 0.01, "per_sequence_s": 0.002, "per_prompt_token_s": 0.0004}
BLOCKS = 200


class _Twin:
    """A replica that admits in the order of arrival and gives every running request a token in each step."""

    def __init__(self, env: simpy.Environment, requests: Requests, finish: Array) -> None:
        self.env, self.requests, self.finish = env, requests, finish
        self.waiting: list[int] = []
        self.running: dict[int, int] = {}  # request → tokens of its answer
        self.known: set[int] = set()
        self.begun: set[int] = set()
        self.sent: dict[int, int] = {}
        self.wake = env.event()
        env.process(self.go())

    @property
    def load(self) -> int:
        return len(self.waiting) + len(self.running)

    @property
    def blocks(self) -> int:
        """KV blocks in use; those that requests share count once."""
        prompts = self.requests.input_len
        if self.requests.hashes is None:
            return sum(ceil((int(prompts[one]) + made - 1) / BLOCK) for one, made in self.running.items())
        own = sum(
            ceil((int(prompts[one]) + made - 1) / BLOCK) - len(self.requests.hashes[one]) * UNIT // BLOCK
            for one, made in self.running.items()
        )
        return own + len({block for one in self.running for block in self.requests.hashes[one]}) * UNIT // BLOCK

    def prefix(self, request: int) -> int:
        """Blocks of the prompt that it has computed."""
        found = 0
        for block in self.requests.hashes[request] if self.requests.hashes is not None else ():
            if block not in self.known:
                break
            found += 1
        return found

    def give(self, request: int) -> None:
        self.waiting.append(request)
        if not self.wake.triggered:
            self.wake.succeed()

    def go(self) -> Any:
        lengths, answers = self.requests.input_len, self.requests.output_len
        while True:
            if not self.load:
                self.wake = self.env.event()
                yield self.wake
            decoding = list(self.running)
            new: list[int] = []
            tokens = 0
            while self.waiting and len(self.running) < PLACES:
                one = self.waiting.pop(0)
                most = (int(lengths[one]) - 1) // UNIT
                tokens += int(lengths[one]) - min(self.prefix(one), most) * UNIT
                self.running[one] = 0
                self.begun.add(one)
                new.append(one)
            seconds = CLOCK["base_s"] + CLOCK["per_sequence_s"] * len(decoding) + CLOCK["per_prompt_token_s"] * tokens
            end = self.env.now + seconds
            for one in new:
                self.known.update(self.requests.hashes[one] if self.requests.hashes is not None else ())
                self.sent.pop(one, None)
            for one in list(self.running):
                self.running[one] += 1
                if self.running[one] == answers[one]:
                    del self.running[one]
                    self.finish[one] = end
            yield self.env.timeout(seconds)


def _scores(name: str, request: int, twins: list[_Twin], turn: int) -> int:
    """Place of the replica by the published rule, written anew."""
    requests = twins[0].requests
    loads = [one.load for one in twins]
    least = loads.index(min(loads))
    prefixes = [one.prefix(request) for one in twins]
    if name == "round-robin":
        return turn % len(twins)
    if name == "prefix-aware":
        if requests.hashes is None or (max(loads) - min(loads) > 32 and max(loads) > 1.1 * min(loads)):
            return least
        best = max(prefixes)
        if best <= 0.5 * len(requests.hashes[request]):
            return least
        return min((load, place) for place, load in enumerate(loads) if prefixes[place] == best)[1]
    if name == "llm-d":
        queues = [len(one.waiting) for one in twins]
        spread = max(queues) - min(queues)
        found: list[float] = []
        for one, queue, prefix in zip(twins, queues, prefixes, strict=True):
            total = 2.0 * (1.0 if not spread else (max(queues) - queue) / spread) + 2.0 * (1.0 - one.blocks / BLOCKS)
            total += 3.0 * prefix / len(requests.hashes[request]) if requests.hashes is not None else 0.0
            found.append(total)
        return max(range(len(twins)), key=lambda place: (found[place], -loads[place]))
    if name == "dynamo-kv":
        prompt, costs = int(requests.input_len[request]), []
        for one, prefix in zip(twins, prefixes, strict=True):
            queued = sum(int(requests.input_len[other]) for other in one.waiting)
            costs.append(sum(one.sent.values()) + prompt - prefix * UNIT + one.blocks * BLOCK + queued)
        found_at = min(range(len(twins)), key=lambda place: (costs[place], loads[place]))
        twins[found_at].sent[request] = prompt - prefixes[found_at] * UNIT
        return found_at
    assert name == "least-loaded"
    return least


def _twin(name: str, requests: Requests, replicas: int, refuses: Callable[[list[_Twin]], bool] | None = None) -> Array:
    env = simpy.Environment()
    finish = np.full(len(requests), np.nan)
    twins = [_Twin(env, requests, finish) for _ in range(replicas)]

    def arrive() -> Any:
        turn = 0
        for request, time_s in enumerate(requests.arrival_s.tolist()):
            yield env.timeout(time_s - env.now)
            if refuses is not None and refuses(twins):
                continue
            twins[_scores(name, request, twins, turn)].give(request)
            turn += 1

    env.process(arrive())
    env.run(until=1e4)
    return finish


def _small(seed: int, *, shares: bool) -> Requests:
    rng = np.random.default_rng(seed)
    count = 150
    hashes = None
    inputs = rng.integers(4, 40, count)
    if shares:
        inputs = rng.integers(3, 9, count) * UNIT + rng.integers(1, UNIT, count)
        kinds = rng.integers(0, 4, count).tolist()
        hashes = [
            [1000 * kind + place for place in range(length // UNIT)]
            for kind, length in zip(kinds, inputs.tolist(), strict=True)
        ]
    return Requests(
        arrival_s=rng.exponential(0.045, count).cumsum(),
        input_len=inputs,
        output_len=rng.integers(1, 25, count),
        hashes=hashes,
        hash_tokens=UNIT,
    )


def _replicas(number: int, *, shares: bool) -> Pool:
    spec = RankSpec(pool_tokens=BLOCKS * BLOCK, block_size=BLOCK, max_num_seqs=PLACES, max_batched_tokens=1000,
                    prefix_caching=shares, hash_tokens=UNIT)  # fmt: skip
    return Pool(clock=PlainClock(**CLOCK), spec=spec, policy=POLICIES.find("chunked"), replicas=number)


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("name", [name for name in ROUTERS if name != "session-affinity"])
def test_a_router_is_its_simpy_twin(name: str, shares: bool) -> None:
    requests = _small(7, shares=shares)
    result = simulate(requests, _replicas(4, shares=shares), router=name)
    np.testing.assert_allclose(result.finish_s, _twin(name, requests, 4), atol=1e-9)


@pytest.mark.parametrize(
    ("rule", "refuses"),
    [
        (
            AdmissionRule(name="queue", limit=2.0),
            lambda twins: sum(len(one.waiting) for one in twins) >= 2 * len(twins),
        ),
        (AdmissionRule(name="concurrency", limit=4.0), lambda twins: sum(one.load for one in twins) >= 4 * len(twins)),
        (
            AdmissionRule(name="saturation"),
            lambda twins: np.mean([max(len(one.waiting) / 5, one.blocks / BLOCKS / 0.8) for one in twins]) >= 1.0,
        ),
    ],
)  # fmt: skip
def test_a_rule_is_its_simpy_twin(rule: AdmissionRule, refuses: Callable[[list[_Twin]], bool]) -> None:
    requests = _small(8, shares=False)
    requests = replace(requests, arrival_s=requests.arrival_s / 3.0)
    if rule.name == "saturation":  # which refuses what is not the most urgent: a first request is
        tiers = np.ones(len(requests), int)
        tiers[0] = 0
        requests = replace(requests, priority=tiers)
    result = simulate(requests, _replicas(2, shares=False), router="llm-d", admission=rule)
    np.testing.assert_allclose(result.finish_s, _twin("llm-d", requests, 2, refuses), atol=1e-9)
    assert 0 < result.refused.sum() == np.isnan(result.finish_s).sum() < len(requests)


@pytest.mark.parametrize("name", [*ADMISSIONS])
def test_what_comes_is_answered_or_refused(name: str) -> None:
    """Requests in = answered + refused; no KV block is left; the same seed gives the same answer."""
    requests = _small(9, shares=False)
    requests = replace(requests, arrival_s=requests.arrival_s / 4.0, priority=np.arange(len(requests)) % 2)
    rule = AdmissionRule(name=name, limit=1.0 if name in ("queue", "concurrency") else None, seed=3)
    pool = replace(_replicas(2, shares=False), policy=POLICIES.find("preemptive"))
    runs = [simulate(requests, pool, router="least-loaded", admission=rule) for _ in range(2)]
    first, again = runs
    assert first.finished.sum() + first.refused.sum() == len(requests)
    assert first.refused.sum() > 0
    assert first.blocks_left == 0
    assert first.refused.tolist() == again.refused.tolist()
    data = first.summary()
    assert data["requests"] == data["finished"] + data["refused"] + data["unfinished"]
    if name in ("saturation", "probabilistic"):
        assert not first.refused[requests.priority == 0].any()


def test_a_conversation_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(10)
    count, turns = 120, 4
    after = np.where(np.arange(count) % turns == 0, -1, np.arange(count) - 1)
    pauses = np.where(after < 0, np.repeat(rng.exponential(0.05, count // turns).cumsum(), turns), 0.2)
    requests = Requests(arrival_s=pauses, input_len=np.full(count, 10), output_len=np.full(count, 5), after=after)
    places: dict[int, set[int]] = {}
    chosen: list[tuple[int, int]] = []

    class Noting(SessionAffinity):
        def choose(self, request: int, standing: Any) -> int:
            found = super().choose(request, standing)
            chosen.append((request, found))
            return found

    monkeypatch.setitem(ROUTERS, "session-affinity", Noting)
    result = simulate(requests, _replicas(3, shares=False), router="session-affinity")
    for request, place in chosen:
        places.setdefault(request // turns, set()).add(place)
    assert result.finished.all()
    assert all(len(one) == 1 for one in places.values())
    assert len(set.union(*places.values())) == 3

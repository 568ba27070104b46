"""A fleet whose replicas come and go: against queueing theory, a step of load by hand, and a SimPy program."""

from __future__ import annotations

from dataclasses import replace
from math import factorial, inf
from typing import Any

import numpy as np
import pytest
import simpy

from rackline.passes.features import Array
from rackline.simulation import POLICIES, Handover, PlainClock, Pool, RankSpec, Requests
from rackline.simulation.autoscalers import AUTOSCALERS, Autoscaler, Seen, Setting
from rackline.simulation.fleet import run_fleet
from rackline.simulation.fleet_pool import Outage, Places, Scaled
from rackline.simulation.fleet_run import FleetRun
from rackline.simulation.load import Load

STEP_S = 0.001
ROOMY = RankSpec(pool_tokens=10_000_000, max_num_seqs=4096, max_batched_tokens=1 << 20)


def _pool(places: int) -> Pool:
    """Replicas that serve so many requests at a time, each in 1 ms per token of its answer."""
    return Pool(clock=PlainClock(base_s=STEP_S), spec=replace(ROOMY, max_num_seqs=places), policy=POLICIES.find("fcfs"))


def _requests(arrival_s: Array, service_s: Array) -> Requests:
    outputs = np.maximum(np.rint(service_s / STEP_S), 1).astype(int)
    return Requests(arrival_s=arrival_s, input_len=np.ones(len(outputs), int), output_len=outputs)


def _setting(requests: Requests, **more: Any) -> Setting:
    usual: dict[str, Any] = {"capacity_per_s": 1.0, "running": 2.0, "kv_use": 0.5, "start_s": 20.0, "begin": 1}
    return Setting(arrivals_s=requests.arrival_s, **(usual | more))


def _scaled(name: str, requests: Requests, places: int = 4, least: int = 1, **more: Any) -> Scaled:
    setting = _setting(requests, **more)
    return Scaled(pool=_pool(places), scaler=AUTOSCALERS.find(name), setting=setting, least=least, most=8, chips=2)


def _poisson(seed: int, rate: float, seconds: float, service_s: float) -> Requests:
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(0.0, seconds, rng.poisson(rate * seconds)))
    return _requests(times, rng.exponential(service_s, len(times)))


def test_a_replica_of_c_places_is_m_m_c() -> None:
    servers, service_s, load = 3, 1.0, 0.8
    offered = servers * load
    requests = _poisson(1, offered / service_s, 40_000.0, service_s)
    run = run_fleet(requests, _scaled("fixed", requests, places=servers), seconds=40_000.0)
    last = offered**servers / factorial(servers) / (1.0 - load)
    waits = last / (sum(offered**n / factorial(n) for n in range(servers)) + last)  # Erlang C
    expected = waits * service_s / (servers - offered)
    assert float((run.admitted_s - run.arrival_s).mean()) == pytest.approx(expected, rel=0.06)


class _OnDemand(Autoscaler):
    """A replica while somebody is there."""

    interval_s = 0.25

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def wish(self, seen: Seen) -> int:
        return int(seen.running + seen.waiting > 0)


def test_a_replica_that_starts_for_the_first_request_is_a_queue_with_set_up() -> None:
    """Welch 1964: the wait of M/G/1, and (2 E[D] + λ E[D²]) / (2 (1 + λ E[D])) for a set-up of D."""
    service_s, rate, start_s, tick = 5.0, 0.1, 10.0, _OnDemand.interval_s
    requests = _poisson(2, rate, 50_000.0, service_s)
    scaled = replace(_scaled("fixed", requests, places=1, start_s=start_s, begin=0), scaler=_OnDemand, least=0, most=1)
    run = run_fleet(requests, scaled, seconds=50_000.0)
    mean, square = start_s + tick / 2.0, (start_s + tick / 2.0) ** 2 + tick**2 / 12.0  # of the start and the poll
    load = rate * service_s
    expected = rate * 2.0 * service_s**2 / (2.0 * (1.0 - load)) + (2.0 * mean + rate * square) / (
        2.0 * (1.0 + rate * mean)
    )
    assert float((run.admitted_s - run.arrival_s).mean()) == pytest.approx(expected, rel=0.06)
    assert run.answered == len(requests)


def test_a_step_of_load_by_hand() -> None:
    """Two requests that never end keep a target of 1; five at 60 s make Kubernetes ask for seven replicas."""
    service = np.full(7, 500.0)
    requests = _requests(np.array([1.0, 1.0, 60.5, 60.5, 60.5, 60.5, 60.5]), service)
    scaled = _scaled("hpa", requests, places=100, running=1.0, start_s=20.0, begin=2)
    run = run_fleet(requests, scaled, seconds=2000.0)
    (pool,) = run.pools
    # asked at 75 s: 7 / 1 → 7, but from 2 at most to max(4, 6); at 90 s the rest, all ready 20 s later
    begun = np.sort(pool.spans_s[:, 0])
    assert begun.tolist() == [0.0, 0.0, 75.0, 75.0, 75.0, 75.0, 90.0]
    assert np.sort(pool.spans_s[:, 1]).tolist() == [0.0, 0.0, 95.0, 95.0, 95.0, 95.0, 110.0]
    # two end at 501 s, five at 560.5 s; what was wished for in the last 300 s holds until then. Those that were there
    # first have the requests, and the newest go first.
    ended = np.sort(pool.spans_s[np.isfinite(pool.spans_s[:, 2]), 2])
    assert ended.tolist() == [810.0, 810.0, 870.0, 870.0, 870.0, 870.0]
    paid = sum(min(end, 2000.0) - start for start, _, end in pool.spans_s.tolist())
    assert run.chip_seconds == pytest.approx(2 * paid)
    assert run.answered == 7


def _twin(requests: Requests, scaled: Scaled, seconds: float) -> tuple[Array, float]:
    """The same fleet as a SimPy program: (end of each request [s], chip-seconds)."""
    env = simpy.Environment()
    ask = scaled.scaler(scaled.setting)
    service = requests.output_len * STEP_S
    finish = np.full(len(requests), inf)
    places = scaled.pool.spec.max_num_seqs
    members: list[dict[str, Any]] = []
    held: list[int] = []
    turn = [0]
    arrived = [0]

    def serve(member: dict[str, Any], request: int) -> Any:
        with member["places"].request() as place:
            member["queue"] += 1
            yield place
            member["queue"] -= 1
            member["running"] += 1
            yield env.timeout(float(service[request]))
            member["running"] -= 1
        finish[request] = env.now
        leave(member)

    def leave(member: dict[str, Any]) -> None:
        if member["drains"] and not member["running"] + member["queue"] and member["end"] == inf:
            member["end"] = env.now

    def give(request: int) -> None:
        ready = [one for one in members if one["ready"] and not one["drains"]]
        if not ready:
            held.append(request)
            return
        member = ready[turn[0] % len(ready)]
        turn[0] += 1
        member["number"] += 1
        env.process(serve(member, request))

    def arrive() -> Any:
        for request, time_s in enumerate(requests.arrival_s.tolist()):
            yield env.timeout(time_s - env.now)
            arrived[0] += 1
            give(request)

    def start(member: dict[str, Any], after_s: float) -> Any:
        yield env.timeout(after_s)
        if member["end"] == inf:
            member["ready"] = True
            waiting = held[:]
            held.clear()
            for request in waiting:
                give(request)

    def add(after_s: float) -> None:
        member = {"places": simpy.Resource(env, places), "queue": 0, "running": 0, "number": 0, "ready": not after_s,
                  "drains": False, "begun": env.now, "end": inf}  # fmt: skip
        members.append(member)
        if after_s:
            env.process(start(member, after_s))

    def scale() -> Any:
        for _ in range(scaled.setting.begin):
            add(0.0)
        while True:
            there = [one for one in members if one["end"] == inf and not one["drains"]]
            ready = [one for one in there if one["ready"]]
            seen = Seen(
                time_s=env.now,
                ready=len(ready),
                starting=len(there) - len(ready),
                running=sum(one["running"] for one in ready),
                waiting=sum(one["queue"] for one in ready) + len(held),
                kv_use=0.0,
                arrived=arrived[0],
            )
            arrived[0] = 0
            wish = min(max(ask.wish(seen), scaled.least), scaled.most)
            for _ in range(wish - len(there)):
                add(scaled.setting.start_s)
            for member in sorted(there, key=lambda one: (one["ready"], -members.index(one)))[
                : max(len(there) - wish, 0)
            ]:
                member["drains"] = True
                if not member["ready"]:
                    member["end"] = env.now
                leave(member)
            yield env.timeout(ask.interval_s)

    env.process(scale())
    env.process(arrive())
    env.run(until=seconds + 3600.0)
    paid = sum(max(min(one["end"], seconds) - min(one["begun"], seconds), 0.0) for one in members)
    return finish, paid * scaled.chips


@pytest.mark.parametrize("name", [name for name in AUTOSCALERS if name != "hpa-kv"])
def test_a_fleet_is_its_simpy_twin(name: str) -> None:
    """Each policy, fed by both programs: the same ends of requests and the same chip-seconds."""
    rng = np.random.default_rng(5)
    load = Load(edges_s=np.arange(7) * 300.0, rates_per_s=np.array([0.3, 1.0, 3.0, 2.0, 0.2, 0.5]))
    times = load.arrivals(rng)
    requests = _requests(times, rng.exponential(1.5, len(times)))
    scaled = _scaled(name, requests, places=2, least=0 if name == "keda" else 1, capacity_per_s=0.9, running=1.0)
    run = run_fleet(requests, scaled, seconds=load.seconds)
    finish, paid = _twin(requests, scaled, load.seconds)
    # a prompt joins a batch at the end of a step, so that ends differ by steps
    assert np.abs(run.finish_s - finish).max() < 5.0 * STEP_S * scaled.pool.spec.max_num_seqs
    assert run.chip_seconds == pytest.approx(paid, rel=1e-4)


def _conserved(run: FleetRun, count: int) -> None:
    """Requests in = answered + unanswered; chip-seconds are those of the replicas that are there."""
    assert run.answered + run.unanswered == count == len(run.requests)
    times = np.linspace(0.0, run.seconds, 200_001)[:-1]
    there = sum(pool.chips * pool.serving(times, place=0).mean() for pool in run.pools)
    assert run.chip_seconds == pytest.approx(there * run.seconds + run.spare_chips * run.seconds, rel=1e-3)


@pytest.mark.parametrize("name", [*AUTOSCALERS])
def test_nothing_is_lost(name: str) -> None:
    requests = _poisson(7, 1.5, 1200.0, 1.5)
    run = run_fleet(requests, _scaled(name, requests, places=2, capacity_per_s=0.9, running=1.0), seconds=1200.0)
    _conserved(run, len(requests))
    assert run.answered == len(requests)


def test_requests_of_a_host_that_fails_are_sent_again() -> None:
    """One of two hosts fails at 100 s for 50 s: its request begins anew when a replica is there."""
    requests = _requests(np.array([10.0, 20.0, 200.0]), np.array([150.0, 150.0, 1.0]))
    scaled = replace(_scaled("fixed", requests, places=1, begin=2, start_s=7.0), most=2)
    outage = Outage(time_s=100.0, until_s=150.0, hosts=(0,))
    without = run_fleet(requests, scaled, seconds=600.0, places=Places(4, 2, 2), outages=[outage])
    # the request goes to the other replica at once, behind the one that is there until 170 s
    assert without.finish_s.tolist() == pytest.approx([320.0, 170.0, 201.0], abs=0.01)
    assert (without.lost_requests, without.failed_replicas, without.retries.tolist()) == (1, 1, [1, 0, 0])
    (pool,) = without.pools
    assert sorted(map(tuple, pool.spans_s.tolist())) == [
        (0.0, 0.0, 100.0),
        (0.0, 0.0, inf),
        (150.0, 157.0, inf),
    ]
    _conserved(without, 3)
    spare = run_fleet(requests, scaled, seconds=600.0, places=Places(4, 3, 2, spare_chips=2), outages=[outage])
    assert np.sort(spare.pools[0].spans_s[:, 1]).tolist() == [0.0, 0.0, 107.0]  # at once on the host that stood by
    assert spare.chip_seconds == pytest.approx(2 * (100.0 + 600.0 + 500.0) + 2 * 600.0)


def test_pools_scale_apart_and_hand_over() -> None:
    requests = _poisson(9, 1.0, 900.0, 2.0)
    main = _scaled("hpa", requests, places=2, capacity_per_s=0.9, running=1.5)
    front = replace(_scaled("hpa", requests, places=1, capacity_per_s=50.0, running=5.0), chips=1)
    handover = Handover(pool=front.pool, tokens_per_s=1000.0, latency_s=0.01)
    run = run_fleet(requests, main, front=front, handover=handover, seconds=900.0)
    _conserved(run, len(requests))
    prompts, outputs = run.pools
    assert len(prompts.spans_s) == 1
    assert len(outputs.spans_s) > 2
    assert run.answered == len(requests)
    assert float(np.nanmin(run.first_s - run.arrival_s)) >= 0.011

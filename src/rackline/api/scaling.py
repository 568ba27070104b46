"""`simulate` with a load over time: a fleet that follows it under each policy, its dollars and its misses."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, inf, isnan, nan, sqrt
from typing import TYPE_CHECKING, Any

from rackline.api.answer import Served, Watch
from rackline.api.rates import classes_of, strictest
from rackline.api.resolve import check_context, named, window_of
from rackline.api.scaled import Mark, Outcome, Ran, ScaledRuns
from rackline.api.server import Server, server_of, with_tiers
from rackline.api.simulate_options import SimulateQuestion
from rackline.api.traffic import Use, lengths_of, limits_of, load_of, note_early_ends, requests_of, with_use
from rackline.errors import InputError, nearest_name, require
from rackline.late import late
from rackline.units import parse_rate, parse_seconds

with late:
    import numpy as np

    from rackline import hardware, processes, simulation
    from rackline.parallel import memory
    from rackline.pricing import terms
    from rackline.search import rate_capacity
    from rackline.simulation import autoscalers, fleet, fleet_pool, fleet_run, load as loads

if TYPE_CHECKING:
    from rackline.parallel import Deployment, Layout

FIXED, ORACLE = "fixed", "oracle"
_MARK_REQUESTS = 20_000  # a queue that grows slowly is seen in them
_WINDOWS = 24
_PLENTY = 64  # replicas for prompts, so that those for outputs are what limits
USUAL_SHARE = 0.7
"""Share of a replica's highest rate that policies aim at: the share of its target at which Knative's autoscaler does
(knative/docs, kpa-specific.md, read 2026-11-23)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ground:
    """What all runs of a question share."""

    question: SimulateQuestion
    server: Server
    load: loads.Load
    slo: simulation.Slo
    start: fleet_pool.StartUp | None
    start_s: float
    fails: fleet_pool.Failures | None

    @property
    def layouts(self) -> list[tuple[str, simulation.Pool, Layout]]:
        """Name, pool and layout of each pool, prompts first."""
        server = self.server
        own = [("all", server.pool, server.deployment.layout)]
        if server.prefill is None or server.prefill_layout is None:
            return own
        return [("prompts", server.prefill.pool, server.prefill_layout), ("outputs", *own[0][1:])]

    def most(self, layout: Layout) -> int:
        """Most replicas of a pool [count]."""
        fits = self.server.deployment.cluster.num_chips // layout.chips_per_replica
        return self.question.max_replicas or max(fits, 1)

    def run(self, policy: str, marks: Sequence[Mark], seed: int, progress: Served | None) -> fleet_run.FleetRun:
        """Run a policy once.

        Args:
            policy: its name.
            marks: of each pool.
            seed: of arrivals and failures.
        """
        question, server = self.question, self.server
        requests = requests_of(replace(question, seed=seed), window_of(server.deployment.model))
        pools = [
            self._scaled(policy, pool, layout, mark, requests, place)
            for place, ((_, pool, layout), mark) in enumerate(zip(self.layouts, marks, strict=True))
        ]
        outages, places = self._hosts(pools, seed)
        return fleet.run_fleet(
            requests,
            pools[-1],
            seconds=self.load.seconds,
            entrance=server.entrance,
            front=pools[0] if len(pools) > 1 else None,
            handover=server.prefill,
            outages=outages,
            places=places,
            skip_bad=question.skip_bad,
            progress=progress,
        )

    def _scaled(
        self, policy: str, pool: simulation.Pool, layout: Layout, mark: Mark, requests: simulation.Requests, place: int
    ) -> fleet_pool.Scaled:
        question, most = self.question, self.most(layout)
        given = question.prefill_replicas if place == 0 and self.server.prefill is not None else question.replicas
        rate = self.load.peak_per_s if policy == FIXED else float(self.load.rates_per_s[0])
        setting = autoscalers.Setting(
            capacity_per_s=mark.capacity_per_s,
            running=mark.running,
            kv_use=mark.kv_use,
            start_s=self.start_s,
            begin=1,
            target=question.scale_target,
            arrivals_s=requests.arrival_s,
        )
        begin = min(given or max(setting.enough(rate), question.min_replicas), most)
        return fleet_pool.Scaled(
            pool=pool,
            scaler=autoscalers.AUTOSCALERS.find(policy),
            setting=replace(setting, begin=begin),
            least=min(question.min_replicas, most),
            most=most,
            chips=layout.chips_per_replica,
        )

    def _hosts(
        self, pools: Sequence[fleet_pool.Scaled], seed: int
    ) -> tuple[list[fleet_pool.Outage], fleet_pool.Places]:
        """When hosts fail, and those that there are: enough for the most replicas, and the spare ones."""
        cluster = self.server.deployment.cluster
        size, most = cluster.host_chips, max(cluster.num_chips, max(one.most * one.chips for one in pools))
        if self.fails is None:
            return [], fleet_pool.Places(most)
        needed = sum(
            ceil(one.most / (size // one.chips)) if one.chips <= size else one.most * ceil(one.chips / size)
            for one in pools
        )
        hosts = needed + self.question.spare_hosts
        drawn = self.fails.draw(np.random.default_rng([seed, hosts]), hosts, self.load.seconds)
        return drawn, fleet_pool.Places(most, hosts, size, self.question.spare_hosts * size)

    def outcome(self, policy: str, run: fleet_run.FleetRun) -> Outcome:
        """The numbers of one run."""
        price = self.server.deployment.cluster.usd_per_chip_hour
        online = run.online
        judged = [one for one in run.by_class() if "attained" in one]
        attained, holds = online.attained(self.slo), online.holds(self.slo)
        if judged:  # each class by its own limits
            count = sum(one["requests"] for one in judged)
            attained = sum(one.get("attained", 0.0) * one["requests"] for one in judged) / count
            holds = all(one.get("holds", False) for one in judged)
        return Outcome(
            policy=policy,
            chip_hours=run.chip_hours,
            usd=None if price is None else price * run.chip_hours,
            attained=attained,
            holds=holds,
            ttft_p99_s=simulation.percentiles(online.ttft_s)["p99"],
            tpot_p99_s=simulation.percentiles(online.tpot_s)["p99"],
            mean_replicas=run.mean_replicas,
            most_replicas=run.most_replicas,
            requests=online.count,
            refused=online.refused_requests,
            unanswered=online.unanswered,
            lost_requests=run.lost_requests,
            failed_replicas=run.failed_replicas,
        )


def scaled_runs(question: SimulateQuestion, watch: Watch) -> ScaledRuns:
    """Serve a load over time under each policy that is asked for, and under the oracle.

    Raises:
        InputError: options that contradict each other.
    """
    policies = tuple(dict.fromkeys(question.autoscale or (FIXED,)))
    for name in policies:
        autoscalers.AUTOSCALERS.find(name)
    kinds = classes_of(question)
    if kinds and question.slo is None:
        question = replace(question, slo=strictest(kinds))
    question, use = with_use(with_tiers(question, watch))
    if question.slo is None:
        raise InputError(what="slo", given="nothing", allowed="limits to judge by, such as ttft=2s,tpot=50ms@p99")
    ground = _ground(question, limits_of(question.slo, "slo"), watch)
    least = min(ground.most(layout) for _, _, layout in ground.layouts)
    require(
        question.min_replicas <= least,
        what="min_replicas",
        given=question.min_replicas,
        allowed=f"up to {least}",
        nearest=f"{least}",
    )
    marks, reason = _marks(ground, watch)
    if reason:
        return _answer(ground, marks, [], reason, use)
    if ground.load.estimated:
        watch.warn(f"the shape of the load is assumed: {ground.load.estimated}")
    names = [*policies, *([] if ORACLE in policies else [ORACLE])]
    ran: list[Ran] = []
    window = question.window or ground.load.seconds / _WINDOWS
    for name in names:
        try:
            with watch.serving(f"{ground.load.name} with {name}") as progress:
                run = ground.run(name, marks, question.seed, progress)
            ran.append(Ran(outcome=ground.outcome(name, run), run=run, windows=run.online.windows(window, ground.slo)))
        except KeyboardInterrupt:  # while a run is summed up
            if not ran:
                raise
            watch.warn(f"interrupted: {name} is left out")
            break
        if run.interrupted:
            break
    more = {name: [one.outcome] for name, one in zip(names, ran, strict=False)}
    if question.seeds > 1 and not any(one.run.interrupted for one in ran):
        _further_seeds(ground, marks, names, more, watch)
    return _answer(ground, marks, [replace(one, outcome=_mean(more[one.outcome.policy])) for one in ran], "", use)


def _ground(question: SimulateQuestion, slo: simulation.Slo, watch: Watch) -> _Ground:
    model, cluster = named(question, watch)
    requests = requests_of(question, window_of(model))
    note_early_ends(question, model, 0, watch)
    longest = int((requests.input_len + requests.output_len).max())
    check_context(model, float(longest), watch)
    server = server_of(question, model, cluster, requests.hash_tokens, longest, watch)
    start, start_s = _start(question, server.deployment)
    return _Ground(
        question=question, server=server, load=load_of(question), slo=slo, start=start, start_s=start_s,
        fails=_failures(question, cluster),
    )  # fmt: skip


def _start(question: SimulateQuestion, deployment: Deployment) -> tuple[fleet_pool.StartUp | None, float]:
    """The start of a replica in parts, and the whole of it [s]."""
    kinds: tuple[fleet_pool.Kind, ...] = ("warm", "cold")
    kind: fleet_pool.Kind | None = next((one for one in kinds if one == question.start_up), None)
    if kind is None:
        near = nearest_name(question.start_up, kinds)
        try:
            return None, parse_seconds(question.start_up, name="start_up", zero_allowed=True)
        except InputError:
            raise InputError(
                what="start_up", given=question.start_up, allowed="warm, cold or a time such as 90s", nearest=near
            ) from None
    layout, cluster = deployment.layout, deployment.cluster
    chips = layout.chips_per_replica
    hosts = ceil(chips / cluster.host_chips)
    per_chip = sum(memory.weight_bytes(deployment.model, layout, deployment.precision).values())
    held = float(np.max(np.asarray(per_chip))) * chips
    found = fleet_pool.start_up(kind, held, chips, hosts, _link(question, cluster))
    return found, found.seconds


def _link(question: SimulateQuestion, cluster: hardware.Cluster) -> float:
    """Rate at which a host reads weights [bytes/s]."""
    if question.weights_from == "disk":
        return hardware.memory_tier("nvme-4tb").bytes_per_s
    if question.weights_from == "network":
        if cluster.scale_out is None:
            raise InputError(
                what="weights_from", given="network", allowed=f"disk or a rate; {cluster.name} has no network"
            )
        return cluster.scale_out.bytes_per_s_each_way * cluster.host_chips
    try:
        return parse_rate(question.weights_from, name="weights_from")
    except InputError:
        near = nearest_name(question.weights_from, ("disk", "network"))
        raise InputError(
            what="weights_from", given=question.weights_from, allowed="disk, network or a rate such as 3GB/s",
            nearest=near,
        ) from None  # fmt: skip


def _failures(question: SimulateQuestion, cluster: hardware.Cluster) -> fleet_pool.Failures | None:
    """How hosts fail; None where they do not."""
    if question.failures == "none":
        return None
    rates = terms.stored()["hosts"]
    per_day = float(rates["failures_per_day"]) * cluster.host_chips / 8.0  # published of hosts of 8
    if question.failures != "published":
        try:
            between_s = parse_seconds(question.failures, name="failures", minimum=60.0)
        except InputError:
            near = nearest_name(question.failures, ("none", "published"))
            allowed = "none, published or the mean time between two failures of a host, such as 200d"
            raise InputError(what="failures", given=question.failures, allowed=allowed, nearest=near) from None
        per_day = 86400.0 / between_s
    rack = max((cluster.chips_per_rack or cluster.host_chips) // cluster.host_chips, 1)
    return fleet_pool.Failures(per_host_day=per_day, repair_s=float(rates["repair_s"]), rack_hosts=rack)


def _marks(ground: _Ground, watch: Watch) -> tuple[tuple[Mark, ...], str]:
    """A replica of each pool at its highest rate within the limits; the reason where one has none.

    Raises:
        InputError: a pool whose latency has no limit.
    """
    found: list[Mark] = []
    limits = {
        "all": ground.slo,
        "prompts": replace(ground.slo, tpot_s=None),
        "outputs": replace(ground.slo, ttft_s=None),
    }
    for name, pool, layout in ground.layouts:
        slo = limits[name]
        if not slo.limits():
            missing = {"prompts": "ttft", "outputs": "tpot", "all": "ttft or tpot"}[name]
            raise InputError(what="slo", given=ground.question.slo, allowed=f"a limit of {missing}")
        requests = _steady(ground.question, name)
        with watch.serving("the highest rate of a replica") as progress:
            front = ground.server.prefill if name == "outputs" else None
            serve = partial(
                simulation.simulate,
                pool=replace(pool, replicas=1),
                prefill=front and replace(front, pool=replace(front.pool, replicas=_PLENTY)),
                beyond_s=ground.server.beyond_s,
                skip_bad=ground.question.skip_bad,
                progress=progress,
            )
            capacity = rate_capacity.rate_capacity(requests, serve, slo)
            if not capacity.rate_per_s:
                what = {"prompts": "a replica for prompts", "outputs": "a replica for outputs", "all": "a replica"}[
                    name
                ]
                return tuple(found), f"{what} meets the limits at no rate: {capacity.reason or 'too slow'}"
            result = serve(requests.scaled(USUAL_SHARE * capacity.rate_per_s / requests.rate_per_s))
        there_s = result.finish_s - result.first_s if name == "outputs" else result.e2e_s
        running = USUAL_SHARE * capacity.rate_per_s * float(np.nanmean(there_s))
        held = float(np.mean(requests.input_len + 0.5 * requests.output_len))
        found.append(
            Mark(
                pool=name,
                capacity_per_s=capacity.rate_per_s,
                running=running,
                kv_use=min(running * held / (pool.spec.pool_tokens * pool.num_ranks), 1.0),
                chips=layout.chips_per_replica,
            )
        )
    return tuple(found), ""


def _steady(question: SimulateQuestion, pool: str) -> simulation.Requests:
    """Requests of the question's lengths at a constant rate; for one pool their prompts or their outputs alone."""
    rng = np.random.default_rng(question.seed)
    requests = simulation.open_arrivals(rng, _MARK_REQUESTS, 1.0, lengths_of(question), arrival_cv=question.arrival_cv)
    if pool == "prompts":
        return replace(requests, output_len=np.ones_like(requests.output_len))
    return requests


def _further_seeds(
    ground: _Ground, marks: Sequence[Mark], names: Sequence[str], found: dict[str, list[Outcome]], watch: Watch
) -> None:
    """The outcomes of the other seeds, in parallel; an interruption keeps what is done."""
    seed = ground.question.seed
    tasks = list(itertools.product(names, range(seed + 1, seed + ground.question.seeds)))
    with watch.counting("the other seeds", "runs") as done, processes.single_threads(), processes.bare_main():
        try:
            shared = (ground.question, tuple(marks))
            for (name, _), one in processes.mapped(seed_runner, shared, tasks, processes.usable_cores(), done):
                found[name].append(one)
        except KeyboardInterrupt:
            watch.warn(f"interrupted: {min(map(len, found.values()))} seeds or more of {ground.question.seeds}")


def seed_runner(question: SimulateQuestion, marks: Sequence[Mark]) -> Callable[[tuple[str, int]], Outcome]:
    """What a process beside this one runs: (policy, seed) → its outcome."""
    ground = _ground(question, limits_of(question.slo or "", "slo"), Watch())

    def run(task: tuple[str, int]) -> Outcome:
        name, seed = task
        return ground.outcome(name, ground.run(name, marks, seed, None))

    return run


_AVERAGED = ("chip_hours", "usd", "attained", "ttft_p99_s", "tpot_p99_s", "mean_replicas", "most_replicas", "requests",
             "refused", "unanswered", "lost_requests", "failed_replicas")  # fmt: skip


def _mean(outcomes: Sequence[Outcome]) -> Outcome:
    """The mean over seeds, with half of its 95 % interval (Student's t)."""
    first = outcomes[0]
    if len(outcomes) == 1:
        return first
    from scipy import special

    quantile = float(special.stdtrit(len(outcomes) - 1, 0.975))
    means: dict[str, Any] = {}
    halves: dict[str, float] = {}
    for name in _AVERAGED:
        values = [value for one in outcomes if (value := getattr(one, name)) is not None and not isnan(value)]
        if len(values) > 1:
            means[name] = float(np.mean(values))
            halves[name] = quantile * float(np.std(values, ddof=1)) / sqrt(len(values))
    return replace(first, **means, holds=all(one.holds for one in outcomes), intervals=halves)


def _answer(ground: _Ground, marks: Sequence[Mark], ran: Sequence[Ran], reason: str, use: Use) -> ScaledRuns:
    perfect = nan
    if not reason:
        cut = bool(ran) and ran[0].run.interrupted
        count = ran[0].run.count if cut else ground.load.mean_per_s * ground.load.seconds
        perfect = sum(count / mark.capacity_per_s * mark.chips for mark in marks) / 3600.0
    whole = [one for one in ran if not one.run.interrupted]
    oracle = next((one.outcome.chip_hours for one in whole if one.outcome.policy == ORACLE), inf)
    judged = [
        replace(
            one,
            outcome=replace(
                one.outcome,
                over_oracle=None if one.outcome.policy == ORACLE or oracle == inf or one.run.interrupted
                else one.outcome.chip_hours / oracle - 1.0,
                over_perfect=None if whole and one.run.interrupted else one.outcome.chip_hours / perfect - 1.0,
            ),
        )
        for one in ran
    ]  # fmt: skip
    return ScaledRuns(
        server=ground.server,
        load=ground.load,
        slo=ground.slo,
        marks=tuple(marks),
        start=ground.start,
        start_s=ground.start_s,
        perfect_chip_hours=perfect,
        ran=tuple(judged),
        window_s=ground.question.window or ground.load.seconds / _WINDOWS,
        reason=reason,
        seeds=ground.question.seeds,
        use=use,
    )

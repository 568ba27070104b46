"""Fleets that follow a load over time: dollars, misses and regret of each policy, and windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, inf, isnan, nan, sqrt
from typing import Any, ClassVar

import numpy as np

from rackline.parallel import Deployment, Layout
from rackline.parallel.memory import weight_bytes
from rackline.search.rate_capacity import rate_capacity
from rackline.search.simulated_server import Server
from rackline.simulation import Pool, Requests, Slo, open_arrivals, percentiles, simulate
from rackline.simulation.autoscalers import AUTOSCALERS, Setting
from rackline.simulation.fleet import run_fleet
from rackline.simulation.fleet_pool import Failures, Kind, Outage, Places, Scaled, StartUp, start_up
from rackline.simulation.fleet_run import FleetRun, WindowRow
from rackline.simulation.load import Load
from rackline.simulation.outcomes import ClassData
from rackline.simulation.run import Progress
from rackline.simulation.workloads import AnyLengths

FIXED, ORACLE = "fixed", "oracle"
_MARK_REQUESTS = 20_000  # a queue that grows slowly is seen in them
_PLENTY = 64  # replicas for prompts, so that those for outputs are what limits
USUAL_SHARE = 0.7
"""Share of a replica's highest rate that policies aim at: the share of its target at which Knative's autoscaler does
(knative/docs, kpa-specific.md, read 2026-11-23)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What a replica takes.

    Args:
        pool: "prompts", "outputs" or "all".
        capacity_per_s: its highest rate within the limits [requests/s].
        running: requests in it at 70 % of that rate [requests].
        kv_use: share of its KV blocks in use, likewise [1].
        chips: of it [count].
    """

    pool: str
    capacity_per_s: float
    running: float
    kv_use: float
    chips: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a policy did, over one seed or as a mean over several.

    Args:
        policy: its name.
        chip_hours: that were paid for [chip h].
        usd: of them; None without a price [USD].
        attained: share of the requests answered within the limits [1].
        holds: whether each limit is met at its percentile.
        ttft_p99_s, tpot_p99_s: over the whole run [s].
        mean_replicas, most_replicas: that were paid for [count].
        requests, refused, unanswered: of the run [requests].
        lost_requests: that were sent again as their replica failed [requests].
        failed_replicas: [count].
        over_oracle, over_perfect: chip-hours over those of the oracle, and of a perfect system, less 1; None for
            themselves [1].
        intervals: half of the 95 % interval of the mean over seeds, by name; empty for one seed.
    """

    policy: str
    chip_hours: float
    usd: float | None
    attained: float
    holds: bool
    ttft_p99_s: float
    tpot_p99_s: float
    mean_replicas: float
    most_replicas: float
    requests: float
    refused: float
    unanswered: float
    lost_requests: float
    failed_replicas: float
    over_oracle: float | None = None
    over_perfect: float | None = None
    intervals: dict[str, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One policy: its outcome, and the run of the first seed.

    Args:
        outcome: over all seeds.
        run: of the first.
        windows: of it.
    """

    json_keys: ClassVar = ("*outcome", "interrupted=run.interrupted", "by_class", "frontend=run.frontend", "windows")

    outcome: Outcome
    run: FleetRun
    windows: tuple[WindowRow, ...]

    @property
    def by_class(self) -> list[ClassData]:
        """What became of each class of requests in the first run; empty where there are none."""
        return self.run.by_class()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledFleet:
    """A load over time, served under each policy.

    Args:
        server: a replica, and what comes before it.
        load: the rates.
        slo: limits.
        marks: a replica of each pool at its highest rate within them.
        start: of a replica, in parts; None where a time was given.
        start_s: the whole [s].
        perfect_chip_hours: of a system that follows the load at once, in any fraction, at that rate [chip h].
        ran: each policy that was asked for, then the oracle.
        window_s: time of a window [s].
        reason: why there is none; empty otherwise.
        seeds: runs of each policy [count].
    """

    json_keys: ClassVar = (
        "deployment=server", "load", "slo", "replica=marks", "start_up=start",
        "start_up_s=start_s", "perfect_chip_hours", "perfect_usd", "policies=ran", "reason", "seeds",
    )  # fmt: skip

    server: Server
    load: Load
    slo: Slo
    marks: tuple[Mark, ...]
    start: StartUp | None
    start_s: float
    perfect_chip_hours: float
    ran: tuple[Ran, ...]
    window_s: float
    reason: str = ""
    seeds: int = 1

    @property
    def first(self) -> Ran:
        """The first policy that was asked for."""
        return self.ran[0]

    @property
    def perfect_usd(self) -> float | None:
        """What a perfect system would cost [USD]."""
        price = self.server.deployment.cluster.usd_per_chip_hour
        return None if price is None else price * self.perfect_chip_hours


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One layout under one policy.

    Args:
        layout: of a replica.
        outcome: what the policy did.
    """

    json_keys: ClassVar = ("layout", "*outcome")

    layout: str
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """A load over time under several layouts and policies.

    Args:
        runs: of each layout, by its label.
        reasons: why a layout has none, by its label.
    """

    json_keys: ClassVar = ("load=first.load", "slo=first.slo", "best", "tried", "perfect_chip_hours", "reasons")

    runs: dict[str, ScaledFleet]
    reasons: dict[str, str]

    @property
    def first(self) -> ScaledFleet:
        """The runs of the cheapest layout of the plan."""
        return next(iter(self.runs.values()))

    @property
    def tried(self) -> tuple[Tried, ...]:
        """Every layout under every policy, those that meet the limits first, then by chip-hours."""
        found = [Tried(layout=label, outcome=one.outcome) for label, runs in self.runs.items() for one in runs.ran]
        return tuple(sorted(found, key=lambda one: (not one.outcome.holds, one.outcome.chip_hours)))

    @property
    def best(self) -> Tried | None:
        """The fewest chip-hours that meet the limits, by a policy that one can run; None where none does."""
        return next((one for one in self.tried if one.outcome.holds and one.outcome.policy != ORACLE), None)

    @property
    def perfect_chip_hours(self) -> float:
        """Chip-hours of a perfect policy on the layout that needs least [chip h]."""
        return min((one.perfect_chip_hours for one in self.runs.values() if not one.reason), default=float("nan"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """By which replicas come and go.

    Args:
        scale_target: what a replica shall have of the policy's metric; None for what it has at its mark.
        min_replicas: fewest of a pool [count].
        max_replicas: most of a pool; None for as many as fit on the chips [count].
        replicas: that decode at the start; None for as many as the rate needs [count].
        prefill_replicas: that compute prompts at the start, likewise [count].
        spare_hosts: that stand by [count].
        arrival_cv: of the times between arrivals [1].
        seed: of the requests by which a replica is measured.
        skip_bad: leave out requests that can never fit.
    """

    scale_target: float | None = None
    min_replicas: int = 1
    max_replicas: int | None = None
    replicas: int | None = None
    prefill_replicas: int | None = None
    spare_hosts: int = 0
    arrival_cv: float = 1.0
    seed: int = 0
    skip_bad: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedFleet:
    """A fleet and the load that it follows: what all runs share.

    Args:
        server: a replica, and what comes before it.
        draw_requests: gives the requests of a seed.
        lengths: of the requests, which a replica's highest rate is measured with.
        load: the rates.
        slo: limits.
        rules: by which replicas come and go.
        start: of a replica, in parts; None where a time was given.
        start_s: the whole [s].
        failures: how hosts fail; None where they do not.
    """

    server: Server
    draw_requests: Callable[[int], Requests]
    lengths: AnyLengths
    rules: Rules
    load: Load
    slo: Slo
    start: StartUp | None
    start_s: float
    failures: Failures | None

    @property
    def layouts(self) -> list[tuple[str, Pool, Layout]]:
        """Name, pool and layout of each pool, prompts first."""
        server = self.server
        own = [("all", server.pool, server.deployment.layout)]
        if server.prefill is None or server.prefill_layout is None:
            return own
        return [("prompts", server.prefill.pool, server.prefill_layout), ("outputs", *own[0][1:])]

    def limits_of(self, pool: str) -> Slo:
        """Return the limits of what a pool decides: "prompts", "outputs" or "all"."""
        if pool == "prompts":
            return replace(self.slo, tpot_s=None)
        return replace(self.slo, ttft_s=None) if pool == "outputs" else self.slo

    @property
    def missing_limit(self) -> str:
        """The latency that a pool decides and that has no limit; empty where each has one."""
        decided = {"prompts": "ttft", "outputs": "tpot", "all": "ttft or tpot"}
        return next((decided[name] for name, _, _ in self.layouts if not self.limits_of(name).limits()), "")

    def most(self, layout: Layout) -> int:
        """Most replicas of a pool [count]."""
        fits = self.server.deployment.cluster.num_chips // layout.chips_per_replica
        return self.rules.max_replicas or max(fits, 1)

    def run(self, policy: str, marks: Sequence[Mark], seed: int, progress: Progress | None) -> FleetRun:
        """Run a policy once.

        Args:
            policy: its name.
            marks: of each pool.
            seed: of arrivals and failures.
        """
        server = self.server
        requests = self.draw_requests(seed)
        pools = [
            self._scaled(policy, pool, layout, mark, requests, place)
            for place, ((_, pool, layout), mark) in enumerate(zip(self.layouts, marks, strict=True))
        ]
        outages, places = self._hosts(pools, seed)
        return run_fleet(
            requests,
            pools[-1],
            seconds=self.load.seconds,
            entrance=server.entrance,
            front=pools[0] if len(pools) > 1 else None,
            handover=server.prefill,
            outages=outages,
            places=places,
            skip_bad=self.rules.skip_bad,
            progress=progress,
        )

    def _scaled(self, policy: str, pool: Pool, layout: Layout, mark: Mark, requests: Requests, place: int) -> Scaled:
        rules, most = self.rules, self.most(layout)
        given = rules.prefill_replicas if place == 0 and self.server.prefill is not None else rules.replicas
        rate = self.load.peak_per_s if policy == FIXED else float(self.load.rates_per_s[0])
        setting = Setting(
            capacity_per_s=mark.capacity_per_s,
            running=mark.running,
            kv_use=mark.kv_use,
            start_s=self.start_s,
            begin=1,
            target=rules.scale_target,
            arrivals_s=requests.arrival_s,
        )
        begin = min(given or max(setting.enough(rate), rules.min_replicas), most)
        return Scaled(
            pool=pool,
            scaler=AUTOSCALERS.find(policy),
            setting=replace(setting, begin=begin),
            least=min(rules.min_replicas, most),
            most=most,
            chips=layout.chips_per_replica,
        )

    def _hosts(self, pools: Sequence[Scaled], seed: int) -> tuple[list[Outage], Places]:
        """When hosts fail, and those that there are: enough for the most replicas, and the spare ones."""
        cluster = self.server.deployment.cluster
        size, most = cluster.host_chips, max(cluster.num_chips, max(one.most * one.chips for one in pools))
        if self.failures is None:
            return [], Places(most)
        needed = sum(
            ceil(one.most / (size // one.chips)) if one.chips <= size else one.most * ceil(one.chips / size)
            for one in pools
        )
        hosts = needed + self.rules.spare_hosts
        drawn = self.failures.draw(np.random.default_rng([seed, hosts]), hosts, self.load.seconds)
        return drawn, Places(most, hosts, size, self.rules.spare_hosts * size)

    def outcome(self, policy: str, run: FleetRun) -> Outcome:
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
            ttft_p99_s=percentiles(online.ttft_s)["p99"],
            tpot_p99_s=percentiles(online.tpot_s)["p99"],
            mean_replicas=run.mean_replicas,
            most_replicas=run.most_replicas,
            requests=online.count,
            refused=online.refused_requests,
            unanswered=online.unanswered,
            lost_requests=run.lost_requests,
            failed_replicas=run.failed_replicas,
        )


def start_up_of(deployment: Deployment, kind: Kind, link_bytes_per_s: float) -> StartUp:
    """Return the start of a replica in parts.

    Args:
        link_bytes_per_s: rate at which a host reads weights [bytes/s].
    """
    layout, cluster = deployment.layout, deployment.cluster
    chips = layout.chips_per_replica
    hosts = ceil(chips / cluster.host_chips)
    per_chip = sum(weight_bytes(deployment.model, layout, deployment.precision).values())
    held = float(np.max(np.asarray(per_chip))) * chips
    return start_up(kind, held, chips, hosts, link_bytes_per_s)


def marks_of(
    loaded_fleet: LoadedFleet, serving: Callable[[str], AbstractContextManager[Progress | None]]
) -> tuple[tuple[Mark, ...], str]:
    """A replica of each pool at its highest rate within the limits; the reason where one has none.

    Args:
        serving: returns a context for the run of a pool, which yields a callback for its progress.
    """
    found: list[Mark] = []
    for name, pool, layout in loaded_fleet.layouts:
        slo = loaded_fleet.limits_of(name)
        requests = _steady(loaded_fleet, name)
        with serving("the highest rate of a replica") as progress:
            front = loaded_fleet.server.prefill if name == "outputs" else None
            serve = partial(
                simulate,
                pool=replace(pool, replicas=1),
                prefill=front and replace(front, pool=replace(front.pool, replicas=_PLENTY)),
                beyond_s=loaded_fleet.server.beyond_s,
                skip_bad=loaded_fleet.rules.skip_bad,
                progress=progress,
            )
            capacity = rate_capacity(requests, serve, slo)
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


def _steady(loaded_fleet: LoadedFleet, pool: str) -> Requests:
    """Requests of the load's lengths at a constant rate; for one pool their prompts or their outputs alone."""
    rng = np.random.default_rng(loaded_fleet.rules.seed)
    requests = open_arrivals(rng, _MARK_REQUESTS, 1.0, loaded_fleet.lengths, arrival_cv=loaded_fleet.rules.arrival_cv)
    if pool == "prompts":
        return replace(requests, output_len=np.ones_like(requests.output_len))
    return requests


_AVERAGED = ("chip_hours", "usd", "attained", "ttft_p99_s", "tpot_p99_s", "mean_replicas", "most_replicas", "requests",
             "refused", "unanswered", "lost_requests", "failed_replicas")  # fmt: skip


def mean_outcome(outcomes: Sequence[Outcome]) -> Outcome:
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


def scaled_fleet(
    loaded_fleet: LoadedFleet,
    marks: Sequence[Mark],
    ran: Sequence[Ran],
    *,
    window_s: float,
    seeds: int,
    reason: str = "",
) -> ScaledFleet:
    """Judge each policy against the oracle and against a perfect system.

    Args:
        marks: a replica of each pool at its highest rate within the limits.
        ran: the policies that ran; the oracle is the last.
        window_s: time of a window [s].
        seeds: runs of each policy [count].
        reason: why nothing ran; empty otherwise.
    """
    perfect = nan
    if not reason:
        cut = bool(ran) and ran[0].run.interrupted
        count = ran[0].run.count if cut else loaded_fleet.load.mean_per_s * loaded_fleet.load.seconds
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
    return ScaledFleet(
        server=loaded_fleet.server,
        load=loaded_fleet.load,
        slo=loaded_fleet.slo,
        marks=tuple(marks),
        start=loaded_fleet.start,
        start_s=loaded_fleet.start_s,
        perfect_chip_hours=perfect,
        ran=tuple(judged),
        window_s=window_s,
        reason=reason,
        seeds=seeds,
    )

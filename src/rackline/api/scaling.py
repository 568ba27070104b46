"""`simulate` with a load over time: a fleet that follows it under each policy, its dollars and its misses."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from rackline.api.answer import Watch
from rackline.api.rates import classes_of
from rackline.api.resolve import check_context, named, window_of
from rackline.api.server import server_of, with_tiers
from rackline.api.simulate_options import SimulateQuestion
from rackline.api.traffic import Use, lengths_of, limits_of, load_of, note_early_ends, requests_of, with_use
from rackline.errors import InputError, nearest_name, require
from rackline.late import late
from rackline.units import parse_rate, parse_seconds

with late:
    from rackline import hardware, processes, simulation
    from rackline.pricing import terms
    from rackline.search import scaled_fleet
    from rackline.simulation import autoscalers, classes, fleet_pool

if TYPE_CHECKING:
    from rackline.parallel import Deployment

_WINDOWS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledRuns:
    """A load over time, served under each policy.

    Args:
        fleet: what each policy did.
        use: what the use added to the question.
    """

    json_keys: ClassVar = ("*fleet", "use")

    fleet: scaled_fleet.ScaledFleet
    use: Use | None = None


def scaled_runs(question: SimulateQuestion, watch: Watch) -> ScaledRuns:
    """Serve a load over time under each policy that is asked for, and under the oracle.

    Raises:
        InputError: options that contradict each other.
    """
    policies = tuple(dict.fromkeys(question.autoscale or (scaled_fleet.FIXED,)))
    for name in policies:
        autoscalers.AUTOSCALERS.find(name)
    kinds = classes_of(question)
    if kinds and question.slo is None:
        question = replace(question, slo=classes.strictest(kinds))
    question, use = with_use(with_tiers(question, watch))
    if question.slo is None:
        raise InputError(what="slo", given="nothing", allowed="limits to judge by, such as ttft=2s,tpot=50ms@p99")
    loaded_fleet = _loaded_fleet(question, limits_of(question.slo, "slo"), watch)
    require(
        not loaded_fleet.missing_limit,
        what="slo",
        given=question.slo,
        allowed=f"a limit of {loaded_fleet.missing_limit}",
    )
    least = min(loaded_fleet.most(layout) for _, _, layout in loaded_fleet.layouts)
    require(
        question.min_replicas <= least,
        what="min_replicas",
        given=question.min_replicas,
        allowed=f"up to {least}",
        nearest=f"{least}",
    )
    window_s = question.window or loaded_fleet.load.seconds / _WINDOWS
    marks, reason = scaled_fleet.marks_of(loaded_fleet, watch.serving)
    answer = partial(scaled_fleet.scaled_fleet, loaded_fleet, marks, window_s=window_s, seeds=question.seeds)
    if reason:
        return ScaledRuns(fleet=answer([], reason=reason), use=use)
    if loaded_fleet.load.estimated:
        watch.warn(f"the shape of the load is assumed: {loaded_fleet.load.estimated}")
    names = [*policies, *([] if scaled_fleet.ORACLE in policies else [scaled_fleet.ORACLE])]
    ran: list[scaled_fleet.Ran] = []
    for name in names:
        try:
            with watch.serving(f"{loaded_fleet.load.name} with {name}") as progress:
                run = loaded_fleet.run(name, marks, question.seed, progress)
            ran.append(
                scaled_fleet.Ran(
                    outcome=loaded_fleet.outcome(name, run),
                    run=run,
                    windows=run.online.windows(window_s, loaded_fleet.slo),
                )
            )
        except KeyboardInterrupt:  # while a run is summed up
            if not ran:
                raise
            watch.warn(f"interrupted: {name} is left out")
            break
        if run.interrupted:
            break
    more = {name: [one.outcome] for name, one in zip(names, ran, strict=False)}
    if question.seeds > 1 and not any(one.run.interrupted for one in ran):
        _further_seeds(question, marks, names, more, watch)
    judged = [replace(one, outcome=scaled_fleet.mean_outcome(more[one.outcome.policy])) for one in ran]
    return ScaledRuns(fleet=answer(judged), use=use)


def _loaded_fleet(question: SimulateQuestion, slo: simulation.Slo, watch: Watch) -> scaled_fleet.LoadedFleet:
    model, cluster = named(question, watch)
    requests = requests_of(question, window_of(model))
    note_early_ends(question, model, 0, watch)
    longest = int((requests.input_len + requests.output_len).max())
    check_context(model, float(longest), watch)
    server = server_of(question, model, cluster, requests.hash_tokens, longest, watch)
    start, start_s = _start(question, server.deployment)
    return scaled_fleet.LoadedFleet(
        server=server,
        draw_requests=lambda seed: requests_of(replace(question, seed=seed), window_of(model)),
        lengths=lengths_of(question),
        rules=scaled_fleet.Rules(
            scale_target=question.scale_target,
            min_replicas=question.min_replicas,
            max_replicas=question.max_replicas,
            replicas=question.replicas,
            prefill_replicas=question.prefill_replicas,
            spare_hosts=question.spare_hosts,
            arrival_cv=question.arrival_cv,
            seed=question.seed,
            skip_bad=question.skip_bad,
        ),
        load=load_of(question),
        slo=slo,
        start=start,
        start_s=start_s,
        failures=_failures(question, cluster),
    )


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
    found = scaled_fleet.start_up_of(deployment, kind, _link(question, deployment.cluster))
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


def _further_seeds(
    question: SimulateQuestion,
    marks: Sequence[scaled_fleet.Mark],
    names: Sequence[str],
    found: dict[str, list[scaled_fleet.Outcome]],
    watch: Watch,
) -> None:
    """The outcomes of the other seeds, in parallel; an interruption keeps what is done."""
    seed = question.seed
    tasks = list(itertools.product(names, range(seed + 1, seed + question.seeds)))
    with watch.counting("the other seeds", "runs") as done, processes.single_threads(), processes.bare_main():
        try:
            shared = (question, tuple(marks))
            for (name, _), one in processes.mapped(seed_runner, shared, tasks, processes.usable_cores(), done):
                found[name].append(one)
        except KeyboardInterrupt:
            watch.warn(f"interrupted: {min(map(len, found.values()))} seeds or more of {question.seeds}")


def seed_runner(
    question: SimulateQuestion, marks: Sequence[scaled_fleet.Mark]
) -> Callable[[tuple[str, int]], scaled_fleet.Outcome]:
    """What a process beside this one runs: (policy, seed) → its outcome."""
    loaded_fleet = _loaded_fleet(question, limits_of(question.slo or "", "slo"), Watch())

    def run(task: tuple[str, int]) -> scaled_fleet.Outcome:
        name, seed = task
        return loaded_fleet.outcome(name, loaded_fleet.run(name, marks, seed, None))

    return run

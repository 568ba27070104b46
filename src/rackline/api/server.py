"""The server of `simulate`: the options of its question → a pool of replicas that is ready to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from rackline.api.answer import Watch
from rackline.api.question import (
    MOST_CHIPS,
    options,
)
from rackline.api.rates import has_tiers
from rackline.api.resolve import cluster_of, resolve_on
from rackline.api.simulate_options import RESERVES, SimulateQuestion
from rackline.api.traffic import Use, cache_rules_of, tiers_of
from rackline.errors import InputError, nearest_name, require
from rackline.late import late
from rackline.units import parse_count, parse_whole

with late:
    from rackline import arch, hardware, parallel, simulation, system as systems
    from rackline.report import simulate_report
    from rackline.search import simulated_server
    from rackline.serving import workload as workloads
    from rackline.simulation import entrance, policies, routers


COMPARED = (
    "on", "chips", "policy", "layout", "replicas", "router", "admit", "frontend", "max_batched_tokens",
    "max_num_seqs", "kv_tokens",
    "precision", "engine", "calibration", "prefix_caching", "eviction", "cache_ttl", "cache_ttl_from", "reserve",
    "speculate", "prefill_replicas",
)  # fmt: skip


def other_server(
    question: SimulateQuestion, cluster: hardware.Cluster, text: str
) -> tuple[SimulateQuestion, hardware.Cluster]:
    """Another server: "policy=prefill-first,max-num-seqs=64"; a value's own commas are written as "+".

    Another cluster ("on=dgx-h200,chips=4") comes with its own chips and prices.

    Raises:
        InputError: an unknown key.
    """
    changes: dict[str, Any] = {}
    rack, chips = cluster, None
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        name = key.replace("-", "_")
        if name not in COMPARED or not equals:
            known = [one.replace("_", "-") for one in COMPARED]
            near = nearest_name(key, known)
            raise InputError(
                what="compare",
                given=text,
                allowed=f"KEY=VALUE with a key of {', '.join(known)} (write + for commas within a value)",
                nearest=near and f"{near}=...",
            )
        if name == "on":
            rack = cluster_of(value)
        elif name == "chips":
            chips = parse_whole(value, name="compare chips", minimum=1, maximum=MOST_CHIPS)
        elif options(SimulateQuestion)[name].kind == "switch":
            changes[name] = value not in ("no", "false", "0")
        else:
            changes[name] = value.replace("+", ",")
    return replace(question, **changes), rack if chips is None else rack.with_num_chips(chips)


def with_tiers(question: SimulateQuestion, watch: Watch) -> SimulateQuestion:
    """The question with a policy that knows priorities, where its classes have some and it names none."""
    if question.policy is not None or not has_tiers(question):
        return question
    watch.takes("policy priority: the classes differ in priority (--policy)")
    return replace(question, policy="priority")


def server_of(
    question: SimulateQuestion,
    model: arch.AnyModel,
    cluster: hardware.Cluster,
    hash_tokens: int,
    longest: int,
    watch: Watch,
) -> simulated_server.Server:
    """Find layout, stack and pool.

    Args:
        hash_tokens: tokens of a block in the prefixes of the requests; 0 without [tokens].
        longest: of the requests, prompt and answer [tokens].

    Raises:
        InputError: options that contradict each other, or more chips than the cluster has.
    """
    routers.ROUTERS.find(question.router)
    system = resolve_on(question, model, cluster, watch)
    scheduler = system.stack.scheduler
    limits = question.given("max_batched_tokens", "max_num_seqs")
    ahead_limits = question.given("max_batched_tokens")
    if question.prefill_max_batched_tokens is not None:
        ahead_limits = {"max_batched_tokens": question.prefill_max_batched_tokens}
    ahead_stack = replace(system.stack, scheduler=replace(scheduler, **ahead_limits)).prefill_pool()
    system = replace(system, stack=replace(system.stack, scheduler=replace(scheduler, **limits)))
    given, front = question.layout, question.prefill_layout
    layout = parallel.parse_layout(given, model) if given else _smallest(system, longest, question.block_size, watch)
    front_layout = parallel.parse_layout(front, model) if front else layout
    replicas, ahead, used = _sizes(question, cluster, layout, front_layout)
    cache = _cache(question, system.deployment(layout), hash_tokens, longest)
    return simulated_server.server_of(
        system,
        simulated_server.Setup(
            layout=layout,
            replicas=replicas,
            prefill_layout=front_layout,
            prefill_replicas=ahead,
            cache=replace(cache, pool_tokens=question.kv_tokens),
            chips=used,
            scheduling=_scheduling(question.policy, "policy"),
            prefill_scheduling=None
            if question.prefill_policy is None
            else _scheduling(question.prefill_policy, "prefill_policy"),
            prefill_stack=ahead_stack,
            router=question.router,
            admission=_admission(question),
            frontend=() if question.frontend is None else entrance.stages_of(question.frontend),
            speculation=speculation_of(question.speculate),
            kv_link_bytes_per_s=question.kv_link,
        ),
    )


def _scheduling(text: str | None, option: str) -> simulated_server.Scheduling:
    """Read POLICY[=PASSES][,overlap].

    Raises:
        InputError: another form, or passes of a policy that does not wait for any.
    """
    if text is None:
        return simulated_server.Scheduling()
    head, *more = (part.strip() for part in text.split(","))
    name, equals, number = (part.strip() for part in head.partition("="))
    require(more in ([], ["overlap"]), what=option, given=text, allowed="a policy, also with ,overlap", nearest=head)
    alignment = policies.POLICIES.find(name).alignment
    if equals:
        if alignment is None:
            raise InputError(what=option, given=text, allowed=f"{name} without a number of passes", nearest=name)
        alignment = alignment.of(parse_whole(number, name=f"{option} passes", minimum=2, maximum=1e6))
    return simulated_server.Scheduling(policy_name=name, alignment=alignment, two_batch_overlap=bool(more))


def _admission(question: SimulateQuestion) -> entrance.AdmissionRule | None:
    """The rule of "queue=100" or "saturation".

    Raises:
        InputError: another form; a rule for the less urgent where all are equal.
    """
    if question.admit is None:
        return None
    name, equals, limit = (part.strip() for part in question.admit.partition("="))
    rule = entrance.ADMISSIONS.find(name)
    require(
        not equals or rule.has_limit,
        what="admit",
        given=question.admit,
        allowed=f"{name} without a number",
        nearest=name,
    )
    if not equals and rule.has_limit and rule.usual is None:
        raise InputError(what="admit", given=question.admit, allowed=f"{name} with a number", nearest=f"{name}=100")
    if rule.for_less_urgent and not (question.high_priority_share or has_tiers(question)):
        raise InputError(what="admit", given=question.admit, allowed="with `classes` of different priority",
                         nearest="concurrency")  # fmt: skip
    number = parse_count(limit, name="admit", maximum=1e9) if equals else None
    return entrance.AdmissionRule(name=name, limit=number, seed=question.seed)


def _sizes(
    question: SimulateQuestion, cluster: hardware.Cluster, layout: parallel.Layout, front_layout: parallel.Layout
) -> tuple[int, int, int]:
    """Replicas that decode, replicas that prefill, chips of both."""
    front = question.prefill_replicas or 0
    left = cluster.num_chips - front * front_layout.chips_per_replica
    replicas = question.replicas or max(1, left // layout.chips_per_replica)
    used = replicas * layout.chips_per_replica + front * front_layout.chips_per_replica
    if used > cluster.num_chips:
        too_many = "prefill_replicas" if front and not question.replicas else "replicas"
        raise InputError(
            what=too_many,
            given=f"{replicas + front} on {used} chips",
            allowed=f"up to {cluster.num_chips} chips (see `chips`)",
            nearest=str(max(1, cluster.num_chips // layout.chips_per_replica)),
        )
    return replicas, front, used


def _cache(
    question: SimulateQuestion, deployment: parallel.Deployment, hash_tokens: int, longest: int
) -> simulation.CacheConfig:
    """The KV cache of both pools."""
    block_size = question.block_size
    return simulation.CacheConfig(
        block_size=block_size,
        longest=longest,
        reserve=next((known for known in RESERVES if known == question.reserve), None),
        prefix_caching=question.prefix_caching or bool(question.tier) or question.cache_ttl is not None,
        hash_tokens=hash_tokens,
        tiers=tiers_of(question.tier, simulated_server.kv_bytes_per_token(deployment, block_size)),
        cache_rules=cache_rules_of(question),
        swap_bytes_per_s=question.swap_bandwidth or 0.0,
    )


def speculation_of(text: str | None) -> workloads.Speculation:
    """Drafts of a text such as 3 or 3=2.4; none without one.

    Raises:
        InputError: no numbers, or more tokens per step than drafts allow.
    """
    if text is None:
        return workloads.PLAIN
    drafts, equals, yielded = text.partition("=")
    number = parse_whole(drafts, name="speculate", minimum=0, maximum=MOST_CHIPS, zero_allowed=True)
    if not equals:
        return workloads.usual_speculation(number)
    return workloads.Speculation(draft_tokens=number, tokens_per_step=parse_count(yielded, name="speculate tokens"))


def _smallest(system: systems.System, longest: int, block_size: int, watch: Watch) -> parallel.Layout:
    """The fewest chips that hold the requests, noted where these are more than a request of usual length takes.

    Args:
        longest: of the requests, prompt and answer [tokens].
        block_size: of the KV cache [tokens].

    Raises:
        InputError: no layout holds a request of usual length.
    """
    smallest = simulated_server.smallest_layout(system, longest, block_size)
    usual, roomy = smallest.usual, smallest.roomy
    if usual is None:
        raise InputError(
            what=f"{system.model.name} on {system.cluster.name}",
            given=simulate_report.nearest_reason(smallest.capacity),
            allowed="a cluster that holds weights and a request of 8k tokens (see rackline fit)",
        )
    if roomy is None:
        return usual
    watch.takes(
        f"layout {roomy.label()}: the smallest that holds the longest request, of {longest:,} tokens, which "
        f"{usual.label()} does not (--layout)"
    )
    return roomy


ASKED = "this"  # the name of the server that was asked for, beside those it is compared with


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """Runs on the same requests.

    Args:
        requests: that were served.
        runs: by name: the server that was asked for, then those it is compared with.
        use: what it is for, with the lengths and limits that this gave; None where none was named.
    """

    requests: simulation.Requests
    runs: Mapping[str, simulated_server.Run]
    use: Use | None = None

    @property
    def run(self) -> simulated_server.Run:
        """The run of the server that was asked for."""
        return self.runs[ASKED]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunShown:
    """A run with its server."""

    json_keys: ClassVar = ("*run", "deployment=run.server")

    run: simulated_server.Run


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsShown:
    """The run of the server that was asked for, and those it is compared with.

    Args:
        elapsed_s: how long they took [s].
        use: what they are for; None where no use was named.
    """

    json_keys: ClassVar = (*RunShown.json_keys, "elapsed_s", "compared", "use")

    run: simulated_server.Run
    elapsed_s: float
    compared: dict[str, RunShown] | None
    use: Use | None

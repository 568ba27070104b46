"""The server of `simulate`: the options of its question → a pool of replicas that is ready to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar

from rackline.api.answer import Served, Watch
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
    from rackline import arch, hardware, parallel, serving, simulation, system as systems
    from rackline.parallel import memory
    from rackline.report import simulate_report
    from rackline.search import choice, finalists, rate_capacity, served
    from rackline.serving import workload as workloads
    from rackline.simulation import entrance, metrics, routers


COMPARED = (
    "on", "chips", "policy", "layout", "replicas", "router", "admit", "frontend", "max_batched_tokens",
    "max_num_seqs", "kv_tokens",
    "precision", "engine", "calibration", "prefix_caching", "eviction", "cache_ttl", "cache_ttl_from", "reserve",
    "speculate", "prefill_replicas",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that is ready to run.

    Args:
        deployment: of one replica.
        pool: the replicas that decode.
        router: which of them gets a request.
        admission: rule that refuses requests; None serves all.
        frontend: what requests pass before them.
        prefill: the pool that computes prompts, if there is one.
        beyond_s: time to the first token beside the passes [s].
        chips: in all [chips].
        prefill_chips: of one replica of the prefill pool [chips].
        prefill_layout: of that pool; None without one.
    """

    json_keys: ClassVar = (
        "*deployment",
        "policy=pool.policy.name",
        "replicas=pool.replicas",
        "prefill_replicas",
        "num_chips=chips",
        "router",
        "admission",
        "frontend",
        "kv_tokens_per_rank=pool.spec.pool_tokens",
        "max_num_seqs=pool.spec.max_num_seqs",
        "max_batched_tokens=pool.spec.max_batched_tokens",
    )

    deployment: parallel.Deployment
    pool: simulation.Pool
    router: str
    prefill: simulation.Handover | None
    beyond_s: float
    chips: int
    prefill_chips: int
    prefill_layout: parallel.Layout | None = None
    admission: entrance.AdmissionRule | None = None
    frontend: tuple[entrance.Stage, ...] = ()

    @property
    def entrance(self) -> entrance.Entrance:
        """What requests pass before a replica."""
        return entrance.Entrance(
            router=self.router, admission=self.admission, frontend=self.frontend, beyond_s=self.beyond_s
        )

    @property
    def prefill_replicas(self) -> int:
        """Replicas of the prefill pool."""
        return self.prefill.pool.replicas if self.prefill else 0

    @property
    def usd_per_s(self) -> float | None:
        """What all chips cost [USD/s]."""
        price = self.deployment.cluster.usd_per_chip_hour
        return None if price is None else price * self.chips / 3600.0

    def costs(self, result: simulation.Result) -> metrics.Costs | None:
        """Costs of the tokens of a run; None without a price."""
        if self.usd_per_s is None:
            return None
        front = self.prefill_replicas * self.prefill_chips
        share = front / self.chips if front else served.prompt_cost_share(result, self.pool)
        return result.usd_per_mtok(self.usd_per_s, share)

    def energy(self, result: simulation.Result) -> choice.Energy | None:
        """Power and energy of a run; None where nothing ended or is known of the chips."""
        if self.prefill is None:
            return finalists.run_energy(result, self.pool, self.deployment, self.chips)
        ahead = self.prefill_replicas * self.prefill_chips
        front = finalists.FrontPool(
            pool=self.prefill.pool,
            deployment=replace(self.deployment, layout=self.prefill_layout or self.deployment.layout),
            chips=ahead,
        )
        return finalists.run_energy(result, self.pool, self.deployment, self.chips - ahead, front)

    def serve(
        self, requests: simulation.Requests, skip_bad: bool, progress: Served | None, *, keep_passes: bool = False
    ) -> simulation.Result:
        """Serve requests.

        Args:
            skip_bad: leave out requests that can never fit.
            progress: is told how far it is.
            keep_passes: keep a record of each pass.
        """
        return simulation.simulate(
            requests,
            self.pool,
            router=self.router,
            prefill=self.prefill,
            beyond_s=self.beyond_s,
            admission=self.admission,
            frontend=self.frontend,
            skip_bad=skip_bad,
            progress=progress,
            keep_passes=keep_passes,
        )

    def title(self, requests: simulation.Requests) -> str:
        """Description of the server and its requests."""
        d = self.deployment
        front = f" + {self.prefill_replicas} for prompts" if self.prefill else ""
        return (
            f"{d.model.name} on {d.cluster.name}: {self.pool.replicas}{front} × {d.layout.label()}, "
            f"{d.precision.short()}, {self.pool.policy.name.replace('_', ' ')}; {requests.name}"
        )


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
) -> Server:
    """Find layout, stack and pool.

    Args:
        hash_tokens: tokens of a block in the prefixes of the requests; 0 without [tokens].
        longest: of the requests, prompt and answer [tokens].

    Raises:
        InputError: options that contradict each other, or more chips than the cluster has.
    """
    routers.ROUTERS.find(question.router)
    system = resolve_on(question, model, cluster, watch)
    limits = question.given("max_batched_tokens", "max_num_seqs")
    stack = replace(system.stack, scheduler=replace(system.stack.scheduler, **limits))
    system = replace(system, stack=stack)
    given, front = question.layout, question.prefill_layout
    layout = parallel.parse_layout(given, model) if given else _smallest(system, longest, question.block_size, watch)
    deployment = system.deployment(layout)
    front_layout = parallel.parse_layout(front, model) if front else layout
    replicas, ahead, used = _sizes(question, cluster, layout, front_layout)
    cache = _cache(question, deployment, hash_tokens, longest)
    pool = simulation.pool_of(
        deployment,
        stack,
        cache=replace(cache, pool_tokens=question.kv_tokens),
        policy_name=question.policy,
        replicas=replicas,
        speculation=speculation_of(question.speculate),
    )
    return Server(
        deployment=deployment,
        pool=pool,
        router=question.router,
        admission=_admission(question),
        frontend=() if question.frontend is None else entrance.stages_of(question.frontend),
        prefill=_prefill(question, replace(deployment, layout=front_layout), layout, ahead, stack.prefill_pool(), cache)
        if ahead
        else None,
        beyond_s=(stack.prefill_pool() if ahead else stack).arrivals.first_token_s,
        chips=used,
        prefill_chips=front_layout.chips_per_replica,
        prefill_layout=front_layout if ahead else None,
    )


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
    size = memory.kv_size(deployment.model, deployment.layout, deployment.precision)
    return simulation.CacheConfig(
        block_size=block_size,
        longest=longest,
        reserve=next((known for known in RESERVES if known == question.reserve), None),
        prefix_caching=question.prefix_caching or bool(question.tier) or question.cache_ttl is not None,
        hash_tokens=hash_tokens,
        tiers=tiers_of(question.tier, float(size.in_tokens(block_size)[0])),
        cache_rules=cache_rules_of(question),
        swap_bytes_per_s=question.swap_bandwidth or 0.0,
    )


def _prefill(
    question: SimulateQuestion,
    deployment: parallel.Deployment,
    layout: parallel.Layout,
    replicas: int,
    stack: serving.Stack,
    cache: simulation.CacheConfig,
) -> simulation.Handover:
    """The prefill pool, and its KV cache transfer."""
    size = memory.kv_size(deployment.model, layout, deployment.precision)
    grown = float(size.bytes_per_token)
    hop_s = 0.0 if deployment.calibration.is_unit else deployment.cluster.levels[-1].latency_s
    return simulation.Handover(
        pool=simulation.pool_of(deployment, stack, cache=cache, policy_name=question.policy, replicas=replicas),
        tokens_per_s=question.kv_link / grown if grown else inf,
        latency_s=hop_s + float(size.fixed_bytes) / question.kv_link,
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
    """The fewest chips that hold a request of usual length, with the most room among those; more where a rank of them
    has no room for the longest request.

    Args:
        longest: of the requests, prompt and answer [tokens].
        block_size: of the KV cache, by which a request is rounded up, and may be decoded ahead [tokens].
    """
    server = system.server()
    found = serving.capacity(system.model, system.cluster, system.precision, server=server)
    usual = _fewest_chips(found)
    if usual is None:
        raise InputError(
            what=f"{system.model.name} on {system.cluster.name}",
            given=simulate_report.nearest_reason(found),
            allowed="a cluster that holds weights and a request of 8k tokens (see rackline fit)",
        )
    held = float(longest + 2 * block_size)
    if system.deployment(usual).max_sequences(context_len=held, server=server) >= 1:
        return usual
    roomy = _fewest_chips(
        serving.capacity(system.model, system.cluster, system.precision, context_len=held, server=server)
    )
    if roomy is None or roomy == usual:
        return usual
    watch.takes(
        f"layout {roomy.label()}: the smallest that holds the longest request, of {longest:,} tokens, which "
        f"{usual.label()} does not (--layout)"
    )
    return roomy


def _fewest_chips(found: serving.Capacity) -> parallel.Layout | None:
    """The layout that holds a request on the fewest chips; among equals the one with the most room."""
    best = min(
        (row for row in found.rows if row.max_concurrency >= 1),
        key=lambda row: (row.layout.chips_per_replica, row.layout.pp, -row.layout.tp, -row.max_concurrency),
        default=None,
    )
    return best and best.layout


ASKED = "this"  # the name of the server that was asked for, beside those it is compared with


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One server's run.

    Args:
        server: that served.
        result: its passes, times and counts.
        slo: limits by which it is judged.
    """

    server: Server
    result: simulation.Result
    slo: simulation.Slo | None

    json_keys: ClassVar = ("*summary", "energy")

    @property
    def summary(self) -> metrics.RunData:
        """Percentiles, rates and costs in SI units."""
        return self.result.summary(self.slo, self.server.costs(self.result))

    @property
    def energy(self) -> choice.Energy | None:
        """Power and energy; None where nothing is known of the chips' power."""
        return self.server.energy(self.result)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """Runs on the same requests.

    Args:
        requests: that were served.
        runs: by name: the server that was asked for, then those it is compared with.
        use: what it is for, with the lengths and limits that this gave; None where none was named.
    """

    requests: simulation.Requests
    runs: Mapping[str, Run]
    use: Use | None = None

    @property
    def run(self) -> Run:
        """The run of the server that was asked for."""
        return self.runs[ASKED]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sustained:
    """The highest rate that a server holds.

    Args:
        capacity: the rate and those that were tried.
        at_capacity: the run at that rate, if any held.
        server: that served.
        requests: that were served, at other rates.
    """

    json_keys: ClassVar = ("*capacity", "deployment=server", "at_capacity")

    capacity: rate_capacity.RateCapacity
    at_capacity: Run | None
    server: Server
    requests: simulation.Requests


@dataclass(frozen=True, slots=True, kw_only=True)
class RunShown:
    """A run with its server."""

    json_keys: ClassVar = ("*run", "deployment=run.server")

    run: Run


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsShown:
    """The run of the server that was asked for, and those it is compared with.

    Args:
        elapsed_s: how long they took [s].
        use: what they are for; None where no use was named.
    """

    json_keys: ClassVar = (*RunShown.json_keys, "elapsed_s", "compared", "use")

    run: Run
    elapsed_s: float
    compared: dict[str, RunShown] | None
    use: Use | None

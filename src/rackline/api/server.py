"""The question and the server of `simulate`: its options → a pool of replicas that is ready to run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar

from rackline.api.agent_options import Tasked
from rackline.api.answer import Served, Watch
from rackline.api.classes import has_tiers
from rackline.api.fleet_options import Autoscaled
from rackline.api.groups import (
    CACHE,
    CACHE_HIT,
    CALIBRATION,
    CHIPS,
    POWER_CAP,
    PRICE,
    ROUTING,
    SAMPLING,
    TRAFFIC,
    USE,
    Lifetimes,
    Sampling,
    Traffic,
)
from rackline.api.model_options import DraftQuestion
from rackline.api.question import (
    MOST_CHIPS,
    MOST_TOKENS,
    CalibrationLike,
    MaybeLayout,
    MaybeNumber,
    MaybeWhole,
    Number,
    Texts,
    Whole,
    option,
    options,
    question,
    shared,
    whole,
)
from rackline.api.resolve import cluster_of, resolve_on
from rackline.api.traffic import cache_rules_of, tiers_of
from rackline.errors import InputError, nearest_name
from rackline.late import late
from rackline.units import parse_count, parse_whole

with late:
    from rackline import arch, hardware, parallel, serving, simulation, system as systems
    from rackline.parallel import memory
    from rackline.report import simulate_report
    from rackline.search import choice, finalists, served
    from rackline.serving import workload as workloads
    from rackline.simulation import entrance, metrics, routers


RESERVES = ("chunk", "prompt", "final")
_SERVER, _POOLS, _LIMITS = "Server", "Prefill pool", "Limits and comparisons"


@question
class SimulateQuestion(Traffic, Autoscaled, Tasked, Lifetimes, DraftQuestion):
    """Which latency percentiles does a deployment reach under recorded or synthetic traffic?"""

    requests: MaybeWhole = whole(
        "number of requests; by default the whole trace, or as many as `percentile_precision` takes, 2,000 to 64,000",
        default=None,
        maximum=1e8,
        group=TRAFFIC,
    )
    percentile_precision: Number = option(
        "fraction",
        "half of the 95 % confidence interval over the percentile, or capacity, at which a run without `requests` ends",
        default="10%",
        unit="1",
        group=TRAFFIC,
    )
    use: str | None = shared(USE, default=None, group=TRAFFIC)
    cache_hit: Number = shared(CACHE_HIT, default="0", group=TRAFFIC)
    high_priority_share: Number = option(
        "fraction",
        "fraction of high-priority requests, for the policy priority",
        default="0",
        unit="1",
        zero=True,
        group=TRAFFIC,
    )
    slo: str | None = option(
        "text", "latency limits that define goodput, such as ttft=2s,tpot=50ms@p99", default=None, group=_LIMITS
    )
    capacity: str | None = option(
        "text", "find the highest request rate within these latency limits", default=None, group=_LIMITS
    )
    compare: Texts = option(
        "text",
        "KEY=VALUE of another server for the same requests, such as on=dgx-h200,chips=4; may be repeated",
        default=None,
        several=True,
        repeated=True,
        group=_LIMITS,
    )
    layout: MaybeLayout = option(
        "text",
        "parallel layout such as tp=8 or attention_dp=8,ep=8; by default the smallest that fits",
        default=None,
        group=_SERVER,
    )
    chips: MaybeWhole = shared(CHIPS, default=None)
    replicas: MaybeWhole = whole(
        "number of replicas; by default as many as fit on the chips", default=None, group=_SERVER
    )
    router: str = option(
        "text",
        "request router: round-robin, least-loaded, prefix-aware (SGLang's gateway), llm-d, dynamo-kv or "
        "session-affinity",
        default="round-robin",
        group=_SERVER,
    )
    admit: str | None = option(
        "text",
        "rule that refuses requests (HTTP 429): concurrency=N in flight for each replica, queue=N waiting, or, of "
        "classes that are not the most urgent, saturation (llm-d) or probabilistic; none by default",
        default=None,
        group=_SERVER,
    )
    frontend: str | None = option(
        "text",
        "what requests pass before the scheduler: dynamo, dynamo-cached, tensorrt-llm, tensorrt-llm-cached, llm-d or "
        "prompt tokens that a server takes, such as 120k/s; with =N servers, commas between stages; none by default",
        default=None,
        group=_SERVER,
    )
    policy: str | None = option(
        "text",
        "scheduling policy: chunked, prefill-first, decode-first, fcfs, shortest-job, priority, preemptive (urgent "
        "requests take the place of running ones) or trains; of "
        "attention-dp ranks that wait for each other's prompts prefill-delayer, prefill-decode-interval, "
        "prefill-schedule-interval or adp-balance; the stack's by default",
        default=None,
        group=_SERVER,
    )
    max_batched_tokens: MaybeWhole = whole(
        "token budget per pass and rank; the stack's by default",
        default=None,
        maximum=MOST_TOKENS,
        group=_SERVER,
    )
    max_num_seqs: MaybeWhole = whole(
        "maximum number of running sequences per rank; the stack's by default", default=None, group=_SERVER
    )
    kv_tokens: MaybeWhole = whole(
        "KV cache capacity per rank, in tokens; by default the memory that weights and buffers leave free",
        default=None,
        maximum=MOST_TOKENS,
        group=CACHE,
    )
    block_size: Whole = whole("tokens per KV cache block", default="16", group=CACHE)
    reserve: str | None = option(
        "text",
        "KV cache that must be free for admission: chunk, prompt or final; the policy's by default",
        default=None,
        choices=RESERVES,
        group=CACHE,
    )
    prefix_caching: bool = option(
        "switch", "reuse cached KV blocks of requests that share a prefix", default=False, group=CACHE
    )
    swap_bandwidth: MaybeNumber = option(
        "rate",
        "bandwidth for swapping preempted sequences to host memory, instead of recomputing them",
        default=None,
        unit="B/s",
        group=CACHE,
    )
    prefill_replicas: MaybeWhole = whole(
        "prefill/decode disaggregation: number of extra replicas that run prefill and hand over the KV cache",
        default=None,
        maximum=MOST_CHIPS,
        group=_POOLS,
    )
    prefill_layout: MaybeLayout = option(
        "text", "layout of the prefill replicas; that of the decode replicas by default", default=None, group=_POOLS
    )
    kv_link: Number = option(
        "rate",
        "bandwidth of one request's KV transfer between the pools, per chip",
        default="50GB/s",
        unit="B/s",
        group=_POOLS,
    )
    speculate: str | None = option(
        "text",
        "speculative decoding: draft tokens per step, such as 3, or with the tokens that a step yields, such as 3=2.4",
        default=None,
        group=_SERVER,
    )
    calibration: CalibrationLike = shared(CALIBRATION, default="auto")
    stack: str | None = option(
        "text",
        "serving stack (scheduler, host and launch overheads), such as vllm or vllm=0.6.3; that of the "
        "calibration by default",
        default=None,
        group=_SERVER,
    )
    memory_fraction: MaybeNumber = option(
        "fraction",
        "fraction of HBM that the server may use; the stack's by default",
        default=None,
        unit="1",
        group=CACHE,
    )
    routing: str | None = shared(ROUTING, default=None)
    sampling: Sampling = shared(SAMPLING, default="greedy")
    power_cap: MaybeNumber = shared(POWER_CAP, default=None)
    price: MaybeNumber = shared(PRICE, default=None)
    keep_passes: bool = option("switch", "record every pass, for the Chrome trace", default=False, hidden=True)


COMPARED = (
    "on", "chips", "policy", "layout", "replicas", "router", "admit", "frontend", "max_batched_tokens",
    "max_num_seqs", "kv_tokens",
    "precision", "calibration", "stack", "prefix_caching", "eviction", "cache_ttl", "cache_ttl_from", "reserve",
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
    stack = replace(system.stack, **question.given("max_batched_tokens", "max_num_seqs"))
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
        beyond_s=(stack.prefill_pool() if ahead else stack).first_token_s,
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
    if equals and not rule.has_limit:
        raise InputError(what="admit", given=question.admit, allowed=f"{name} without a number", nearest=name)
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
    """Of the layouts that hold a request, the one on the fewest chips with the most room."""
    best = min(
        (row for row in found.rows if row.max_concurrency >= 1),
        key=lambda row: (row.layout.chips_per_replica, row.layout.pp, -row.layout.tp, -row.max_concurrency),
        default=None,
    )
    return best and best.layout

"""The question of `simulate`: traffic, a server, its cache, the fleet that follows a load, tasks of several calls."""

from __future__ import annotations

from rackline.api.groups import (
    CACHE,
    CACHE_HIT,
    CALIBRATION,
    CHIPS,
    ENGINE,
    MODEL,
    ON,
    OVER_TIME,
    POWER_CAP,
    PRICE,
    ROUTING,
    SAMPLING,
    TRAFFIC,
    USE,
    Lifetimes,
    Loaded,
    Sampling,
    Traffic,
)
from rackline.api.model_options import DraftQuestion
from rackline.api.question import (
    MOST_CHIPS,
    MOST_SECONDS,
    MOST_TOKENS,
    CalibrationLike,
    ClusterLike,
    MaybeLayout,
    MaybeNumber,
    MaybeWhole,
    ModelLike,
    Number,
    Question,
    Text,
    Texts,
    Whole,
    group,
    option,
    options,
    question,
    shared,
    whole,
)
from rackline.errors import InputError

RESERVES = ("chunk", "prompt", "final")
_NOT_WITH_AGENTS = (
    "load", "trace", "rate", "users", "mix", "use", "cache_hit", "compare", "capacity", "slo", "rate_scale",
    "diurnal_amplitude", "high_priority_share", "keep_passes",
)  # fmt: skip
_NOT_WITH_PLAN = ("load", "agents", "trace", "classes", "turns", "use")
_NOT_WITH_LOAD = ("trace", "users", "turns", "requests", "compare", "capacity", "rate_scale", "keep_passes")
_AGENTS, _SERVER, _POOLS, _LIMITS = "Agents", "Server", "Prefill pool", "Limits and comparisons"


@group
class Autoscaled(Loaded):
    """A question of a fleet whose replicas come and go."""

    autoscale: Texts = option(
        "text",
        "with `load`, how the number of replicas follows it: fixed, hpa (Kubernetes, on concurrency), hpa-kv (on KV "
        "use), keda (on the queue), dynamo-planner, seasonal or oracle; may be repeated; fixed by default",
        default=None,
        several=True,
        repeated=True,
        group=OVER_TIME,
    )
    scale_target: MaybeNumber = option(
        "count",
        "what a replica shall have of the policy's metric: requests for hpa, waiting ones for keda, the share of KV "
        "blocks for hpa-kv; by default what it has at 70 % of its highest rate within the limits, and 5 waiting",
        default=None,
        unit="1",
        maximum=1e6,
        group=OVER_TIME,
    )
    min_replicas: Whole = whole("fewest replicas of a pool", minimum=0, default="1", group=OVER_TIME)
    max_replicas: MaybeWhole = whole(
        "most replicas of a pool; by default as many as fit on the chips", default=None, group=OVER_TIME
    )
    start_up: str = option(
        "text",
        "start of a replica: warm (image and compiled graphs are on the machine), cold (a new machine), or a time "
        "such as 90s",
        default="warm",
        group=OVER_TIME,
    )
    weights_from: str = option(
        "text",
        "where a starting replica reads its weights: disk (an NVMe drive of the host), network (the cluster's), or a "
        "rate of a host such as 3GB/s",
        default="disk",
        group=OVER_TIME,
    )
    failures: str = option(
        "text",
        "failures of hosts: none, published (as large clusters report them), or the mean time between two failures of "
        "a host, such as 200d",
        default="none",
        group=OVER_TIME,
    )
    spare_hosts: Whole = whole(
        "hosts that stand by and are paid for, where hosts fail",
        minimum=0,
        maximum=MOST_CHIPS,
        default="0",
        group=OVER_TIME,
    )
    window: MaybeNumber = option(
        "seconds",
        "time that a row of the table over time covers; by default a 24th of the load",
        default=None,
        unit="s",
        maximum=MOST_SECONDS,
        group=OVER_TIME,
    )
    seeds: Whole = whole(
        "runs with different arrivals, in parallel, for intervals of the results", maximum=1000, default="1",
        group=OVER_TIME,
    )  # fmt: skip

    def check_options(self) -> None:
        """Refuse options of a load over time without one, and spare hosts where none fails.

        Raises:
            InputError: such options.
        """
        if self.load is None:
            self.refuse(
                "load_time", "autoscale", "scale_target", "min_replicas", "max_replicas", "start_up", "weights_from",
                "failures", "spare_hosts", "window", "seeds",
                allowed="only with `load`", nearest="--load day --rate 5",
            )  # fmt: skip
        if self.failures == "none":
            self.refuse("spare_hosts", allowed="only with `failures`")
        super().check_options()


@group
class Tasked(Question):
    """A question of tasks, each of which is a tree of calls with tools between them."""

    agents: str | None = option(
        "text",
        "tasks of several calls, and what one of them takes and costs: coding or agentx (sessions drawn from published "
        "statistics), turns (drawn from `turns` and its options), or a file or folder of recorded ones: Weka, agentic "
        "Mooncake, OpenTelemetry GenAI spans, conversations (ShareGPT) or inputs of aiperf",
        default=None,
        group=_AGENTS,
    )
    concurrency: str = option(
        "text",
        "tasks in progress at a time, one number or several, such as 1,2,4,8; or recorded, to begin them at the times "
        "of their file",
        default="1,2,4,8,16,32",
        group=_AGENTS,
    )
    between_calls: Texts = option(
        "text",
        "KV cache of a task between its calls: keep (in HBM until memory is needed), offload (to the first `tier` at "
        "once) or drop; may be repeated; keep by default",
        default=None,
        several=True,
        repeated=True,
        group=_AGENTS,
    )
    longest_pause: MaybeNumber = option(
        "seconds",
        "shorten pauses between calls (tools, people) to at most this, such as 5min, as benchmarks do",
        default=None,
        unit="s",
        zero=True,
        maximum=MOST_SECONDS,
        group=_AGENTS,
    )

    def check_options(self) -> None:
        """Refuse options of tasks without any.

        Raises:
            InputError: such options.
        """
        if self.agents is None:
            self.refuse(
                "concurrency", "between_calls", "longest_pause", allowed="only with `agents`", nearest="--agents coding"
            )
        super().check_options()


@group
class SimulatedTraffic(Traffic):
    """A question of how much traffic a simulation serves, and of what only a simulation knows of its requests."""

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


@group
class Scheduled(Question):
    """A question of a server: its replicas, what requests pass before them, and the scheduler of each."""

    layout: MaybeLayout = option(
        "text",
        "parallel layout such as tp=8 or attention_dp=8,ep=8; by default the smallest that fits",
        default=None,
        group=_SERVER,
    )
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
        "prefill-schedule-interval or adp-balance, each also with =PASSES; with ,overlap for two-batch overlap; the "
        "stack's by default",
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
        "maximum number of running sequences per rank, of the decode replicas where prompts have replicas of their "
        "own; the stack's by default",
        default=None,
        group=_SERVER,
    )
    speculate: str | None = option(
        "text",
        "speculative decoding: draft tokens per step, such as 3, or with the tokens that a step yields, such as 3=2.4",
        default=None,
        group=_SERVER,
    )


@group
class PromptReplicas(Question):
    """A question of replicas that only compute prompts and hand their KV cache over."""

    prefill_replicas: MaybeWhole = whole(
        "prefill/decode disaggregation: number of extra replicas that run prefill and hand over the KV cache",
        default=None,
        maximum=MOST_CHIPS,
        group=_POOLS,
    )
    prefill_layout: MaybeLayout = option(
        "text", "layout of the prefill replicas; the decode replicas' by default", default=None, group=_POOLS
    )
    prefill_policy: str | None = option(
        "text", "scheduling policy of the prefill replicas; the decode replicas' by default", default=None, group=_POOLS
    )
    prefill_max_batched_tokens: MaybeWhole = whole(
        "token budget per pass and rank of the prefill replicas; the decode replicas' by default",
        default=None,
        maximum=MOST_TOKENS,
        group=_POOLS,
    )
    kv_link: Number = option(
        "rate",
        "bandwidth of one request's KV transfer between the pools, per chip",
        default="50GB/s",
        unit="B/s",
        group=_POOLS,
    )


@group
class ServerCache(Lifetimes):
    """A question of the KV cache of a server: its size, its blocks, and what is reused or swapped."""

    memory_fraction: MaybeNumber = option(
        "fraction",
        "fraction of a chip's memory that the server may use; the engine's own by default",
        default=None,
        unit="1",
        group=CACHE,
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


@group
class Judged(Question):
    """A question of a server that is judged by limits, and compared with others."""

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

    def check_options(self) -> None:
        """Refuse a comparison of servers whose highest rates are asked for.

        Raises:
            InputError: such options.
        """
        if self.capacity is not None:
            self.refuse("compare", allowed="only without `capacity`")
        super().check_options()


@question
class SimulateQuestion(
    Judged, PromptReplicas, Scheduled, ServerCache, Tasked, SimulatedTraffic, Autoscaled, DraftQuestion
):
    """Which latency percentiles does a deployment reach under recorded or synthetic traffic?"""

    model: ModelLike = shared(MODEL, default=None, kw_only=False)
    on: ClusterLike = shared(ON, default=None)
    plan: str | None = option(
        "text",
        "serve the deployment of a plan at its rate: a file that `rackline plan --json` wrote; options given besides "
        "take the place of the plan's",
        default=None,
    )
    chips: MaybeWhole = shared(CHIPS, default=None)
    engine: Text = shared(ENGINE, default="auto")
    calibration: CalibrationLike = shared(CALIBRATION, default="auto")
    routing: str | None = shared(ROUTING, default=None)
    sampling: Sampling = shared(SAMPLING, default="greedy")
    power_cap: MaybeNumber = shared(POWER_CAP, default=None)
    price: MaybeNumber = shared(PRICE, default=None)
    keep_passes: bool = option("switch", "record every pass, for the Chrome trace", default=False, hidden=True)

    def check_options(self) -> None:
        """Refuse what tasks of several calls, and a load over time, do not have.

        Raises:
            InputError: such options.
        """
        if self.plan is not None:
            self.refuse(*_NOT_WITH_PLAN, allowed="only without `plan`")
            return  # what the plan says comes first: see rackline.api.planned_server
        for name in ("model", "on"):
            if getattr(self, name) is None:
                raise InputError(what=name, given="nothing", allowed=options(SimulateQuestion)[name].help)
        if self.prefill_replicas is None:
            self.refuse(
                "prefill_layout", "prefill_policy", "prefill_max_batched_tokens", allowed="only with `prefill_replicas`"
            )
        if self.agents is not None:
            self.refuse(*_NOT_WITH_AGENTS, allowed="only without `agents`")
        if self.load is not None:
            self.refuse(*_NOT_WITH_LOAD, allowed="only without `load`")
        super().check_options()

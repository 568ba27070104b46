"""Groups of options that several questions have: their help, units, bounds and defaults stand here once.

A value that most questions of a group have as an option is `absent` in the group itself: what reads a question of the
group reads a value in each.
"""

from __future__ import annotations

from typing import Literal, get_args

from rackline.api.question import (
    MOST_CHIPS,
    MOST_SECONDS,
    MOST_USD,
    CalibrationLike,
    ClusterLike,
    Limit,
    MaybeLayout,
    MaybeNumber,
    MaybeText,
    MaybeWhole,
    ModelLike,
    Number,
    Option,
    Precisions,
    Question,
    Settings,
    Text,
    Texts,
    Whole,
    absent,
    group,
    limit,
    option,
    shared,
    tokens,
    whole,
)
from rackline.errors import InputError

Sampling = Literal["greedy", "top-p"]
SPREADS = ("fixed", "uniform", "exponential", "lognormal")
TIME_UNITS = ("s", "ms")
MOST_MARGIN = 1000.0
MODEL_BY_NAME, FLEET, TRAFFIC, CACHE = "Model by name", "Fleet", "Traffic", "KV cache"
OVER_TIME, IMPORTED = "Load over time", "Only with --import"

MODEL = Option(
    kind="object",
    help="catalogue name, Hugging Face id (org/name or org/name@revision), TOML file, or config.json or its folder",
)
ON = Option(kind="object", help="cluster: catalogue name or TOML file")
CHIPS = Option(
    kind="whole",
    help="number of chips; the whole cluster by default",
    unit="count",
    minimum=1,
    maximum=MOST_CHIPS,
)
PRECISION = Option(
    kind="text", help="data types: native, fp32, bf16, fp8, fp4, mxfp4, int8, int4, or by part such as fp8,kv=bf16"
)
_ENGINES = (
    "the software that serves, with its scheduler, memory and launch rules: auto (vllm, unless another engine was "
    "measured much better for this model on this chip), {any}or a name such as vllm, sglang, trtllm or llama.cpp, also "
    "with a version (vllm=0.11.1)"
)
ENGINE = Option(kind="text", help=_ENGINES.format(any=""))
SEARCHED_ENGINE = Option(kind="text", help=_ENGINES.format(any="any (the cheapest by estimates) "))
CALIBRATION = Option(
    kind="object",
    help="how fast kernels are, whichever engine runs them: auto (what was measured of the engine), another engine's "
    "name, also with a version, generic (what engines have in common), unit (ideal roofline) or a TOML file; a cluster "
    "from `rackline measure` comes with its own",
)
ROUTING = Option(
    kind="text",
    help="how evenly tokens are routed to experts: uniform, balanced, log-normal[=SPREAD] or power-law=EXPONENT, with "
    "+COPIES where experts are rearranged; by default as measured, rearranged where the stack does",
)
SAMPLING = Option(
    kind="text",
    help="how tokens are sampled: greedy, or top-p, for which some versions of a stack sort all logits",
    choices=get_args(Sampling),
)
FREE_LAYOUT = Option(kind="text", help="parallel degrees to fix, such as tp=8; the others are searched")
MEMORY_FRACTION = Option(
    kind="fraction", help="fraction of a chip's memory that the server may use; the engine's own by default", unit="1"
)
PRICE = Option(kind="usd_per_hour", help="chip price in USD per hour", unit="USD/h", maximum=MOST_USD)
RENT = Option(
    kind="text",
    help="kind of price of a chip-hour: on-demand, reserved-1y, reserved-3y, contract or owned; marked as estimated "
    "where none is published",
    choices=("on-demand", "reserved-1y", "reserved-3y", "contract", "owned"),
)
POWER_CAP = Option(
    kind="watts",
    help="power that each chip is set to keep below, such as 500W; its rated power by default",
    unit="W",
    maximum=1e5,
)
PUE = Option(
    kind="count", help="power usage effectiveness: site power over IT power", unit="1", minimum=1.0, maximum=10.0
)
SET = Option(
    kind="settings",
    help="KEY=VALUE overrides a number of the model, cluster or chip, such as hbm_bytes_per_s=20TB/s; may be repeated",
)
USE = Option(
    kind="text",
    help="use case, which sets the lengths and limits that are not given: chat, agents, summarise or batch (no "
    "limits), or a TOML file",
    flag="--for",
)
MIX = Option(
    kind="text",
    help="mixture of request lengths: a CSV file with the columns share, input, output, or a TOML file with "
    "[[requests]] that have these keys, or recorded requests, whose times do not matter; limits, percentiles and "
    "memory are those of the mixture",
)
THINK_TIME = Option(
    kind="seconds",
    help="think time: mean pause between an answer and the user's next request, such as 10s",
    unit="s",
    zero=True,
)
CACHE_HIT = Option(
    kind="fraction",
    help="prefix cache hit rate: share of prompt tokens already in the KV cache, such as 50%",
    unit="1",
    maximum=0.9999,
    zero=True,
)
CONFIDENCE = Option(
    kind="fraction",
    help="share of measured servers of the kind that meet each latency limit, 50% to 99%: predictions stay below the "
    "limits by the margin that this takes; 80% by default",
    unit="1",
    minimum=0.5,
    maximum=0.99,
)
EVICTION = Option(
    kind="text",
    help="which unused block leaves the prefix cache first: lru, lfu, fifo or cost-aware (by uses and time to "
    "recompute)",
)


@group
class ModelQuestion(Question):
    """A question whose models may be any on the Hugging Face Hub."""

    assume: Texts = option(
        "text",
        "how to interpret an unknown config.json: a model family such as llama, or KEY=VALUE for one of its "
        "keys; may be repeated; answers mention it",
        default=None,
        several=True,
        repeated=True,
        group=MODEL_BY_NAME,
    )
    offline: bool = option(
        "switch",
        "read models only from the catalogue, files and the Hugging Face cache",
        default=False,
        group=MODEL_BY_NAME,
    )


@group
class OnCluster(ModelQuestion):
    """A question of a model on a cluster."""

    model: ModelLike = shared(MODEL, kw_only=False)
    on: ClusterLike = shared(ON)
    precision: Precisions = shared(PRECISION, default="native")
    set: Settings = shared(SET, default=None)
    chips: MaybeWhole = absent(None)
    price: MaybeNumber = absent(None)
    rent: str | None = absent(None)
    bill: str = absent("whole")
    power_cap: MaybeNumber = absent(None)
    engine: Text = absent("auto")
    calibration: CalibrationLike = absent("auto")
    routing: str | None = absent(None)
    sampling: Sampling = absent("greedy")
    memory_fraction: MaybeNumber = absent(None)


@group
class Served(Question):
    """A question of requests that are served at a price: their kind, and the traffic of a fleet."""

    use: str | None = shared(USE, default=None)
    mix: str | None = shared(MIX, default=None)
    trace: str | None = option(
        "text",
        "mixture of request lengths from recorded requests, in the formats that `simulate` reads",
        default=None,
    )
    memory_fraction: MaybeNumber = shared(MEMORY_FRACTION, default=None)
    power_cap: MaybeNumber = shared(POWER_CAP, default=None)
    price: MaybeNumber = shared(PRICE, default=None)
    rent: str | None = shared(RENT, default=None)
    traffic: MaybeNumber = option(
        "per_second",
        "fleet traffic in output tokens, such as 50M/s or 2T/day: prints the replicas, racks, watts and dollars needed",
        default=None,
        unit="token/s",
        maximum=1e15,
        group=FLEET,
    )
    requests: MaybeNumber = option(
        "per_second",
        "fleet traffic in requests, such as 50/s, 3k/min or 1M/h",
        default=None,
        unit="request/s",
        maximum=1e12,
        group=FLEET,
    )
    users: MaybeWhole = whole(
        "fleet traffic as a number of interactive users, each of whom waits for an answer or thinks",
        default=None,
        group=FLEET,
    )
    think_time: MaybeNumber = shared(THINK_TIME, default=None, group=FLEET)
    peak_over_mean: MaybeNumber = option(
        "count",
        "peak-to-mean ratio: traffic of the busiest hour over its mean, such as 1.8",
        default=None,
        unit="1",
        minimum=1.0,
        maximum=1e3,
        group=FLEET,
    )


@group
class Planned(Served):
    """A question that plans deployments."""

    input: MaybeNumber = tokens("prompt tokens per request, such as 4k", default=None)
    output: MaybeNumber = tokens("output tokens per request, at least 2", minimum=2.0, default=None)
    tpot: Limit = limit("time per output token", "30ms")
    ttft: Limit = limit("time to first token", "2s")
    confidence: MaybeNumber = shared(CONFIDENCE, default=None)
    chips: MaybeWhole = shared(CHIPS, default=None)
    precision: Texts = option(
        "text",
        "data types: native, bf16, fp8, fp4, mxfp4, int8, int4, or by part such as fp8,kv=bf16; may be "
        "repeated; by default the checkpoint's own (native); any tries all that the chip supports",
        default=None,
        several=True,
        repeated=True,
    )
    mode: Texts = option(
        "text",
        "scheduler: chunked[=TOKENS], prefill-first[=TOKENS] or decode-first[=TOKENS], each also with ,overlap or, "
        "where attention-dp ranks wait for each other's prompts, with ,POLICY[=PASSES] (see simulate --policy); may "
        "be repeated",
        default=None,
        several=True,
        repeated=True,
    )
    layout: MaybeLayout = option(
        "text",
        "parallel degrees to fix, such as tp=8 or attention_dp=8,ep=8; the others are searched",
        default=None,
    )
    engine: Text = shared(SEARCHED_ENGINE, default="auto")
    calibration: CalibrationLike = shared(CALIBRATION, default="auto")
    any_layout: bool = option(
        "switch", "allow layouts and schedulers that the serving engine does not support", default=False
    )
    cache_hit: Number = shared(CACHE_HIT, default="0")
    routing: str | None = shared(ROUTING, default=None)
    sampling: Sampling = shared(SAMPLING, default="greedy")
    bill: str = option(
        "text",
        "chips that are paid for: whole (whole hosts, trays or slices) or used (only those in use)",
        default="whole",
        choices=("whole", "used"),
    )
    serving: str = option(
        "text",
        "both (aggregated and disaggregated prefill/decode) or aggregated (one engine that prefills and decodes)",
        default="both",
        choices=("both", "aggregated"),
    )


@group
class Sessions(Question):
    """A question whose prompts come again, in conversations and agents."""

    turns: MaybeNumber = option(
        "count",
        "mean turns per conversation; each prompt repeats all earlier messages and answers",
        default=None,
        unit="count",
        minimum=1.0,
        maximum=1e4,
        group=TRAFFIC,
    )
    system_prompt: Number = option(
        "count",
        "system prompt tokens, shared by all conversations",
        default="0",
        unit="token",
        zero=True,
        maximum=1e7,
        group=TRAFFIC,
    )
    tool_calls: MaybeNumber = option(
        "count",
        "agents: mean tool calls per turn, each followed by a request with its result",
        default=None,
        unit="count",
        zero=True,
        maximum=1e4,
        group=TRAFFIC,
    )
    tool_time: Number = option(
        "seconds",
        "agents: mean time that a tool takes, such as 3s",
        default="0s",
        unit="s",
        zero=True,
        group=TRAFFIC,
    )
    tool_output: MaybeNumber = tokens("agents: mean tokens of a tool's result", default=None, group=TRAFFIC)
    session_lengths: str = option(
        "text",
        "numbers of turns and tool calls: geometric around their means, or fixed for all conversations",
        default="geometric",
        choices=("geometric", "fixed"),
        group=TRAFFIC,
    )
    think_time: MaybeNumber = absent(None)
    input: MaybeNumber = absent(None)
    output: MaybeNumber = absent(None)
    rate: MaybeText = absent(None)


@group
class Loaded(Question):
    """A question of requests whose rate changes over time."""

    load: str | None = option(
        "text",
        "rates over time: a CSV file with the columns time and rate, a recorded trace, whose rates are taken, or an "
        "assumed shape: day, week or burst; `rate` scales it to a mean",
        default=None,
        group=OVER_TIME,
    )
    load_time: MaybeNumber = option(
        "seconds",
        "stretch the load to this time, such as 24h",
        default=None,
        unit="s",
        maximum=MOST_SECONDS,
        group=OVER_TIME,
    )


@group
class Traffic(Sessions, Loaded):
    """A question of requests in time: recorded, or drawn."""

    trace: str | None = option(
        "text",
        "recorded requests: Azure 2023, Mooncake, vLLM's benchmark, or CSV with arrival_s, input_len, output_len",
        default=None,
        group=TRAFFIC,
    )
    rate: MaybeText = option(
        "text",
        "mean request rate per second, or inf for all at once; with `turns`, conversations started per second",
        default=None,
        unit="request/s",
        group=TRAFFIC,
    )
    users: MaybeWhole = whole(
        "closed loop: number of users, each with one request in flight", default=None, group=TRAFFIC
    )
    input: MaybeNumber = tokens("mean prompt tokens; with `turns`, of each message", default=None, group=TRAFFIC)
    output: MaybeNumber = tokens("mean output tokens", default=None, group=TRAFFIC)
    lengths: str = option(
        "text",
        "length distribution: fixed, uniform (0.8 to 1.2 × the mean), exponential or lognormal",
        default="fixed",
        choices=SPREADS,
        group=TRAFFIC,
    )
    mix: str | None = shared(MIX, default=None, group=TRAFFIC)
    classes: str | None = option(
        "text",
        "classes of requests: a TOML file with [[classes]], each with a name, a share of the traffic (or a rate or "
        "load of its own), input, output, and as needed lengths, priority (a lower one is more urgent) and limits such "
        'as ttft = "1s@p99"; offline = true with requests is a backlog that fills what is idle',
        default=None,
        group=TRAFFIC,
    )
    arrival_cv: Number = option(
        "count",
        "coefficient of variation of inter-arrival times (standard deviation / mean); 1 is Poisson",
        default="1",
        unit="1",
        maximum=100.0,
        zero=True,
        group=TRAFFIC,
    )
    diurnal_amplitude: Number = option(
        "fraction",
        "relative amplitude of the daily cycle of the request rate, 0 to 1",
        default="0",
        unit="1",
        zero=True,
        group=TRAFFIC,
    )
    think_time: MaybeNumber = shared(THINK_TIME, default="0s", group=TRAFFIC)
    rate_scale: Number = option(
        "count",
        "replay speed-up: a factor on the arrival rate of the traffic",
        default="1",
        unit="1",
        maximum=1e6,
        group=TRAFFIC,
    )
    seed: Whole = whole("random seed", minimum=0, default="0", group=TRAFFIC)
    time_unit: str | None = option(
        "text",
        "time unit of a trace whose column does not state it: s or ms",
        default=None,
        choices=TIME_UNITS,
        group=TRAFFIC,
    )
    skip_bad: bool = option(
        "switch",
        "skip malformed lines and requests that can never fit, and count them",
        default=False,
        group=TRAFFIC,
    )
    agents: str | None = absent(None)
    requests: MaybeWhole = absent(None)
    high_priority_share: Number = absent(0.0)
    cache_hit: Number = absent(0.0)
    prefix_caching: bool = absent(False)

    def check_options(self) -> None:
        """Refuse options of two sources of requests, or none of them.

        Raises:
            InputError: such options.
        """
        if self.classes is not None:
            more = ("high_priority_share",) if self.high_priority_share else ()
            self.refuse(
                "trace", "users", "turns", "input", "output", "mix", "diurnal_amplitude", *more,
                allowed="only without `classes`",
            )  # fmt: skip
        elif self.load is not None:
            self.refuse("trace", "users", "turns", allowed="only without `load`")
        elif self.trace is not None:
            self.refuse(
                "rate", "users", "input", "output", "mix", "turns",
                allowed="only without `trace` (`rate_scale` scales its rate)",
            )  # fmt: skip
        elif self.agents is None:
            self._check_drawn()
        if self.load not in (None, "day", "week"):
            self.refuse("diurnal_amplitude", allowed="without `load`, or with `load` day or week")
        if self.mix is not None:
            self.refuse("input", "output", "turns", allowed="only without `mix`")
        super().check_options()

    def _check_drawn(self) -> None:
        if (self.rate is None) == (self.users is None):
            raise InputError(
                what="traffic",
                given="neither" if self.rate is None else "both",
                allowed="one of `trace`, `rate` and `users`",
            )
        if self.turns is None:
            self.refuse("system_prompt", allowed="only with `turns`")


@group
class Lifetimes(Question):
    """A question of what leaves a cache of prefixes."""

    eviction: str = shared(EVICTION, default="lru", group=CACHE)
    cache_ttl_from: str = option(
        "text",
        "when the time to expiry starts: at each use (use: sliding) or once, when the block is written (write)",
        default="use",
        choices=("use", "write"),
        group=CACHE,
    )
    cache_ttl: MaybeNumber = option(
        "seconds",
        "time after its last use at which a prefix expires in HBM, such as 5min; by default it stays until its memory "
        "is needed",
        default=None,
        unit="s",
        maximum=MOST_SECONDS,
        group=CACHE,
    )
    tier: Texts = option(
        "text",
        "memory behind HBM that keeps prefixes, for each chip: NAME=BYTES@RATE[@LATENCY][,ttl=TIME], fastest first, "
        "with an expiry of its own; may be repeated",
        default=None,
        several=True,
        repeated=True,
        group=CACHE,
    )


@group
class Described(Question):
    """A question of results whose files may leave out what was measured."""

    model: str | None = option(
        "text", "model of the results, if the file does not name it as rackline does", default=None, group=IMPORTED
    )
    chip: str | None = option("text", "chip of the results", default=None, group=IMPORTED)
    num_chips: MaybeWhole = whole("number of chips that served", default=None, maximum=MOST_CHIPS, group=IMPORTED)
    layout: MaybeLayout = option("text", "parallel layout, such as tp=4", default=None, group=IMPORTED)
    precision: str | None = option(
        "text", "data types, such as fp8; those of the released checkpoint by default", default=None, group=IMPORTED
    )
    stack: str | None = option("text", "serving software", default=None, group=IMPORTED)
    input_len: MaybeNumber = tokens("mean prompt tokens, if the file does not say", default=None, group=IMPORTED)
    output_len: MaybeNumber = tokens("mean output tokens, if the file does not say", default=None, group=IMPORTED)
    concurrency: MaybeWhole = whole("concurrent requests, if the file does not say", default=None, group=IMPORTED)

"""Options of traffic that several questions share: a trace, or rates, users and lengths."""

from __future__ import annotations

from rackline.api import fields as shared
from rackline.api.option import option, tokens, whole

SPREADS = ("fixed", "uniform", "exponential", "lognormal")
TIME_UNITS = ("s", "ms")
TTL_STARTS = ("use", "write")
_TRAFFIC, _CACHE = "Traffic", "KV cache"

TRACE = option(
    "text",
    "recorded requests: Azure 2023, Mooncake, vLLM's benchmark, or CSV with arrival_s, input_len, output_len",
    group=_TRAFFIC,
)
RATE = option(
    "text",
    "mean request rate per second, or inf for all at once; with `turns`, conversations started per second",
    unit="request/s",
    group=_TRAFFIC,
)
USERS = whole("closed loop: number of users, each with one request in flight", group=_TRAFFIC)
REQUESTS = whole("number of requests; by default 1000, or the whole trace", maximum=1e8, group=_TRAFFIC)
SIMULATED_REQUESTS = whole(
    "number of requests; by default the whole trace, or as many as `percentile_precision` takes, 2,000 to 64,000",
    maximum=1e8,
    group=_TRAFFIC,
)
PERCENTILE_PRECISION = option(
    "fraction",
    "half of the 95 % confidence interval over the percentile, or capacity, at which a run without `requests` ends",
    unit="1",
    group=_TRAFFIC,
)
INPUT = tokens("mean prompt tokens; with `turns`, of each message", group=_TRAFFIC)
OUTPUT = tokens("mean output tokens", group=_TRAFFIC)
LENGTHS = option(
    "text",
    "length distribution: fixed, uniform (0.8 to 1.2 × the mean), exponential or lognormal",
    choices=SPREADS,
    group=_TRAFFIC,
)
MIX = shared.within(shared.MIX, _TRAFFIC)
ARRIVAL_CV = option(
    "count",
    "coefficient of variation of inter-arrival times (standard deviation / mean); 1 is Poisson",
    unit="1",
    maximum=100.0,
    zero=True,
    group=_TRAFFIC,
)
DIURNAL_AMPLITUDE = option(
    "fraction",
    "relative amplitude of the daily cycle of the request rate, 0 to 1",
    unit="1",
    zero=True,
    group=_TRAFFIC,
)
TURNS = option(
    "count",
    "mean turns per conversation; each prompt repeats all earlier messages and answers",
    unit="count",
    minimum=1.0,
    maximum=1e4,
    group=_TRAFFIC,
)
THINK_TIME = shared.within(shared.THINK_TIME, _TRAFFIC)
SYSTEM_PROMPT = option(
    "count",
    "system prompt tokens, shared by all conversations",
    unit="token",
    zero=True,
    maximum=1e7,
    group=_TRAFFIC,
)
TOOL_CALLS = option(
    "count",
    "agents: mean tool calls per turn, each followed by a request with its result",
    unit="count",
    zero=True,
    maximum=1e4,
    group=_TRAFFIC,
)
TOOL_TIME = option("seconds", "agents: mean time that a tool takes, such as 3s", unit="s", zero=True, group=_TRAFFIC)
TOOL_OUTPUT = tokens("agents: mean tokens of a tool's result", group=_TRAFFIC)
SESSION_LENGTHS = option(
    "text",
    "numbers of turns and tool calls: geometric around their means, or fixed for all conversations",
    choices=("geometric", "fixed"),
    group=_TRAFFIC,
)
HIGH_PRIORITY_SHARE = option(
    "fraction",
    "fraction of high-priority requests, for the policy priority",
    unit="1",
    zero=True,
    group=_TRAFFIC,
)
RATE_SCALE = option(
    "count",
    "replay speed-up: a factor on the arrival rate of the traffic",
    unit="1",
    maximum=1e6,
    group=_TRAFFIC,
)
SEED = whole("random seed", minimum=0, group=_TRAFFIC)
TIME_UNIT = option(
    "text",
    "time unit of a trace whose column does not state it: s or ms",
    choices=TIME_UNITS,
    group=_TRAFFIC,
)
SKIP_BAD = option("switch", "skip malformed lines and requests that can never fit, and count them", group=_TRAFFIC)
EVICTION = option(
    "text",
    "which unused block leaves the prefix cache first: lru, lfu, fifo or cost-aware (by uses and time to recompute)",
    group=_CACHE,
)
CACHE_TTL_FROM = option(
    "text",
    "when the time to expiry begins: at each use (sliding) or once, when the block is written (write)",
    choices=TTL_STARTS,
    group=_CACHE,
)

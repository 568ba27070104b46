"""The question of `simulate`: traffic, server and limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from rackline.api import fields as shared
from rackline.api import traffic_fields as traffic
from rackline.api.draft import DraftQuestion
from rackline.api.option import MOST_CHIPS, MOST_SECONDS, MOST_TOKENS, Quantity, option, whole

if TYPE_CHECKING:
    from rackline.api.fields import Sampling
    from rackline.api.option import CalibrationLike, ClusterLike, LayoutLike, ModelLike, Settings, Texts

RESERVES = ("chunk", "prompt", "final")
_TRAFFIC, _SERVER, _CACHE, _POOLS, _LIMITS = "Traffic", "Server", "KV cache", "Prefill pool", "Limits and comparisons"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateQuestion(DraftQuestion):
    """Which latency percentiles does a deployment reach under recorded or synthetic traffic?"""

    ask: ClassVar[str] = "simulate"

    model: ModelLike = field(kw_only=False, metadata=shared.MODEL)
    on: ClusterLike = field(metadata=shared.ON)
    trace: str | None = field(default=None, metadata=traffic.TRACE)
    rate: Quantity | None = field(default=None, metadata=traffic.RATE)
    users: Quantity | None = field(default=None, metadata=traffic.USERS)
    requests: Quantity | None = field(default=None, metadata=traffic.SIMULATED_REQUESTS)
    percentile_precision: Quantity = field(default="10%", metadata=traffic.PERCENTILE_PRECISION)
    input: Quantity | None = field(default=None, metadata=traffic.INPUT)
    output: Quantity | None = field(default=None, metadata=traffic.OUTPUT)
    lengths: str = field(default="fixed", metadata=traffic.LENGTHS)
    mix: str | None = field(default=None, metadata=traffic.MIX)
    use: str | None = field(default=None, metadata=shared.within(shared.USE, _TRAFFIC))
    cache_hit: Quantity = field(default="0", metadata=shared.within(shared.CACHE_HIT, _TRAFFIC))
    arrival_cv: Quantity = field(default="1", metadata=traffic.ARRIVAL_CV)
    diurnal_amplitude: Quantity = field(default="0", metadata=traffic.DIURNAL_AMPLITUDE)
    turns: Quantity | None = field(default=None, metadata=traffic.TURNS)
    think_time: Quantity = field(default="0s", metadata=traffic.THINK_TIME)
    system_prompt: Quantity = field(default="0", metadata=traffic.SYSTEM_PROMPT)
    tool_calls: Quantity | None = field(default=None, metadata=traffic.TOOL_CALLS)
    tool_time: Quantity = field(default="0s", metadata=traffic.TOOL_TIME)
    tool_output: Quantity | None = field(default=None, metadata=traffic.TOOL_OUTPUT)
    session_lengths: str = field(default="geometric", metadata=traffic.SESSION_LENGTHS)
    high_priority_share: Quantity = field(default="0", metadata=traffic.HIGH_PRIORITY_SHARE)
    rate_scale: Quantity = field(default="1", metadata=traffic.RATE_SCALE)
    seed: Quantity = field(default="0", metadata=traffic.SEED)
    time_unit: str | None = field(default=None, metadata=traffic.TIME_UNIT)
    skip_bad: bool = field(default=False, metadata=traffic.SKIP_BAD)
    slo: str | None = field(
        default=None,
        metadata=option("text", "latency limits that define goodput, such as ttft=2s,tpot=50ms@p99", group=_LIMITS),
    )
    capacity: str | None = field(
        default=None,
        metadata=option("text", "find the highest request rate within these latency limits", group=_LIMITS),
    )
    compare: Texts | None = field(
        default=None,
        metadata=option(
            "text",
            "KEY=VALUE of another server for the same requests, such as on=dgx-h200,chips=4; may be repeated",
            several=True,
            repeated=True,
            group=_LIMITS,
        ),
    )
    layout: LayoutLike | None = field(
        default=None,
        metadata=option(
            "text",
            "parallel layout such as tp=8 or attention_dp=8,ep=8; by default the smallest that fits",
            group=_SERVER,
        ),
    )
    chips: Quantity | None = field(default=None, metadata=shared.CHIPS)
    replicas: Quantity | None = field(
        default=None, metadata=whole("number of replicas; by default as many as fit on the chips", group=_SERVER)
    )
    router: str = field(
        default="round-robin",
        metadata=option("text", "request router: round-robin, least-loaded or prefix-aware", group=_SERVER),
    )
    policy: str | None = field(
        default=None,
        metadata=option(
            "text",
            "scheduling policy: chunked, prefill-first, decode-first, fcfs, shortest-job, priority or trains; the "
            "stack's by default",
            group=_SERVER,
        ),
    )
    max_batched_tokens: Quantity | None = field(
        default=None,
        metadata=whole("token budget per pass and rank; the stack's by default", maximum=MOST_TOKENS, group=_SERVER),
    )
    max_num_seqs: Quantity | None = field(
        default=None,
        metadata=whole("maximum number of running sequences per rank; the stack's by default", group=_SERVER),
    )
    kv_tokens: Quantity | None = field(
        default=None,
        metadata=whole(
            "KV cache capacity per rank, in tokens; by default the memory that weights and buffers leave free",
            maximum=MOST_TOKENS,
            group=_CACHE,
        ),
    )
    block_size: Quantity = field(default="16", metadata=whole("tokens per KV cache block", group=_CACHE))
    reserve: str | None = field(
        default=None,
        metadata=option(
            "text",
            "KV cache that must be free for admission: chunk, prompt or final; the policy's by default",
            choices=RESERVES,
            group=_CACHE,
        ),
    )
    prefix_caching: bool = field(
        default=False,
        metadata=option("switch", "reuse cached KV blocks of requests that share a prefix", group=_CACHE),
    )
    tier: Texts | None = field(
        default=None,
        metadata=option(
            "text",
            "cache tier behind HBM, per rank: NAME=BYTES@RATE[@LATENCY][,ttl=TIME], fastest first, with an expiry of "
            "its own; may be repeated",
            several=True,
            repeated=True,
            group=_CACHE,
        ),
    )
    eviction: str = field(default="lru", metadata=shared.within(traffic.EVICTION, _CACHE))
    cache_ttl: Quantity | None = field(
        default=None,
        metadata=option(
            "seconds",
            "time after which an unused block of the prefix cache expires, such as 5min; by default never",
            unit="s",
            maximum=MOST_SECONDS,
            group=_CACHE,
        ),
    )
    cache_ttl_from: str = field(default="use", metadata=shared.within(traffic.CACHE_TTL_FROM, _CACHE))
    swap_bandwidth: Quantity | None = field(
        default=None,
        metadata=option(
            "rate",
            "bandwidth for swapping preempted sequences to host memory, instead of recomputing them",
            unit="B/s",
            group=_CACHE,
        ),
    )
    prefill_replicas: Quantity | None = field(
        default=None,
        metadata=whole(
            "prefill/decode disaggregation: number of extra replicas that run prefill and hand over the KV cache",
            maximum=MOST_CHIPS,
            group=_POOLS,
        ),
    )
    prefill_layout: LayoutLike | None = field(
        default=None,
        metadata=option("text", "layout of the prefill replicas; that of the decode replicas by default", group=_POOLS),
    )
    kv_link: Quantity = field(
        default="50GB/s",
        metadata=option(
            "rate",
            "bandwidth of one request's KV transfer between the pools, per chip",
            unit="B/s",
            group=_POOLS,
        ),
    )
    speculate: str | None = field(
        default=None,
        metadata=option(
            "text",
            "speculative decoding: draft tokens per step, such as 3, or with the tokens that a step yields, such as "
            "3=2.4",
            group=_SERVER,
        ),
    )
    precision: str = field(default="native", metadata=shared.PRECISION)
    calibration: CalibrationLike = field(default="auto", metadata=shared.CALIBRATION)
    stack: str | None = field(
        default=None,
        metadata=option(
            "text",
            "serving stack (scheduler, host and launch overheads), such as vllm or vllm=0.6.3; that of the "
            "calibration by default",
            group=_SERVER,
        ),
    )
    memory_fraction: Quantity | None = field(
        default=None,
        metadata=option(
            "fraction", "fraction of HBM that the server may use; the stack's by default", unit="1", group=_CACHE
        ),
    )
    routing: str | None = field(default=None, metadata=shared.ROUTING)
    sampling: Sampling = field(default="greedy", metadata=shared.SAMPLING)
    power_cap: Quantity | None = field(default=None, metadata=shared.POWER_CAP)
    price: Quantity | None = field(default=None, metadata=shared.PRICE)
    set: Settings | None = field(default=None, metadata=shared.SET)
    keep_passes: bool = field(
        default=False,
        metadata=option("switch", "record every pass, for the Chrome trace", hidden=True),
    )

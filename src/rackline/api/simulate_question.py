"""The question of `simulate`: traffic, server and limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

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
    Traffic,
)
from rackline.api.model_options import DraftQuestion
from rackline.api.option import MOST_CHIPS, MOST_SECONDS, MOST_TOKENS, option, shared, whole
from rackline.api.question import question

if TYPE_CHECKING:
    from rackline.api.groups import Sampling
    from rackline.api.option import CalibrationLike, MaybeLayout, MaybeNumber, MaybeWhole, Number, Texts, Whole

RESERVES = ("chunk", "prompt", "final")
_SERVER, _POOLS, _LIMITS = "Server", "Prefill pool", "Limits and comparisons"


@question
class SimulateQuestion(Traffic, Lifetimes, DraftQuestion):
    """Which latency percentiles does a deployment reach under recorded or synthetic traffic?"""

    ask: ClassVar[str] = "simulate"

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
        "text",
        "latency limits that define goodput, such as ttft=2s,tpot=50ms@p99",
        default=None,
        group=_LIMITS,
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
        "request router: round-robin, least-loaded or prefix-aware",
        default="round-robin",
        group=_SERVER,
    )
    policy: str | None = option(
        "text",
        "scheduling policy: chunked, prefill-first, decode-first, fcfs, shortest-job, priority or trains; of "
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
    tier: Texts = option(
        "text",
        "cache tier behind HBM, per rank: NAME=BYTES@RATE[@LATENCY][,ttl=TIME], fastest first, with an expiry of "
        "its own; may be repeated",
        default=None,
        several=True,
        repeated=True,
        group=CACHE,
    )
    cache_ttl: MaybeNumber = option(
        "seconds",
        "time after which an unused block of the prefix cache expires, such as 5min; by default never",
        default=None,
        unit="s",
        maximum=MOST_SECONDS,
        group=CACHE,
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
        "text",
        "layout of the prefill replicas; that of the decode replicas by default",
        default=None,
        group=_POOLS,
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

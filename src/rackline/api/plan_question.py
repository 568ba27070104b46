"""The question of `plan`: requests, limits, chips, and further output about the best deployment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from rackline.api import fields as shared
from rackline.api import traffic_fields as repeats
from rackline.api.draft import DraftQuestion
from rackline.api.option import MOST_SECONDS, Quantity, limit, option

if TYPE_CHECKING:
    from rackline.api.option import CalibrationLike, ClusterLike, LayoutLike, ModelLike, Settings, Texts

SERVING = ("both", "aggregated")
_POOLS, _REPEATS, _MORE = "Prefill pool", "Prompts that repeat", "Further output"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanQuestion(DraftQuestion):
    """What is the cheapest way to serve a model on a cluster under latency limits?"""

    ask: ClassVar[str] = "plan"

    model: ModelLike = field(kw_only=False, metadata=shared.MODEL)
    on: ClusterLike = field(metadata=shared.ON)
    use: str | None = field(default=None, metadata=shared.USE)
    input: Quantity | None = field(default=None, metadata=shared.INPUT)
    output: Quantity | None = field(default=None, metadata=shared.OUTPUT)
    mix: str | None = field(default=None, metadata=shared.MIX)
    trace: str | None = field(default=None, metadata=shared.TRACE)
    tpot: Quantity | None = field(default=None, metadata=limit("time per output token", "30ms"))
    ttft: Quantity | None = field(default=None, metadata=limit("time to first token", "2s"))
    chips: Quantity | None = field(default=None, metadata=shared.CHIPS)
    precision: Texts | None = field(
        default=None,
        metadata=option(
            "text",
            "data types: native, bf16, fp8, fp4, mxfp4, int8, int4, or by part such as fp8,kv=bf16; may be "
            "repeated; by default the checkpoint's own (native); any tries all that the chip supports",
            several=True,
            repeated=True,
        ),
    )
    mode: Texts | None = field(
        default=None,
        metadata=option(
            "text",
            "scheduler: chunked[=TOKENS], prefill-first[=TOKENS] or decode-first[=TOKENS], each also with ,overlap; "
            "may be repeated",
            several=True,
            repeated=True,
        ),
    )
    layout: LayoutLike | None = field(
        default=None,
        metadata=option(
            "text", "parallel degrees to fix, such as tp=8 or attention_dp=8,ep=8; the others are searched"
        ),
    )
    calibration: CalibrationLike = field(default="auto", metadata=shared.CALIBRATION)
    memory_fraction: Quantity = field(default="0.9", metadata=shared.MEMORY_FRACTION)
    power_cap: Quantity | None = field(default=None, metadata=shared.POWER_CAP)
    objective: str = field(
        default="dollars",
        metadata=option(
            "text",
            "what is least within the limits: dollars, or joules of an output token, for which power caps and layouts "
            "are compared by energy",
            choices=("dollars", "joules"),
        ),
    )
    any_layout: bool = field(
        default=False,
        metadata=option("switch", "allow layouts and schedulers that the serving engine does not support"),
    )
    cache_hit: Quantity = field(default="0", metadata=shared.CACHE_HIT)
    routing: str | None = field(default=None, metadata=shared.ROUTING)
    price: Quantity | None = field(default=None, metadata=shared.PRICE)
    rent: str | None = field(default=None, metadata=shared.RENT)
    bill: str = field(
        default="whole",
        metadata=option(
            "text",
            "chips that are paid for: whole (whole hosts, trays or slices) or used (only those in use)",
            choices=("whole", "used"),
        ),
    )
    serving: str = field(
        default="both",
        metadata=option(
            "text",
            "both (aggregated and disaggregated prefill/decode) or aggregated (one engine that prefills and decodes)",
            choices=SERVING,
        ),
    )
    prefill_on: ClusterLike | None = field(
        default=None,
        metadata=option(
            "object",
            "another cluster for the prefill pool, such as h100-96; by default chips of the same cluster",
            group=_POOLS,
        ),
    )
    prefill_chips: Quantity | None = field(
        default=None,
        metadata=option(
            "whole",
            "number of chips of that cluster; all by default",
            unit="count",
            minimum=1.0,
            group=_POOLS,
        ),
    )
    prefill_layout: LayoutLike | None = field(
        default=None,
        metadata=option(
            "text",
            "parallel degrees to fix in the prefill pool, such as attention_dp=32,ep=32",
            group=_POOLS,
        ),
    )
    traffic: Quantity | None = field(default=None, metadata=shared.TRAFFIC)
    requests: Quantity | None = field(default=None, metadata=shared.REQUESTS)
    users: Quantity | None = field(default=None, metadata=shared.USERS)
    think_time: Quantity | None = field(default=None, metadata=shared.within(shared.THINK_TIME, shared.FLEET))
    pue: Quantity = field(default="1", metadata=shared.within(shared.PUE, shared.FLEET))
    peak_over_mean: Quantity | None = field(default=None, metadata=shared.PEAK_OVER_MEAN)
    offline_share: Quantity | None = field(
        default=None,
        metadata=option(
            "fraction",
            "offline share: traffic that may wait for off-peak hours, such as 30%",
            unit="1",
            zero=True,
            group=shared.FLEET,
        ),
    )
    provider: Quantity | None = field(
        default=None,
        metadata=option(
            "count",
            "output tokens/s of a whole provider, for comparison, such as 400M",
            unit="token/s",
            maximum=1e15,
            group=shared.FLEET,
        ),
    )
    turns: Quantity | None = field(default=None, metadata=shared.within(repeats.TURNS, _REPEATS))
    system_prompt: Quantity = field(default="0", metadata=shared.within(repeats.SYSTEM_PROMPT, _REPEATS))
    tool_calls: Quantity | None = field(default=None, metadata=shared.within(repeats.TOOL_CALLS, _REPEATS))
    tool_time: Quantity = field(default="0s", metadata=shared.within(repeats.TOOL_TIME, _REPEATS))
    tool_output: Quantity | None = field(default=None, metadata=shared.within(repeats.TOOL_OUTPUT, _REPEATS))
    session_lengths: str = field(default="geometric", metadata=shared.within(repeats.SESSION_LENGTHS, _REPEATS))
    cache_ttl: Quantity | None = field(
        default=None,
        metadata=option(
            "seconds",
            "with `turns` or `trace`: time after its last use at which a prefix expires in HBM, such as 5min; by "
            "default it stays until its memory is needed",
            unit="s",
            maximum=MOST_SECONDS,
            group=_REPEATS,
        ),
    )
    tier: Texts | None = field(
        default=None,
        metadata=option(
            "text",
            "with `turns` or `trace`: memory behind HBM that keeps prefixes, for each chip: "
            "NAME=BYTES@RATE[@LATENCY][,ttl=TIME], fastest first, with an expiry of its own; may be repeated",
            several=True,
            repeated=True,
            group=_REPEATS,
        ),
    )
    eviction: str = field(default="lru", metadata=shared.within(repeats.EVICTION, _REPEATS))
    cache_ttl_from: str = field(default="use", metadata=shared.within(repeats.CACHE_TTL_FROM, _REPEATS))
    full: bool = field(
        default=False,
        metadata=option(
            "switch", "print the full report: rows of the passes, memory, Pareto fronts, other layouts", group=_MORE
        ),
    )
    launch: str | None = field(
        default=None,
        metadata=option(
            "text",
            "print launch commands of the answer for auto (the calibration's stack), vllm, sglang or trtllm, each also "
            "in a version, such as sglang=0.5.6; its launch rules apply",
            group=_MORE,
        ),
    )
    speculate: str | None = field(
        default=None,
        metadata=option(
            "text",
            "when speculative decoding pays on the chosen decode replica: usual (1 to 4 draft tokens at typical "
            "acceptance) or draft tokens with the tokens that a step yields, such as 1,3=2.9",
            group=_MORE,
        ),
    )
    attention_ffn: bool = field(
        default=False,
        metadata=option(
            "switch", "attention/FFN disaggregation: decode with attention and experts on separate chips", group=_MORE
        ),
    )
    what_if: str | None = field(
        default=None,
        metadata=option(
            "text",
            "vary one quantity and show the optimum at each value, such as scale_up_size=8,72,144 or "
            "hbm_bandwidth=4TB/s:20TB/s:5; also scale_up_bandwidth, scale_out_bandwidth, hbm_capacity, "
            "total_over_active, kv_bytes_per_token, or any key of `set`",
            group=_MORE,
        ),
    )
    set: Settings | None = field(default=None, metadata=shared.SET)

"""The question of `plan`: requests, limits, chips, and further output about the best deployment."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rackline.api.draft import DraftQuestion
from rackline.api.groups import FLEET, PUE, Lifetimes, Planned, Sessions
from rackline.api.option import MOST_SECONDS, option, shared
from rackline.api.question import options, question

if TYPE_CHECKING:
    from rackline.api.option import ClusterLike, MaybeLayout, MaybeNumber, MaybeWhole, Number, Texts

SERVING = ("both", "aggregated")
_POOLS, _REPEATS, _MORE = "Prefill pool", "Prompts that repeat", "Further output"


@question
class PlanQuestion(Planned, Sessions, Lifetimes, DraftQuestion):
    """What is the cheapest way to serve a model on a cluster under latency limits?"""

    ask: ClassVar[str] = "plan"
    headings = dict.fromkeys([*options(Sessions), *options(Lifetimes)], _REPEATS)

    objective: str = option(
        "text",
        "what is least within the limits: dollars, or joules of an output token, for which power caps and layouts "
        "are compared by energy",
        default="dollars",
        choices=("dollars", "joules"),
    )
    prefill_on: ClusterLike | None = option(
        "object",
        "another cluster for the prefill pool, such as h100-96; by default chips of the same cluster",
        default=None,
        group=_POOLS,
    )
    prefill_chips: MaybeWhole = option(
        "whole",
        "number of chips of that cluster; all by default",
        default=None,
        unit="count",
        minimum=1.0,
        group=_POOLS,
    )
    prefill_layout: MaybeLayout = option(
        "text",
        "parallel degrees to fix in the prefill pool, such as attention_dp=32,ep=32",
        default=None,
        group=_POOLS,
    )
    pue: Number = shared(PUE, default="1", group=FLEET)
    offline_share: MaybeNumber = option(
        "fraction",
        "offline share: traffic that may wait for off-peak hours, such as 30%",
        default=None,
        unit="1",
        zero=True,
        group=FLEET,
    )
    provider: MaybeNumber = option(
        "count",
        "output tokens/s of a whole provider, for comparison, such as 400M",
        default=None,
        unit="token/s",
        maximum=1e15,
        group=FLEET,
    )
    cache_ttl: MaybeNumber = option(
        "seconds",
        "with `turns` or `trace`: time after its last use at which a prefix expires in HBM, such as 5min; by "
        "default it stays until its memory is needed",
        default=None,
        unit="s",
        maximum=MOST_SECONDS,
        group=_REPEATS,
    )
    tier: Texts = option(
        "text",
        "with `turns` or `trace`: memory behind HBM that keeps prefixes, for each chip: "
        "NAME=BYTES@RATE[@LATENCY][,ttl=TIME], fastest first, with an expiry of its own; may be repeated",
        default=None,
        several=True,
        repeated=True,
        group=_REPEATS,
    )
    full: bool = option(
        "switch",
        "print the full report: rows of the passes, memory, Pareto fronts, other layouts",
        default=False,
        group=_MORE,
    )
    launch: str | None = option(
        "text",
        "print launch commands of the answer for auto (the calibration's stack), vllm, sglang or trtllm, each also "
        "in a version, such as sglang=0.5.6; its launch rules apply",
        default=None,
        group=_MORE,
    )
    speculate: str | None = option(
        "text",
        "when speculative decoding pays on the chosen decode replica: usual (1 to 4 draft tokens at typical "
        "acceptance) or draft tokens with the tokens that a step yields, such as 1,3=2.9",
        default=None,
        group=_MORE,
    )
    attention_ffn: bool = option(
        "switch",
        "attention/FFN disaggregation: decode with attention and experts on separate chips",
        default=False,
        group=_MORE,
    )
    what_if: str | None = option(
        "text",
        "vary one quantity and show the optimum at each value, such as scale_up_size=8,72,144 or "
        "hbm_bandwidth=4TB/s:20TB/s:5; also scale_up_bandwidth, scale_out_bandwidth, hbm_capacity, "
        "total_over_active, kv_bytes_per_token, or any key of `set`",
        default=None,
        group=_MORE,
    )

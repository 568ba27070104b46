"""The question of `tiers`: a prompt, how long it is held, and the traffic that repeats it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rackline.api.groups import EVICTION, PRICE, RENT, THINK_TIME, OnCluster, Sessions
from rackline.api.option import MOST_SECONDS, option, shared, tokens
from rackline.api.question import options, question
from rackline.api.selling import CALIBRATION, MOST_MARGIN

if TYPE_CHECKING:
    from rackline.api.option import CalibrationLike, MaybeLayout, MaybeNumber, MaybeText, Number, Numbers

_TRAFFIC = "Traffic that repeats"


@question
class TiersQuestion(Sessions, OnCluster):
    """Where to keep the KV cache of a prompt: chip memory, host memory, CXL, flash, disk, or compute it again?"""

    ask: ClassVar[str] = "tiers"
    headings = dict.fromkeys(options(Sessions), _TRAFFIC)

    prompt: Number = tokens("prompt tokens of the cache entry, such as 8k; for traffic, its mean prompt", default="8k")
    hold_time: Numbers = option(
        "seconds",
        "holding time, such as 5min; may be repeated; by default 5 minutes, an hour and a day",
        default=None,
        unit="s",
        maximum=1e10,
        several=True,
        repeated=True,
    )
    reuses: Number = option(
        "count",
        "number of times it is loaded while it is held",
        default="1",
        unit="count",
        minimum=1.0,
        maximum=1e9,
    )
    max_load_time: MaybeNumber = option(
        "seconds",
        "longest load time, such as 100ms; slower tiers are left out",
        default=None,
        unit="s",
        maximum=MOST_SECONDS,
    )
    margin: Number = option(
        "fraction",
        "margin over cost of the prices shown",
        default="30%",
        unit="1",
        maximum=MOST_MARGIN,
        zero=True,
    )
    utilisation: Number = option("fraction", "utilisation: share of chip-hours sold", default="60%", unit="1")
    trace: str | None = option(
        "text",
        "recorded requests with hashes of their prefixes, such as Mooncake's traces",
        default=None,
        group=_TRAFFIC,
    )
    rate: MaybeText = option(
        "text", "with `turns`: conversations started per second", default=None, unit="1/s", group=_TRAFFIC
    )
    input: MaybeNumber = tokens("with `turns`: mean tokens of a message", default=None, group=_TRAFFIC)
    output: MaybeNumber = tokens("with `turns`: mean tokens of an answer", default=None, group=_TRAFFIC)
    think_time: MaybeNumber = shared(THINK_TIME, default="1min", group=_TRAFFIC)
    eviction: str = shared(EVICTION, default="lru", group=_TRAFFIC)
    sheet: str | None = option(
        "text",
        "price sheet at which the same prompts are bought, such as claude-opus-4.6, by lifetime of its writes",
        default=None,
        group=_TRAFFIC,
    )
    layout: MaybeLayout = option(
        "text", "parallel layout such as tp=8; by default the cheapest for this prompt", default=None
    )
    calibration: CalibrationLike = shared(CALIBRATION, default="auto")
    price: MaybeNumber = shared(PRICE, default=None)
    rent: str | None = shared(RENT, default=None)

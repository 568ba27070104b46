"""The question of `price`: a deployment, the margin, modes and context tiers, and the traffic it is sold to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from rackline.api import fields as shared
from rackline.api.media import MediaQuestion
from rackline.api.option import MOST_USD, Quantity, latency, option, tokens
from rackline.api.selling import CALIBRATION, MOST_MARGIN

if TYPE_CHECKING:
    from rackline.api.option import CalibrationLike, ClusterLike, LayoutLike, ModelLike, Quantities, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceQuestion(MediaQuestion):
    """What to charge for a deployment: input, output, cached input, cache writes, batch, flex and fast modes?"""

    ask: ClassVar[str] = "price"

    model: ModelLike = field(kw_only=False, metadata=shared.MODEL)
    on: ClusterLike = field(metadata=shared.ON)
    layout: LayoutLike | None = field(
        default=None,
        metadata=option(
            "text",
            "parallel layout such as tp=8; by default the cheapest of each mode and context tier",
        ),
    )
    precision: str = field(default="native", metadata=shared.PRECISION)
    calibration: CalibrationLike = field(default="auto", metadata=CALIBRATION)
    margin: Quantity = field(
        default="30%",
        metadata=option(
            "fraction", "margin over cost (price / cost − 1), such as 30%", unit="1", maximum=MOST_MARGIN, zero=True
        ),
    )
    utilisation: Quantity = field(
        default="60%",
        metadata=option("fraction", "utilisation: share of chip-hours filled by standard traffic", unit="1"),
    )
    contexts: Quantities = field(
        default="32k,128k",
        metadata=tokens("longest prompt of each context tier, such as 32k,200k,1M", several=True),
    )
    use: str | None = field(default=None, metadata=shared.USE)
    output: Quantity | None = field(
        default=None, metadata=tokens("output tokens that a request adds to the context; 1k by default")
    )
    mix: str | None = field(default=None, metadata=shared.MIX)
    trace: str | None = field(default=None, metadata=shared.TRACE)
    tpot: Quantity | None = field(
        default=None,
        metadata=latency("limit on time per output token in the standard mode, of the mean; 50ms by default"),
    )
    fast: Quantities = field(
        default="1.5,2.5",
        metadata=option(
            "count",
            "speed-ups of the fast modes over the standard one, such as 1.5,2.5; below 2 a mode is called priority",
            unit="1",
            minimum=1.0,
            maximum=1e3,
            several=True,
        ),
    )
    lifetimes: Quantities = field(
        default="5min,1h,24h",
        metadata=option("seconds", "lifetimes of cache writes, such as 5min,1h", unit="s", maximum=1e10, several=True),
    )
    memory_fraction: Quantity = field(default="0.9", metadata=shared.MEMORY_FRACTION)
    power_cap: Quantity | None = field(default=None, metadata=shared.POWER_CAP)
    margin_at: str = field(
        default="mean",
        metadata=option(
            "text",
            "prompts at which the margin is earned: mean (all of a tier, as many in each doubling of the length) or "
            "longest (no prompt of a tier is sold below its cost)",
            choices=("mean", "longest"),
        ),
    )
    price: Quantity | None = field(default=None, metadata=shared.PRICE)
    rent: str | None = field(default=None, metadata=shared.RENT)
    purchase: Quantity | None = field(
        default=None,
        metadata=option(
            "usd_per_hour",
            "purchase price per chip with its share of host, network and building, in USD, instead of a rent",
            unit="USD",
            maximum=1e9,
        ),
    )
    years: Quantity = field(
        default="4", metadata=option("count", "depreciation period of purchased hardware", unit="year", maximum=100.0)
    )
    electricity_price: Quantity = field(
        default="0.08",
        metadata=option(
            "usd_per_hour",
            "electricity price in USD per kWh; an assumption",
            unit="USD/kWh",
            maximum=MOST_USD,
            zero=True,
        ),
    )
    pue: Quantity = field(default="1", metadata=shared.PUE)
    traffic: Quantity | None = field(default=None, metadata=shared.TRAFFIC)
    requests: Quantity | None = field(default=None, metadata=shared.REQUESTS)
    users: Quantity | None = field(default=None, metadata=shared.USERS)
    think_time: Quantity | None = field(default=None, metadata=shared.within(shared.THINK_TIME, shared.FLEET))
    peak_over_mean: Quantity | None = field(default=None, metadata=shared.PEAK_OVER_MEAN)
    set: Settings | None = field(default=None, metadata=shared.SET)

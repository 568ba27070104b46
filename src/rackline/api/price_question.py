"""The question of `price`: a deployment, the margin, modes and context tiers, and the traffic it is sold to."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rackline.api.groups import CONFIDENCE, PUE, Served
from rackline.api.model_options import MediaQuestion
from rackline.api.option import MOST_SECONDS, MOST_USD, option, shared, tokens
from rackline.api.question import question
from rackline.api.selling import CALIBRATION, MOST_MARGIN

if TYPE_CHECKING:
    from rackline.api.option import CalibrationLike, MaybeLayout, MaybeNumber, Number, Numbers


@question
class PriceQuestion(Served, MediaQuestion):
    """What to charge for a deployment: input, output, cached input, cache writes, batch, flex and fast modes?"""

    ask: ClassVar[str] = "price"

    layout: MaybeLayout = option(
        "text",
        "parallel layout such as tp=8; by default the cheapest of each mode and context tier",
        default=None,
    )
    calibration: CalibrationLike = shared(CALIBRATION, default="auto")
    margin: Number = option(
        "fraction",
        "margin over cost (price / cost − 1), such as 30%",
        default="30%",
        unit="1",
        maximum=MOST_MARGIN,
        zero=True,
    )
    utilisation: Number = option(
        "fraction", "utilisation: share of chip-hours filled by standard traffic", default="60%", unit="1"
    )
    contexts: Numbers = tokens(
        "longest prompt of each context tier, such as 32k,200k,1M", default="32k,128k", several=True
    )
    output: MaybeNumber = tokens("output tokens that a request adds to the context; 1k by default", default=None)
    tpot: MaybeNumber = option(
        "seconds",
        "limit on time per output token in the standard mode, of the mean; 50ms by default",
        default=None,
        unit="s",
        maximum=MOST_SECONDS,
    )
    confidence: MaybeNumber = shared(CONFIDENCE, default=None)
    fast: Numbers = option(
        "count",
        "speed-ups of the fast modes over the standard one, such as 1.5,2.5; below 2 a mode is called priority",
        default="1.5,2.5",
        unit="1",
        minimum=1.0,
        maximum=1e3,
        several=True,
    )
    lifetimes: Numbers = option(
        "seconds",
        "lifetimes of cache writes, such as 5min,1h",
        default="5min,1h,24h",
        unit="s",
        maximum=1e10,
        several=True,
    )
    margin_at: str = option(
        "text",
        "prompts at which the margin is earned: mean (all of a tier, as many in each doubling of the length) or "
        "longest (no prompt of a tier is sold below its cost)",
        default="mean",
        choices=("mean", "longest"),
    )
    purchase: MaybeNumber = option(
        "usd_per_hour",
        "purchase price per chip with its share of host, network and building, in USD, instead of a rent",
        default=None,
        unit="USD",
        maximum=1e9,
    )
    years: Number = option(
        "count", "depreciation period of purchased hardware", default="4", unit="year", maximum=100.0
    )
    electricity_price: Number = option(
        "usd_per_hour",
        "electricity price in USD per kWh; an assumption",
        default="0.08",
        unit="USD/kWh",
        maximum=MOST_USD,
        zero=True,
    )
    pue: Number = shared(PUE, default="1")

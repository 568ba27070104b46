"""The question of `tiers`: a prompt, how long it is held, and the traffic that repeats it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from rackline.api import fields as shared
from rackline.api import traffic_fields as traffic
from rackline.api.model_question import ModelQuestion
from rackline.api.option import MOST_SECONDS, Quantity, option, tokens
from rackline.api.selling import CALIBRATION, MOST_MARGIN

if TYPE_CHECKING:
    from rackline.api.option import CalibrationLike, ClusterLike, LayoutLike, ModelLike, Quantities, Settings

_TRAFFIC = "Traffic that repeats"


@dataclass(frozen=True, slots=True, kw_only=True)
class TiersQuestion(ModelQuestion):
    """Where to keep the KV cache of a prompt: chip memory, host memory, CXL, flash, disk, or compute it again?"""

    ask: ClassVar[str] = "tiers"

    model: ModelLike = field(kw_only=False, metadata=shared.MODEL)
    on: ClusterLike = field(metadata=shared.ON)
    prompt: Quantity = field(
        default="8k",
        metadata=tokens("prompt tokens of the cache entry, such as 8k; for traffic, its mean prompt"),
    )
    hold_time: Quantities | None = field(
        default=None,
        metadata=option(
            "seconds",
            "holding time, such as 5min; may be repeated; by default 5 minutes, an hour and a day",
            unit="s",
            maximum=1e10,
            several=True,
            repeated=True,
        ),
    )
    reuses: Quantity = field(
        default="1",
        metadata=option(
            "count", "number of times it is loaded while it is held", unit="count", minimum=1.0, maximum=1e9
        ),
    )
    max_load_time: Quantity | None = field(
        default=None,
        metadata=option(
            "seconds",
            "longest load time, such as 100ms; slower tiers are left out",
            unit="s",
            maximum=MOST_SECONDS,
        ),
    )
    margin: Quantity = field(
        default="30%",
        metadata=option("fraction", "margin over cost of the prices shown", unit="1", maximum=MOST_MARGIN, zero=True),
    )
    utilisation: Quantity = field(
        default="60%", metadata=option("fraction", "utilisation: share of chip-hours sold", unit="1")
    )
    trace: str | None = field(
        default=None,
        metadata=option(
            "text", "recorded requests with hashes of their prefixes, such as Mooncake's traces", group=_TRAFFIC
        ),
    )
    turns: Quantity | None = field(default=None, metadata=shared.within(traffic.TURNS, _TRAFFIC))
    rate: Quantity | None = field(
        default=None,
        metadata=option("text", "with `turns`: conversations started per second", unit="1/s", group=_TRAFFIC),
    )
    input: Quantity | None = field(
        default=None, metadata=tokens("with `turns`: mean tokens of a message", group=_TRAFFIC)
    )
    output: Quantity | None = field(
        default=None, metadata=tokens("with `turns`: mean tokens of an answer", group=_TRAFFIC)
    )
    think_time: Quantity = field(default="1min", metadata=shared.within(shared.THINK_TIME, _TRAFFIC))
    system_prompt: Quantity = field(default="0", metadata=shared.within(traffic.SYSTEM_PROMPT, _TRAFFIC))
    tool_calls: Quantity | None = field(default=None, metadata=shared.within(traffic.TOOL_CALLS, _TRAFFIC))
    tool_time: Quantity = field(default="0s", metadata=shared.within(traffic.TOOL_TIME, _TRAFFIC))
    tool_output: Quantity | None = field(default=None, metadata=shared.within(traffic.TOOL_OUTPUT, _TRAFFIC))
    session_lengths: str = field(default="geometric", metadata=shared.within(traffic.SESSION_LENGTHS, _TRAFFIC))
    eviction: str = field(default="lru", metadata=shared.within(traffic.EVICTION, _TRAFFIC))
    sheet: str | None = field(
        default=None,
        metadata=option(
            "text",
            "price sheet at which the same prompts are bought, such as claude-opus-4.6, by lifetime of its writes",
            group=_TRAFFIC,
        ),
    )
    layout: LayoutLike | None = field(
        default=None,
        metadata=option("text", "parallel layout such as tp=8; by default the cheapest for this prompt"),
    )
    precision: str = field(default="native", metadata=shared.PRECISION)
    calibration: CalibrationLike = field(default="auto", metadata=CALIBRATION)
    price: Quantity | None = field(default=None, metadata=shared.PRICE)
    rent: str | None = field(default=None, metadata=shared.RENT)
    set: Settings | None = field(default=None, metadata=shared.SET)

"""The question of `compare`: its options."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, ClassVar

from rackline.api.fields import INPUT, OUTPUT, RENT
from rackline.api.model_question import ModelQuestion
from rackline.api.option import Quantity, limit, option
from rackline.api.plan_question import PlanQuestion

if TYPE_CHECKING:
    from rackline.api.option import CalibrationLike, LayoutLike, Settings, Texts

_PLAN = {one.name: one.metadata for one in fields(PlanQuestion)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareQuestion(ModelQuestion):
    """How do chips, clusters, models or deployments compare, each number relative to the first?"""

    ask: ClassVar[str] = "compare"

    names: Texts = field(
        kw_only=False,
        metadata=option(
            "text",
            "two or more of one kind: chips, clusters, models, or deployments as MODEL@CLUSTER",
            positional=True,
            several=True,
        ),
    )
    stack: Texts | None = field(
        default=None,
        metadata=option(
            "text",
            "serving engines of the deployments, such as vllm,sglang=0.5.6: each deployment under each of them, with "
            "its kernels and its launch rules",
            several=True,
        ),
    )
    now: str | None = field(
        default=None,
        metadata=option(
            "text",
            "today's deployment on the first MODEL@CLUSTER, to compare its plan with: layout and sequences in flight "
            "on a replica, such as tp=8,batch=64; also precision= and mode=",
        ),
    )
    use: str | None = field(default=None, metadata=_PLAN["use"])
    input: Quantity | None = field(default=None, metadata=INPUT)
    output: Quantity | None = field(default=None, metadata=OUTPUT)
    mix: str | None = field(default=None, metadata=_PLAN["mix"])
    trace: str | None = field(default=None, metadata=_PLAN["trace"])
    tpot: Quantity | None = field(default=None, metadata=limit("time per output token of deployments", "30ms"))
    ttft: Quantity | None = field(default=None, metadata=limit("time to first token of deployments", "2s"))
    chips: Quantity | None = field(default=None, metadata=_PLAN["chips"])
    precision: Texts | None = field(default=None, metadata=_PLAN["precision"])
    mode: Texts | None = field(default=None, metadata=_PLAN["mode"])
    layout: LayoutLike | None = field(default=None, metadata=_PLAN["layout"])
    calibration: CalibrationLike = field(default="auto", metadata=_PLAN["calibration"])
    memory_fraction: Quantity = field(default="0.9", metadata=_PLAN["memory_fraction"])
    power_cap: Quantity | None = field(default=None, metadata=_PLAN["power_cap"])
    any_layout: bool = field(default=False, metadata=_PLAN["any_layout"])
    cache_hit: Quantity = field(default="0", metadata=_PLAN["cache_hit"])
    routing: str | None = field(default=None, metadata=_PLAN["routing"])
    price: Quantity | None = field(default=None, metadata=_PLAN["price"])
    rent: str | None = field(default=None, metadata=RENT)
    bill: str = field(default="whole", metadata=_PLAN["bill"])
    serving: str = field(default="both", metadata=_PLAN["serving"])
    traffic: Quantity | None = field(default=None, metadata=_PLAN["traffic"])
    requests: Quantity | None = field(default=None, metadata=_PLAN["requests"])
    users: Quantity | None = field(default=None, metadata=_PLAN["users"])
    think_time: Quantity | None = field(default=None, metadata=_PLAN["think_time"])
    peak_over_mean: Quantity | None = field(default=None, metadata=_PLAN["peak_over_mean"])
    set: Settings | None = field(default=None, metadata=_PLAN["set"])

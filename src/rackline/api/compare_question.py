"""The question of `compare`: its options."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rackline.api.groups import SET, ModelQuestion, Planned
from rackline.api.option import limit, option, shared
from rackline.api.question import question

if TYPE_CHECKING:
    from rackline.api.option import Limit, Settings, Texts


@question
class CompareQuestion(Planned, ModelQuestion):
    """How do chips, clusters, models or deployments compare, each number relative to the first?"""

    ask: ClassVar[str] = "compare"

    names: Texts = option(
        "text",
        "two or more of one kind: chips, clusters, models, or deployments as MODEL@CLUSTER",
        several=True,
        kw_only=False,
    )
    stack: Texts = option(
        "text",
        "serving engines of the deployments, such as vllm,sglang=0.5.6: each deployment under each of them, with "
        "its kernels and its launch rules",
        default=None,
        several=True,
    )
    now: str | None = option(
        "text",
        "today's deployment on the first MODEL@CLUSTER, to compare its plan with: layout and sequences in flight "
        "on a replica, such as tp=8,batch=64; also precision= and mode=",
        default=None,
    )
    tpot: Limit = limit("time per output token of deployments", "30ms", default=None)
    ttft: Limit = limit("time to first token of deployments", "2s", default=None)
    set: Settings = shared(SET, default=None)

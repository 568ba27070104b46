"""`fit`: what fits where, layout by layout."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from rackline.api.answer import Answer, Watch, asks
from rackline.api.groups import CALIBRATION, CHIPS, FREE_LAYOUT, MEMORY_FRACTION
from rackline.api.model_options import AdapterQuestion, media_of, media_tokens, with_adapter, with_media
from rackline.api.question import (
    CalibrationLike,
    MaybeLayout,
    MaybeWhole,
    Number,
    question,
    shared,
    tokens,
    whole,
)
from rackline.api.resolve import check_context, resolve
from rackline.api.verbs import Entry
from rackline.late import late

with late:
    from rackline import parallel, serving
    from rackline.report import plan_figures, simulate_report, wording
    from rackline.search import fits
    from rackline.serving import workload


@question
class FitQuestion(AdapterQuestion):
    """What fits on a cluster: weights per chip, room for KV, largest context and concurrency, layout by layout?"""

    context: Number = tokens("context length of each request, such as 32k", default="8k")
    concurrency: MaybeWhole = whole("concurrent requests that must fit on the cluster", default=None)
    chips: MaybeWhole = shared(CHIPS, default=None)
    layout: MaybeLayout = shared(FREE_LAYOUT, default=None)
    calibration: CalibrationLike = shared(CALIBRATION, default="auto")
    memory_fraction: Number = shared(MEMORY_FRACTION, default="0.9")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """What fits, and what would be needed where nothing does.

    Args:
        capacity: of each layout.
        num_chips: of the cluster.
        hbm_bytes: memory of a chip [bytes].
        need: the smallest cluster that would hold one request, when none fits here.
    """

    json_keys: ClassVar = ("*capacity", "reason", "need")

    capacity: serving.Capacity
    num_chips: int
    hbm_bytes: float
    need: fits.ClusterNeed | None

    @property
    def reason(self) -> str:
        """Why nothing fits; empty where something does."""
        return "" if self.capacity.fitting else simulate_report.nearest_reason(self.capacity)


def _text(answer: Answer[FitQuestion, Fitting], width: int) -> Iterable[Any]:
    found = answer.result
    yield simulate_report.capacity_report(found.capacity, num_chips=found.num_chips, need=found.need)


def _summary(answer: Answer[FitQuestion, Fitting]) -> str:
    found = answer.result.capacity
    if not found.fitting:
        return f"{found.model} does not fit on {found.cluster}: {answer.result.reason}"
    best = found.fitting[0]
    return (
        f"{best.total_concurrency:,} requests of {wording.short_count(found.context_len)} tokens at once, "
        f"{found.model} on {answer.result.num_chips} chips of {found.cluster} with {best.layout.label()}"
    )


@asks(
    FitQuestion,
    text=_text,
    summary=_summary,
    rows=lambda answer: answer.result.capacity.rows,
    figures={
        "memory": lambda answer: plan_figures.capacity_figure(answer.result.capacity, hbm_bytes=answer.result.hbm_bytes)
    },
    entry=Entry(
        group="Understand",
        place=1,
        line="What fits: weights, KV cache, context length, concurrency.",
        usual=("context", "concurrency", "chips", "precision", "layout", "set"),
        request={"model": "llama-3.1-70b", "on": "dgx-h100", "context": "32k"},
        sweep_s=0.05,
        sweep_results="rows.0.",
        examples="""
    rackline fit llama-3.1-70b --on dgx-h100 --context 32k
    rackline fit deepseek-v3 --on dgx-h200 \\
      --context 32k --concurrency 64 --precision fp8
""",
    ),
)
def fit(question: FitQuestion, watch: Watch) -> Fitting:
    """What fits: weights per chip, room for KV, largest context and concurrency, layout by layout.

    Example:
        >>> import rackline as rl
        >>> rl.fit("llama-3.1-70b", on="dgx-h100", context="32k").result.capacity.fitting[0].layout.chips_per_replica
        8
    """
    system = resolve(question, watch)
    media, cluster = media_of(question, watch), system.cluster
    model = with_adapter(with_media(system.model, media), question, watch)
    system = replace(system, model=model)

    context_len = question.context + media_tokens(media)
    check_context(model, context_len, watch)
    with watch.moving("looking at layouts"):
        found = serving.capacity(
            model,
            cluster,
            system.precision,
            context_len=context_len,
            concurrency=question.concurrency,
            server=system.server(),
            layouts=parallel.matching_layouts(question.layout, model, cluster.num_chips),
        )
    need = None
    if not found.fitting:
        request = workload.Workload(input_len=max(context_len - 2, 1), output_len=2)
        need = fits.nearest_cluster(system, request)
    return Fitting(capacity=found, num_chips=cluster.num_chips, hbm_bytes=cluster.chip.hbm_bytes, need=need)

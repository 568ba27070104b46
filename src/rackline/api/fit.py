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
    from rackline.report import figure, memory_report, plan_figures, simulate_report, wording
    from rackline.search import fits, misfit, serving_changes
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
        memory: of the fullest chip, of the layout with the most room for what was asked; None without a layout.
        misfit: why nothing fits and what would; None where something does.
    """

    json_keys: ClassVar = ("*capacity", "reason", "need", "memory", "misfit")

    capacity: serving.Capacity
    num_chips: int
    hbm_bytes: float
    need: fits.ClusterNeed | None
    memory: misfit.ChipMemory | None = None
    misfit: misfit.Misfit | None = None

    @property
    def reason(self) -> str:
        """Why nothing fits; empty where something does."""
        return "" if self.capacity.fitting else simulate_report.nearest_reason(self.capacity)


def _text(answer: Answer[FitQuestion, Fitting], width: int) -> Iterable[Any]:
    found = answer.result
    yield simulate_report.capacity_report(
        found.capacity, num_chips=found.num_chips, memory=found.memory, misfit=found.misfit
    )


def _figure(answer: Answer[FitQuestion, Fitting]) -> figure.Figure:
    found = answer.result
    if found.misfit is None:
        return plan_figures.capacity_figure(found.capacity, hbm_bytes=found.hbm_bytes)
    title = f"{found.capacity.model} on {found.capacity.cluster}: memory of the fullest chip"
    return memory_report.memory_figure(found.misfit.memory, title, found.misfit)


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
    figures={"memory": _figure},
    entry=Entry(
        group="Understand",
        place=1,
        line="What fits: weights, KV cache, context length, concurrency.",
        usual=("context", "concurrency", "chips", "precision", "layout", "set"),
        request={"model": "llama-3.1-70b", "on": "dgx-h100", "context": "32k"},
        sweep_s=0.05,
        sweep_results="rows.0.",
        view={
            "id": "fit",
            "place": 6.4,
            "title": "Fit",
            "question": "Does it fit, and how many requests at once?",
            "claims": ["C101", "C102"],
            "figures": ["memory"],
            "fields": {"model": "llama-3.1-70b", "on": "dgx-h100", "context": "32k"},
            "presets": [
                {"name": "Llama 70B on one H100 box"},
                {
                    "name": "DeepSeek-V3 on one H200 box",
                    "fields": {"model": "deepseek-v3", "on": "dgx-h200", "context": "32k"},
                },
                {
                    "name": "What does not fit, and what would",
                    "fields": {"model": "deepseek-v3", "on": "dgx-h100", "context": "32k"},
                },
            ],
        },
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
    layouts = parallel.matching_layouts(question.layout, model, cluster.num_chips)
    with watch.moving("looking at layouts"):
        found = serving.capacity(
            model,
            cluster,
            system.precision,
            context_len=context_len,
            concurrency=question.concurrency,
            server=system.server(),
            layouts=layouts,
        )
    asked = serving_changes.Asked(
        system=replace(system, precisions=(system.precision,)),
        context_len=context_len,
        requests=question.concurrency,
        layouts=layouts,
    )
    need = changes = None
    if not found.fitting:
        request = workload.Workload(input_len=max(context_len - 2, 1), output_len=2)
        need = fits.nearest_cluster(system, request)
        with watch.moving("nothing fits: trying changes"):
            beside = float(media_tokens(media))
            changes = serving_changes.ServingChanges(asked=asked, context=("--context", beside)).misfit()
    held = serving_changes.Held.of(asked)
    return Fitting(
        capacity=found,
        num_chips=cluster.num_chips,
        hbm_bytes=cluster.chip.hbm_bytes,
        need=need,
        memory=None if held is None else held.memory(),
        misfit=changes,
    )

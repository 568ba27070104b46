"""`fit` and `explain`: what a cluster holds of a model, and one pass row by row."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from rackline.api.answer import Answer, SideFile, Watch, asks
from rackline.api.groups import (
    CALIBRATION,
    CHIPS,
    ENGINE,
    FREE_LAYOUT,
    MEMORY_FRACTION,
    POWER_CAP,
    ROUTING,
    SAMPLING,
    Sampling,
)
from rackline.api.model_options import AdapterQuestion, media_of, media_tokens, with_adapter, with_media
from rackline.api.question import (
    CalibrationLike,
    MaybeLayout,
    MaybeNumber,
    MaybeWhole,
    Number,
    Option,
    Text,
    Whole,
    option,
    question,
    shared,
    tokens,
    whole,
)
from rackline.api.resolve import check_context, resolve
from rackline.api.verbs import Entry
from rackline.errors import require
from rackline.files import write_text
from rackline.late import late
from rackline.plain import plain
from rackline.units import format_seconds, several

with late:
    from rackline import arch, parallel, passes, serving, system as systems
    from rackline.bands import bands, spread
    from rackline.display import figure, wording
    from rackline.report import explain_figures, explain_report, exports, memory_report, plan_figures, simulate_report
    from rackline.search import changes as search_changes, misfit
    from rackline.serving import workload


_TRANSFERS = "where requests wait for adapters: `plan`, `simulate`, `price`"


@question
class FitQuestion(AdapterQuestion):
    """What fits on a cluster: weights per chip, room for KV, largest context and concurrency, layout by layout?"""

    context: Number = tokens("context length of each request, such as 32k", default="8k")
    concurrency: MaybeWhole = whole("concurrent requests that must fit on the cluster", default=None)
    chips: MaybeWhole = shared(CHIPS, default=None)
    layout: MaybeLayout = shared(FREE_LAYOUT, default=None)
    engine: Text = shared(ENGINE, default="auto")
    calibration: CalibrationLike = shared(CALIBRATION, default="auto")
    memory_fraction: MaybeNumber = shared(MEMORY_FRACTION, default=None)

    def check_options(self) -> None:
        """Refuse the transfer of adapters, which changes nothing that fits.

        Raises:
            InputError: such an option.
        """
        self.refuse("adapter_link", allowed=_TRANSFERS)
        super().check_options()


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
    need: misfit.ClusterNeed | None
    memory: misfit.ChipMemory | None = None
    misfit: misfit.Misfit | None = None

    @property
    def reason(self) -> str:
        """Why nothing fits; empty where something does."""
        return "" if self.capacity.fitting else simulate_report.nearest_reason(self.capacity)


def _figure(answer: Answer[FitQuestion, Fitting]) -> figure.Figure:
    found = answer.result
    if found.misfit is None:
        return plan_figures.capacity_figure(found.capacity, hbm_bytes=found.hbm_bytes)
    title = f"{found.capacity.model} on {found.capacity.cluster}: memory of the fullest chip"
    return memory_report.memory_figure(found.misfit.memory, title, found.misfit)


def _fit_summary(answer: Answer[FitQuestion, Fitting]) -> str:
    found = answer.result.capacity
    if not found.fitting:
        return f"{found.model} does not fit on {found.cluster}: {answer.result.reason}"
    best = found.fitting[0]
    return (
        f"{best.total_concurrency:,} requests of {wording.short_count(found.context_len)} tokens at once, "
        f"{found.model} on {several(answer.result.num_chips, 'chip')} of {found.cluster} with {best.layout.label()}"
    )


@asks(
    FitQuestion,
    text=lambda answer, width: [
        simulate_report.capacity_report(
            answer.result.capacity,
            num_chips=answer.result.num_chips,
            memory=answer.result.memory,
            misfit=answer.result.misfit,
        )
    ],
    summary=_fit_summary,
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
    asked = search_changes.Asked(
        system=replace(system, precisions=(system.precision,)),
        context_len=context_len,
        requests=question.concurrency,
        layouts=layouts,
    )
    need = changes = None
    if not found.fitting:
        request = workload.Workload(input_len=max(context_len - 2, 1), output_len=2)
        need = misfit.nearest_cluster(system, request)
        with watch.moving("nothing fits: trying changes"):
            beside = float(media_tokens(media))
            changes = search_changes.ServingChanges(asked=asked, context=("--context", beside)).misfit()
    held = search_changes.Held.of(asked)
    return Fitting(
        capacity=found,
        num_chips=cluster.num_chips,
        hbm_bytes=cluster.chip.hbm_bytes,
        need=need,
        memory=None if held is None else held.memory(),
        misfit=changes,
    )


POLICIES: tuple[passes.StepPolicy, ...] = ("blackboard", "serial", "overlap")


@question
class ExplainQuestion(AdapterQuestion):
    """What does one pass take, row by row: formula, coefficients, numbers put in, seconds, share, what binds?"""

    batch: Whole = whole("batch size: decoding sequences per replica; 0 for a prefill-only pass", minimum=0)
    context: Number = tokens("context length: tokens each sequence has in the KV cache, such as 8k")
    layout: MaybeLayout = option(
        "text",
        "parallel layout such as tp=8,ep=8; unset degrees are 1 (moe_tp follows); by default the smallest that fits",
        default=None,
    )
    prefill: MaybeNumber = tokens("prefill tokens per rank in the same pass, all of one prompt", default=None)
    engine: Text = shared(ENGINE, default="auto")
    calibration: CalibrationLike = shared(CALIBRATION, default="auto")
    policy: passes.StepPolicy | None = option(
        "text",
        "how the times of the rows add up to that of the pass: blackboard, serial or overlap; that of the calibration "
        "by default",
        default=None,
        choices=POLICIES,
    )
    routing: str | None = shared(ROUTING, default=None)
    sampling: Sampling = shared(SAMPLING, default="greedy")
    memory_fraction: MaybeNumber = shared(MEMORY_FRACTION, default=None)
    power_cap: MaybeNumber = shared(POWER_CAP, default=None)

    def check_options(self) -> None:
        """Refuse a pass of no tokens, and the transfer of adapters, for which a pass does not wait.

        Raises:
            InputError: such options.
        """
        require(
            self.batch or self.prefill,
            what="batch",
            given=0,
            allowed="at least 1, or 0 together with `prefill`",
            nearest="1",
        )
        self.refuse("adapter_link", allowed=_TRANSFERS)
        super().check_options()


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A pass row by row, with what measured passes of its kind deviate by.

    Args:
        explanation: of the pass.
        interval: that held 90 % of measured passes; None where none were measured.
        joules: the interval of a decode step's energy per token; None where none was measured.
        likely: computed and likely time of the step in a server; None of prompts, and where no server was measured.
        server: memory that the stack reserves beside weights and cache.
    """

    json_keys: ClassVar = (
        "*explanation",
        "interval=interval.ends",
        "joules_interval=joules.ends",
        "likely=likely.plain",
    )

    explanation: explain_report.Explanation
    interval: bands.Interval | None
    joules: bands.Interval | None
    likely: spread.Likely | None
    server: parallel.ServerMemory


def _explain_text(answer: Answer[ExplainQuestion, Explained], width: int) -> Iterable[Any]:
    one = answer.result.interval
    band, of = (None, "") if one is None else ((one.low, one.high), f"{one.group}, {one.num_cases} cases")
    yield explain_report.explain_report(
        answer.result.explanation, band=band, band_of=of, likely=answer.result.likely, width=width
    )
    if answer.result.joules is not None:
        yield wording.Prose(bands.joules_line([answer.result.joules]), style="dim")


def _explain_summary(answer: Answer[ExplainQuestion, Explained]) -> str:
    found = answer.result.explanation
    deployment = found.deployment
    return (
        f"{format_seconds(found.time.seconds)} a pass, {found.time.binds} binds; batch {found.batch_size}, "
        f"{deployment.model.name} on {deployment.cluster.name} with {deployment.layout.label()}"
    )


def _write_trace(answer: Answer[ExplainQuestion, Explained], path: Path, _: str) -> None:
    found = answer.result.explanation
    title = f"{found.deployment.calibration.label} calibration, {found.time.policy}"
    write_text(path, json.dumps(exports.chrome_trace({title: found.time, "blackboard": found.ideal})), what="trace")


@asks(
    ExplainQuestion,
    text=_explain_text,
    summary=_explain_summary,
    rows=lambda answer: plain(answer.result.explanation)["rows"],
    figures={
        "waterfall": lambda answer: explain_figures.waterfall_figure(answer.result.explanation),
        "roofline": lambda answer: explain_figures.roofline_figure(answer.result.explanation),
        "memory": lambda answer: explain_figures.memory_figure(answer.result.explanation),
        "batch": lambda answer: explain_figures.curves_figure(answer.result.explanation, answer.result.server),
    },
    files={
        "trace": SideFile(
            option=Option(kind="text", help="write a Chrome trace to FILE.json, for Perfetto or chrome://tracing"),
            write=_write_trace,
        )
    },
    origins=lambda answer: explain_figures.row_origins(answer.result.explanation),
    entry=Entry(
        group="Understand",
        place=0,
        line="One pass row by row: formula, numbers, time, bottleneck.",
        usual=("layout", "prefill", "precision", "calibration", "set"),
        request={"model": "llama-3.1-70b", "on": "dgx-h100", "batch": 64, "context": "8k", "layout": "tp=8"},
        sweep_s=0.05,
        view={
            "id": "explain",
            "place": 4.5,
            "title": "Explain",
            "question": "Where does each millisecond come from?",
            "claims": ["C02", "C03", "C04"],
            "figures": ["waterfall"],
            "fields": {
                "model": "llama-3.1-70b",
                "on": "dgx-h100",
                "batch": "64",
                "context": "8k",
                "layout": "tp=8",
            },
            "presets": [
                {"name": "A decode step of Llama 70B"},
                {
                    "name": "A decode step of DeepSeek-V3",
                    "fields": {
                        "model": "deepseek-v3",
                        "on": "gb200-nvl72",
                        "batch": "512",
                        "context": "4k",
                        "layout": "attention_dp=8,ep=8",
                    },
                },
                {
                    "name": "A prompt of 4k tokens",
                    "fields": {
                        "model": "qwen3-32b",
                        "on": "dgx-h100",
                        "batch": "0",
                        "context": "1",
                        "prefill": "4k",
                        "layout": "tp=8",
                    },
                },
            ],
        },
        examples="""
    rackline explain llama-3.1-70b --on dgx-h100 --batch 64 --context 8k
    rackline explain deepseek-v3 --on gb200-nvl72 \\
      --batch 512 --context 4k --layout attention_dp=8,ep=8
    rackline explain qwen3-32b --on dgx-h100 \\
      --batch 0 --context 1 --prefill 4k --trace pass.json
""",
    ),
)
def explain(question: ExplainQuestion, watch: Watch) -> Explained:
    """One pass row by row: formula, coefficients, numbers put in, seconds, share, what binds.

    Beside each row stands the same row on the blackboard: ideal roofline, no overhead, perfect overlap.

    Example:
        >>> import rackline as rl
        >>> found = rl.explain("llama-3.1-70b", on="dgx-h100", batch=64, context="8k", layout="tp=8")
        >>> found.result.explanation.time.binds
        'hbm'
    """
    sequences = question.batch
    context_len, new_tokens = question.context, question.prefill or 0.0
    system, media = resolve(question, watch), media_of(question, watch)
    context_len += media_tokens(media)
    new_tokens += media_tokens(media) if new_tokens else 0
    model = with_adapter(with_media(system.model, media, new_tokens or None), question, watch)
    system = replace(system, model=model)
    check_context(model, max(context_len, new_tokens), watch)

    asked = _Pass(sequences=sequences, context_len=context_len, new_tokens=new_tokens)
    server = system.server(max(float(system.stack.scheduler.max_batched_tokens), new_tokens))
    if question.layout is not None:
        layout, how = parallel.parse_layout(question.layout, model), "given"
    else:
        with watch.moving("searching for the smallest layout that fits"):
            layout, how = asked.smallest(system, server)
    batch = asked.batch(layout)
    if isinstance(model, arch.Model) and model.adapter is not None:
        used = model.adapter.used_by(float(batch.decode_sequences) + float(batch.prefill_sequences))
        system = replace(system, model=replace(model, adapter=used))
    explanation = explain_report.Explanation.of(
        system,
        layout,
        batch,
        batch_size=sequences,
        memory=system.deployment(layout).memory(
            sequences=float(sequences),
            context_len=max(context_len, new_tokens),
            server=server,
        ),
        layout_choice=how,
        policy=question.policy,
    )
    return Explained(
        explanation=explanation,
        interval=_interval(explanation, asked),
        joules=None if asked.new_tokens else _joules(explanation),
        likely=None if asked.new_tokens else _likely(explanation),
        server=server,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """What one pass is asked of, before its layout is known."""

    sequences: int
    context_len: float
    new_tokens: float

    def batch(self, layout: parallel.Layout) -> passes.Batch:
        """What the busiest rank works on in one pass of one micro-batch."""
        ranks = layout.attention_dp * layout.pp
        return passes.Batch(
            decode_sequences=float(math.ceil(self.sequences / ranks)),
            context_len=self.context_len,
            prefill_sequences=1.0 if self.new_tokens else 0.0,
            chunk_tokens=self.new_tokens,
            group_tokens=self.sequences / layout.pp + self.new_tokens * layout.attention_dp,
        )

    def smallest(self, system: systems.System, server: parallel.ServerMemory) -> tuple[parallel.Layout, str]:
        """The layout of the fewest chips that holds the batch, the fastest of those; how it was chosen."""
        context_len = max(self.context_len, self.new_tokens)
        on = (system.model, system.cluster, system.precision)
        found = serving.capacity(*on, context_len=context_len, server=server, longest=False).rows
        holding = [one.layout for one in found if one.max_concurrency >= max(self.sequences, 1)]
        if not holding:
            roomiest = max(found, key=lambda one: (one.max_concurrency, one.kv_room_bytes))
            return roomiest.layout, "none holds the batch; this one holds the most"
        chips = min(layout.chips_per_replica for layout in holding)
        equal = [layout for layout in holding if layout.chips_per_replica == chips]

        def seconds(layout: parallel.Layout) -> float:
            return float(system.deployment(layout).table().seconds(self.batch(layout)))

        fastest = min(equal, key=seconds)
        which = f", the fastest of {len(equal)} such" if len(equal) > 1 else ""
        return fastest, f"the fewest chips that hold the batch{which}"


def _interval(found: explain_report.Explanation, asked: _Pass) -> bands.Interval | None:
    """The interval that held 90 % of measured passes of this kind; None for ideal ones."""
    deployment = found.deployment
    if deployment.calibration.name == "unit" or found.time.policy == "blackboard":
        return None
    metric = "decode_pass_s" if not asked.new_tokens else "prefill_pass_s" if not asked.sequences else "tpot_s"
    known = bands.of_deployment(deployment, {metric: found.time.seconds})
    return known[0] if known else None


def _likely(explanation: explain_report.Explanation) -> spread.Likely | None:
    """Return the likely time of a decode step in a server; None for ideal passes."""
    deployment = explanation.deployment
    if explanation.time.policy == "blackboard":
        return None
    times = spread.likely_times({"tpot_s": explanation.server_s}, deployment, deployment.layout.kind)
    return times[0] if times else None


def _joules(found: explain_report.Explanation) -> bands.Interval | None:
    """The interval that held 90 % of the measured energies of an output token; None for ideal passes."""
    power, joules = found.deployment.cluster.chip.power, found.joules_per_token
    if joules is None or power is None or power.other_generation or found.time.policy == "blackboard":
        return None
    return bands.joules_of(found.deployment, joules)

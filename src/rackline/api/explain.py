"""`explain`: one pass row by row."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from rackline.api.answer import Answer, SideFile, Watch, asks
from rackline.api.groups import CALIBRATION, MEMORY_FRACTION, POWER_CAP, ROUTING, SAMPLING, Sampling
from rackline.api.model_options import AdapterQuestion, media_of, media_tokens, with_adapter, with_media
from rackline.api.question import (
    CalibrationLike,
    MaybeLayout,
    MaybeNumber,
    Number,
    Option,
    Whole,
    option,
    question,
    shared,
    tokens,
    whole,
)
from rackline.api.resolve import check_context, resolve
from rackline.api.verbs import Entry
from rackline.errors import InputError
from rackline.files import write_text
from rackline.late import late
from rackline.plain import plain
from rackline.units import format_seconds

with late:
    from rackline import arch, parallel, passes, system as systems
    from rackline.bands import bands
    from rackline.report import explain_figures, explain_report, exports, wording


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
    calibration: CalibrationLike = shared(CALIBRATION, default="auto")
    policy: passes.StepPolicy | None = option(
        "text",
        "how the times of rows combine: blackboard, serial or overlap; the calibration's own by default",
        default=None,
        choices=POLICIES,
    )
    routing: str | None = shared(ROUTING, default=None)
    stack: str | None = option(
        "text",
        "serving stack whose host and kernels run the pass, such as vllm or vllm=0.11.1; that of the calibration "
        "by default",
        default=None,
    )
    sampling: Sampling = shared(SAMPLING, default="greedy")
    memory_fraction: Number = shared(MEMORY_FRACTION, default="0.9")
    power_cap: MaybeNumber = shared(POWER_CAP, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A pass row by row, with what measured passes of its kind deviate by.

    Args:
        explanation: of the pass.
        interval: that held 90 % of measured passes; None where none were measured.
        joules: the interval of a decode step's energy per token; None where none was measured.
        server: memory that the stack reserves beside weights and cache.
    """

    json_keys: ClassVar = ("*explanation", "interval=interval.ends", "joules_interval=joules.ends")

    explanation: explain_report.Explanation
    interval: bands.Interval | None
    joules: bands.Interval | None
    server: parallel.ServerMemory


def _text(answer: Answer[ExplainQuestion, Explained], width: int) -> Iterable[Any]:
    one = answer.result.interval
    band, of = (None, "") if one is None else ((one.low, one.high), f"{one.group}, {one.num_cases} cases")
    yield explain_report.explain_report(answer.result.explanation, band=band, band_of=of, width=width)
    if answer.result.joules is not None:
        yield wording.Prose(bands.joules_line([answer.result.joules]), style="dim")


def _summary(answer: Answer[ExplainQuestion, Explained]) -> str:
    found = answer.result.explanation
    deployment = found.deployment
    return (
        f"{format_seconds(found.time.seconds)} a pass, {found.time.binds} binds; batch {found.batch_size}, "
        f"{deployment.model.name} on {deployment.cluster.name} with {deployment.layout.label()}"
    )


def _write_trace(answer: Answer[ExplainQuestion, Explained], path: Path) -> None:
    found = answer.result.explanation
    title = f"{found.deployment.calibration.label} calibration, {found.time.policy}"
    write_text(path, json.dumps(exports.chrome_trace({title: found.time, "blackboard": found.ideal})), what="trace")


_TRACE = SideFile(
    option=Option(kind="text", help="write a Chrome trace to FILE.json, for Perfetto or chrome://tracing"),
    write=_write_trace,
)


@asks(
    ExplainQuestion,
    text=_text,
    summary=_summary,
    rows=lambda answer: plain(answer.result.explanation)["rows"],
    figures={
        "waterfall": lambda answer: explain_figures.waterfall_figure(answer.result.explanation),
        "roofline": lambda answer: explain_figures.roofline_figure(answer.result.explanation),
        "memory": lambda answer: explain_figures.memory_figure(answer.result.explanation),
        "batch": lambda answer: explain_figures.curves_figure(answer.result.explanation, answer.result.server),
    },
    files={"trace": _TRACE},
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
    if not sequences and not new_tokens:
        raise InputError(what="batch", given=0, allowed="at least 1, or 0 together with `prefill`", nearest="1")
    system, media = resolve(question, watch), media_of(question, watch)
    context_len += media_tokens(media)
    new_tokens += media_tokens(media) if new_tokens else 0
    model = with_adapter(with_media(system.model, media, new_tokens or None), question, watch)
    system = replace(system, model=model)
    check_context(model, max(context_len, new_tokens), watch)

    asked = _Pass(sequences=sequences, context_len=context_len, new_tokens=new_tokens)
    server = system.server(max(float(system.stack.max_batched_tokens), new_tokens))
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
        from rackline.serving.capacity import capacity

        on = (system.model, system.cluster, system.precision)
        found = capacity(*on, context_len=context_len, server=server, longest=False).rows
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


def _joules(found: explain_report.Explanation) -> bands.Interval | None:
    """The interval that held 90 % of the measured energies of an output token; None for ideal passes."""
    power, joules = found.deployment.cluster.chip.power, found.joules_per_token
    if joules is None or power is None or power.other_generation or found.time.policy == "blackboard":
        return None
    return bands.joules_of(found.deployment, joules)

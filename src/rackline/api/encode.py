"""`encode`: images and sound of a request: patches, tokens, FLOP, memory and time to first token."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, assert_never

from rackline.api import fields as shared
from rackline.api.answer import Answer, asks
from rackline.api.model_question import ModelQuestion
from rackline.api.option import Quantity, count, layout_text, option, si, tokens, whole
from rackline.api.resolve import check_context, resolve
from rackline.api.watch import Watch
from rackline.errors import InputError

if TYPE_CHECKING:
    from rackline.api.option import CalibrationLike, ClusterLike, LayoutLike, Settings
    from rackline.arch import Tower, View
    from rackline.parallel import Deployment
    from rackline.report.encode_report import Encoded, Encoding

MOST_PIXELS = 100_000
TOWER_BYTES = 2.0  # bf16: quantised checkpoints keep their towers


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeQuestion(ModelQuestion):
    """What do the images and sound of a request cost until its first token?"""

    ask: ClassVar[str] = "encode"

    model: str = field(
        kw_only=False,
        metadata=option(
            "text", "config.json, its folder, or a Hugging Face id, of a model with a tower", positional=True
        ),
    )
    on: ClusterLike = field(metadata=shared.ON)
    size: str = field(default="1024x1024", metadata=option("text", "of each image in pixels, WIDTHxHEIGHT"))
    images: Quantity = field(default="1", metadata=whole("images of a request", minimum=0, maximum=10_000))
    audio: Quantity | None = field(
        default=None, metadata=option("seconds", "length of a sound clip, such as 30s", unit="s", maximum=86400.0)
    )
    prompt: Quantity = field(default="100", metadata=tokens("text tokens of the prompt beside them"))
    precision: str = field(default="native", metadata=shared.PRECISION)
    layout: LayoutLike | None = field(default=None, metadata=shared.FREE_LAYOUT)
    calibration: CalibrationLike = field(default="auto", metadata=shared.CALIBRATION)
    memory_fraction: Quantity = field(default="0.9", metadata=shared.MEMORY_FRACTION)
    set: Settings | None = field(default=None, metadata=shared.SET)


def _text(answer: Answer[EncodeQuestion, Encoding], width: int) -> Iterable[Any]:
    from rackline.report.encode_report import encode_report

    yield encode_report(answer.result)


def _summary(answer: Answer[EncodeQuestion, Encoding]) -> str:
    from rackline.units import format_seconds

    found = answer.result
    return f"{found.prompt_tokens:,} prompt tokens, first token after {format_seconds(found.ttft_s)}, {found.model}"


def _rows(answer: Answer[EncodeQuestion, Encoding]) -> Iterable[Any]:
    return answer.result.towers


@asks(EncodeQuestion, text=_text, summary=_summary, rows=_rows)
def encode(question: EncodeQuestion, watch: Watch) -> Encoding:
    """Images and sound of one request: size, patches, tokens, FLOP, memory and time to first token.

    The encoder is a pass of its own before the prefill, with the kernels of the same calibration; stem and projector
    take time as their FLOP do. Nothing waits: the request is alone.

    Example:
        >>> import json
        >>> import rackline as rl
        >>> from pathlib import Path
        >>> text = {"model_type": "qwen3_vl_text", "hidden_size": 2048, "intermediate_size": 6144, "vocab_size": 151936,
        ...         "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
        >>> vision = {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16, "patch_size": 16,
        ...           "spatial_merge_size": 2, "out_hidden_size": 2048, "num_position_embeddings": 2304}
        >>> config = {"model_type": "qwen3_vl", "text_config": text, "vision_config": vision, "dtype": "bfloat16"}
        >>> _ = Path("config.json").write_text(json.dumps(config))
        >>> rl.encode("config.json", on="dgx-h100", size="1024x1024").result.prompt_tokens
        1126
        >>> Path("config.json").unlink()
    """
    from rackline.arch import find_towers
    from rackline.report.encode_report import Encoding

    images, sound_s = count(question.images), si(question.audio)
    wide, high = _size(question.size)
    towers = find_towers(question.model, offline=question.offline)
    wanted: list[tuple[Tower, View, int]] = []
    for tower in towers:
        match tower.kind:
            case "vision":
                wanted += [(tower, tower.image(wide, high), images)] if images else []
            case "audio":
                wanted += [(tower, tower.sound(sound_s), 1)] if sound_s is not None else []
            case _:
                assert_never(tower.kind)
    if not wanted:
        kinds = " and ".join(tower.kind for tower in towers) or "no"
        allowed = f"images or `audio` for its {kinds} tower" if towers else "a model with a tower that is known"
        raise InputError(what="model", given=question.model, allowed=allowed)
    resolved = resolve(question, watch)
    model, cluster, stack = resolved.model, resolved.cluster, resolved.stack

    from rackline.parallel import parse_layout
    from rackline.passes import Batch
    from rackline.serving.capacity import capacity

    encoded = sum(view.tokens * many for _, view, many in wanted)
    prompt = round(si(question.prompt)) + encoded
    check_context(model, prompt, watch)
    given = layout_text(question.layout)
    if given is not None:
        layout = parse_layout(given, model)
    else:
        server = stack.memory(max(float(stack.max_batched_tokens), float(prompt)), si(question.memory_fraction))
        rows = capacity(model, cluster, resolved.precision, context_len=float(prompt), server=server).rows
        fitting = [row for row in rows if row.max_concurrency >= 1]
        if not fitting:
            raise InputError(
                what="on", given=cluster.name, allowed=f"a cluster that holds {model.name}; see rackline fit"
            )
        layout = min(fitting, key=lambda row: (row.layout.chips_per_replica, row.layout.pp)).layout
    deployment = resolved.deployment(layout)
    passes = tuple(_pass(tower, view, many, deployment) for tower, view, many in wanted)

    def prefill_s(new: float) -> float:
        batch = Batch(prefill_sequences=1.0, chunk_tokens=new, group_tokens=new * layout.attention_dp)
        return float(deployment.table().seconds(batch)) * deployment.stage_imbalance

    seconds = prefill_s(float(prompt))
    return Encoding(
        model=model.name,
        cluster=cluster.name,
        layout=layout.label(),
        towers=passes,
        prompt_tokens=prompt,
        prefill_s=seconds,
        ttft_s=seconds + sum(one.seconds for one in passes),
        text_ttft_s=prefill_s(si(question.prompt)),
    )


def _pass(tower: Tower, view: View, many: int, deployment: Deployment) -> Encoded:
    """The pass of a tower on the chips of the language model; on one of them where its heads cannot be spread."""
    from rackline.arch import DenseFfn
    from rackline.errors import LayoutError
    from rackline.parallel import Deployment, Layout
    from rackline.parallel import precision as find_precision
    from rackline.passes import Batch
    from rackline.report.encode_report import Encoded

    def on(tp: int) -> Deployment:
        return Deployment(
            model=tower.model,
            cluster=deployment.cluster,
            layout=Layout(tp=tp),
            precision=find_precision("bf16", tower.model, deployment.cluster.chip),
            calibration=deployment.calibration,
        )

    try:
        own = on(deployment.layout.tp)
    except LayoutError:
        own = on(1)
    sequences = many * view.sequences
    time = own.table().time(Batch(prefill_sequences=float(sequences), chunk_tokens=float(view.patches)))
    inside = tower.layer_flop(view)
    blocks = [group.ffn for group in tower.model.layer_groups if isinstance(group.ffn, DenseFfn)]
    widest = max(block.d_ff for block in blocks)
    return Encoded(
        kind=tower.kind,
        items=many,
        width=view.width,
        height=view.height,
        sequences=view.sequences,
        patches=view.patches,
        tokens_per_item=view.tokens,
        total_params=tower.model.total_params,
        weight_bytes=TOWER_BYTES * tower.model.total_params,
        activation_bytes=2.0 * sequences * view.patches * (tower.model.d_model + widest),
        flop=tower.flop(view, many),
        seconds=time.seconds * (1.0 + tower.outer_flop(view) / inside),
        binds=time.binds,
    )


def _size(text: str) -> tuple[int, int]:
    """Read WIDTHxHEIGHT.

    Raises:
        InputError: another text, or a side that no image has.
    """
    found = re.fullmatch(r"\s*(\d{1,6})\s*[x×]\s*(\d{1,6})\s*", text)
    sides = (int(found[1]), int(found[2])) if found else (0, 0)
    if not all(1 <= side <= MOST_PIXELS for side in sides) or max(sides) > 200 * min(sides):
        raise InputError(
            what="size",
            given=text,
            allowed=f"WIDTHxHEIGHT in pixels, sides of 1 to {MOST_PIXELS:,}",
            nearest="1024x1024",
        )
    return sides

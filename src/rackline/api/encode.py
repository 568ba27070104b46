"""`encode`: images and sound of a request: patches, tokens, FLOP, memory and time to first token."""

from __future__ import annotations

from dataclasses import replace

from rackline.api.answer import Answer, Watch, asks
from rackline.api.groups import CALIBRATION, FREE_LAYOUT, MEMORY_FRACTION
from rackline.api.model_options import IMAGES, MediaQuestion, media_of, with_media
from rackline.api.question import CalibrationLike, MaybeLayout, Number, Whole, option, question, shared, tokens
from rackline.api.resolve import check_context, resolve
from rackline.api.verbs import Entry
from rackline.errors import InputError
from rackline.late import late
from rackline.units import format_seconds

with late:
    from rackline import arch, parallel, passes as pass_tables, serving, system as systems
    from rackline.parallel import work
    from rackline.report import prefix_report


@question
class EncodeQuestion(MediaQuestion):
    """What do the images and sound of a request cost until its first token?"""

    model: str = option(
        "text",
        "config.json, its folder, or a Hugging Face id, of a model with an encoder for images or audio",
        kw_only=False,
    )
    images: Whole = shared(IMAGES, default="1")
    prompt: Number = tokens("text tokens of the prompt", default="100")
    layout: MaybeLayout = shared(FREE_LAYOUT, default=None)
    calibration: CalibrationLike = shared(CALIBRATION, default="auto")
    memory_fraction: Number = shared(MEMORY_FRACTION, default="0.9")


def _summary(answer: Answer[EncodeQuestion, prefix_report.Encoding]) -> str:
    found = answer.result
    return f"{found.prompt_tokens:,} prompt tokens, first token after {format_seconds(found.ttft_s)}, {found.model}"


@asks(
    EncodeQuestion,
    text=lambda answer, width: [prefix_report.encode_report(answer.result)],
    summary=_summary,
    rows=lambda answer: answer.result.towers,
    entry=Entry(
        group="Understand",
        place=3,
        line="Images and audio of a request: tokens, FLOP, first token.",
        request={
            "model": "config.json",
            "on": "dgx-h100",
            "uploads": {
                "config.json": '{"model_type": "qwen3_vl", "dtype": "bfloat16", "text_config": {"model_type": '
                '"qwen3_vl_text", "hidden_size": 2048, "intermediate_size": 6144, "vocab_size": '
                '151936, "num_hidden_layers": 28, "num_attention_heads": 16, '
                '"num_key_value_heads": 8, "head_dim": 128}, "vision_config": {"depth": 24, '
                '"hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16, "patch_size": '
                '16, "spatial_merge_size": 2, "out_hidden_size": 2048, '
                '"num_position_embeddings": 2304}}'
            },
        },
        sweep_s=0.05,
        examples="""
    rackline encode Qwen/Qwen3-VL-8B-Instruct --on dgx-h100 \\
      --image-size 1920x1080 --images 4 --prompt 200
    rackline encode path/to/config.json --on h100-96 --image-size 896x896
""",
    ),
)
def encode(question: EncodeQuestion, watch: Watch) -> prefix_report.Encoding:
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
        >>> rl.encode("config.json", on="dgx-h100", image_size="1024x1024").result.prompt_tokens
        1126
        >>> Path("config.json").unlink()
    """
    media = media_of(question, watch)
    if media is None:
        raise InputError(what="images", given=0, allowed="at least one, or `audio`", nearest="1")
    system = resolve(question, watch)
    model = with_media(system.model, media)
    cluster = system.cluster

    prompt = round(question.prompt) + media.tokens
    check_context(model, prompt, watch)
    if question.layout is not None:
        layout = parallel.parse_layout(question.layout, model)
    else:
        rows = serving.capacity(
            model,
            cluster,
            system.precision,
            context_len=float(prompt),
            server=system.server(max(float(system.stack.max_batched_tokens), float(prompt))),
        ).rows
        fitting = [row for row in rows if row.max_concurrency >= 1]
        if not fitting:
            raise InputError(
                what="on", given=cluster.name, allowed=f"a cluster that holds {model.name}; see rackline fit"
            )
        layout = min(fitting, key=lambda row: (row.layout.chips_per_replica, row.layout.pp)).layout
    deployment = system.deployment(layout)
    passes = tuple(_pass(part, system, layout) for part in media.parts)

    def prefill_s(new: float) -> float:
        batch = pass_tables.Batch(prefill_sequences=1.0, chunk_tokens=new, group_tokens=new * layout.attention_dp)
        return float(deployment.table().seconds(batch)) * deployment.stage_imbalance

    seconds = prefill_s(float(prompt))
    return prefix_report.Encoding(
        model=model.name,
        cluster=cluster.name,
        layout=layout.label(),
        towers=passes,
        prompt_tokens=prompt,
        prefill_s=seconds,
        ttft_s=seconds + sum(one.seconds for one in passes),
        text_ttft_s=prefill_s(question.prompt),
    )


def _pass(part: arch.MediaPart, system: systems.System, beside: parallel.Layout) -> prefix_report.Encoded:
    """The pass of a tower on the chips of the language model; on one of them where its heads cannot be spread."""
    inner, view = part.tower.model, part.view
    layout = work.tower_layout(inner, beside)
    tower = replace(system, model=inner)
    own = tower.deployment(
        layout if isinstance(layout, parallel.Layout) else parallel.Layout(),
        parallel.precision("bf16", inner, system.cluster.chip),
    )
    time = own.table().time(work.tower_batch(part))
    return prefix_report.Encoded(
        kind=part.tower.kind,
        items=part.items,
        width=view.width,
        height=view.height,
        sequences=view.sequences,
        patches=view.patches,
        tokens_per_item=view.tokens,
        total_params=inner.total_params,
        weight_bytes=work.TOWER_BYTES * inner.total_params,
        activation_bytes=work.tower_activation_bytes(part),
        flop=part.tower.flop(view, part.items),
        seconds=time.seconds * (1.0 + part.outer_share),
        binds=time.binds,
    )

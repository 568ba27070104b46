"""Towers for images and sound beside the language model: their rows in its passes, and what they hold in memory.

An encoder runs once for each prompt, before its tokens go through the language model. Its pass is divided by the tokens
of the prompt and added to the rows of every prompt token: since the time of a row grows with all its amounts alike, the
prompt's passes together take what the encoder takes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from rackline.arch import AnyModel, DenseFfn, MediaPart, Model, media_of
from rackline.parallel.layout import Layout, LayoutGrid, Sharding, problem
from rackline.passes import Batch, Row, features as f
from rackline.passes.features import FloatLike, as_array
from rackline.passes.row import Amounts

TOWER_BYTES = 2.0  # of a parameter, bf16: quantised checkpoints keep their towers


def tower_layout(model: Model, layout: Sharding) -> Sharding:
    """Where a tower runs: on the chips of a tensor-parallel group, or whole on each where its heads cannot be spread.

    Args:
        model: of the tower.
        layout: of the language model.
    """

    def degree(tp: int) -> int:
        return tp if problem(Layout(tp=tp), model) is None else 1

    if isinstance(layout, Layout):
        return Layout(tp=degree(layout.tp))
    known = {int(tp): degree(int(tp)) for tp in np.unique(layout.tp)}
    one = np.ones_like(layout.tp)
    tp = np.array([known[int(tp)] for tp in layout.tp], dtype=np.int64)
    return LayoutGrid(tp=tp, pp=one, ep=one, moe_tp=one, attention_dp=one)


def tower_batch(part: MediaPart) -> Batch:
    """What the encoder works on for one request."""
    return Batch(prefill_sequences=float(part.sequences), chunk_tokens=float(part.view.patches))


def tower_rows(part: MediaPart, rows: Iterable[Row], prompt_len: float) -> list[Row]:
    """Rows of an encoder's pass as rows of the prompt's tokens.

    Args:
        rows: of the pass of the layers of the tower.
        prompt_len: tokens over which it is spread [tokens].
    """
    features = tower_batch(part).features(part.tower.model.cores())
    share = (1.0 + part.outer_share) / prompt_len

    def a_token(amounts: Amounts) -> dict[str, FloatLike]:
        total: FloatLike = 0.0
        for name, value in amounts.items():
            total = total + value * features.get(name, 0.0)
        return {f.PREFILL_TOKENS: total * share} if np.any(as_array(total)) else {}

    kind = part.tower.kind
    return [
        replace(
            row,
            name=f"{kind}_{row.name}",
            group=f"{kind} tower",
            compute=a_token(row.compute),
            hbm=a_token(row.hbm),
            scale_up=a_token(row.scale_up),
            scale_out=a_token(row.scale_out),
            launches=a_token(row.launches),
            extra=a_token(row.extra),
            depth=a_token(row.depth),
            tiles=a_token(row.tiles),
            scale_up_steps=row.scale_up_steps * share,
            scale_out_steps=row.scale_out_steps * share,
            step_feature=f.PREFILL_TOKENS,
            choice=f"{kind} {row.choice}" if row.choice else "",
            formula=f"{part.sequences} × {part.view.patches} patches of a request over {prompt_len:g} tokens of its "
            f"prompt; {row.formula}",
        )
        for row in rows
        if any(a_token(row.amounts(resource)) for resource in row.resources)
    ]


def tower_bytes(of: AnyModel, layout: Sharding) -> dict[str, FloatLike]:
    """Weights of the towers on a chip, by kind [bytes]."""
    media, held = media_of(of), dict[str, FloatLike]()
    if isinstance(of, Model) and of.tower_params:  # text does not pass them, but engines load them
        held["towers"] = TOWER_BYTES * of.tower_params / as_array(layout.tp)
    for part in media.parts if media is not None else ():
        model = part.tower.model
        tp = as_array(tower_layout(model, layout).tp)
        held[f"{part.tower.kind}_tower"] = TOWER_BYTES * model.total_params / tp
    return held


def tower_activation_bytes(part: MediaPart) -> float:
    """Inputs and outputs of the widest product of the pass of one request [bytes]."""
    model = part.tower.model
    widest = max(group.ffn.d_ff for group in model.layer_groups if isinstance(group.ffn, DenseFfn))
    return TOWER_BYTES * part.sequences * part.view.patches * (model.d_model + widest)

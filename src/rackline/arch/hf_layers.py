"""Helpers for families whose layers differ: a list of layers becomes groups of equal ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from rackline.arch.hf_config import HfConfig, Table

Layer = Mapping[str, Table | None]
"""attention, ffn, moe of one layer; None or absent where the layer has none."""


def layered(
    c: HfConfig, layers: Sequence[Layer], *, tied: bool = False, d_model: int | None = None, **more: object
) -> Table:
    """Architecture table of a list of layers, first to last; equal ones are counted together.

    Args:
        c: the configuration, for width, vocabulary and tying.
        layers: one entry per layer.
        tied: default of tie_word_embeddings.
        d_model: where it is not called hidden_size.
        more: further keys of the table.
    """
    counts: dict[str, int] = {}
    tables: dict[str, Layer] = {}
    for layer in layers:
        key = json.dumps(layer, sort_keys=True)
        counts[key] = counts.get(key, 0) + 1
        tables.setdefault(key, layer)
    groups: list[Table] = []
    for number, (key, layer) in enumerate(tables.items()):
        parts = {name: table for name, table in layer.items() if table is not None}
        groups.append({"name": f"group-{number}", "count": counts[key], **parts})
    return {
        "num_layers": len(layers),
        "d_model": d_model or c.count("hidden_size"),
        "vocab_size": c.count("vocab_size"),
        "tied_embeddings": c.flag("tie_word_embeddings", default=tied),
        "layers": groups,
        **more,
    }


def layer_count(c: HfConfig, key: str = "num_hidden_layers") -> int:
    """Number of layers, bounded so that a list of layers stays small."""
    layers = c.count(key)
    if layers > MOST_LAYERS:
        raise c.fail(key, f"a whole number from 1 to {MOST_LAYERS}")
    return layers


MOST_LAYERS = 10_000
"""No model has more; beyond it a value is a typing error."""

"""Context limits of Hugging Face configurations: positions that a model was made for, and how they were stretched."""

from __future__ import annotations

from typing import cast

from rackline.arch.hf_config import HfConfig, Table

_LIMITS = ("max_position_embeddings", "max_sequence_length", "n_positions", "max_seq_len", "seq_length", "n_ctx")
_WITHIN = ("su", "longrope", "llama3", "mrope", "default", "proportional")
"""Kinds of scaling whose max_position_embeddings is the stretched limit already (vLLM, `_get_and_verify_max_len`)."""
_MOST_FACTOR = 1e4


def context_limits(c: HfConfig) -> Table:
    """max_context_len and rope_scaling of an architecture table; {} where the configuration does not say.

    The limit is max_position_embeddings, times the factor of a scaling that stretches it: YaRN's factor counts from
    original_max_position_embeddings where that is given (arXiv:2309.00071; vLLM derives max_model_len in the same way).
    """
    limit = next((value for key in _LIMITS if _whole(value := c.values.get(key))), None)
    scaling = c.values.get("rope_scaling") or c.values.get("rope_parameters")
    table = cast("Table", scaling) if isinstance(scaling, dict) else {}
    kind = table.get("rope_type", table.get("type"))
    found: Table = {}
    if isinstance(kind, str) and kind and kind != "default":
        factor, start = table.get("factor"), table.get("original_max_position_embeddings")
        usable = isinstance(factor, (int, float)) and not isinstance(factor, bool) and 1 <= factor <= _MOST_FACTOR
        if usable and kind not in _WITHIN and limit is not None:
            base = start if kind == "yarn" and _whole(start) else limit
            limit = round(cast("int", base) * cast("float", factor))
        words = [kind, *([f"factor {factor:g}"] if usable else []), *([f"over {start}"] if _whole(start) else [])]
        found["rope_scaling"] = " ".join(words)[:100]
    if limit is not None:
        found["max_context_len"] = limit
    return found


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**10

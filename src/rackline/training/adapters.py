"""Low-rank adapters in training: which products have them."""

from __future__ import annotations

from typing import Literal, assert_never, get_args

LoraTargets = Literal["all", "attention", "qkv"]
LORA_TARGETS: tuple[LoraTargets, ...] = get_args(LoraTargets)
"""Products with adapters: all of attention and dense blocks, those of attention, or those that make queries, keys and
values."""


def is_adapted(name: str, targets: LoraTargets) -> bool:
    """Whether the product of this name has an adapter.

    >>> [is_adapted(name, "qkv") for name in ("qkv", "attention_out", "ffn_up")]
    [True, False, False]
    """
    block = name.startswith(("ffn", "shared"))
    match targets:
        case "all":
            return True
        case "attention":
            return not block
        case "qkv":
            return not block and not name.endswith("out")
        case _:
            assert_never(targets)

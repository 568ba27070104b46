"""A method of context parallelism: what it exchanges around attention, how much of it can hide, and which groups it
allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rackline.arch import Core
from rackline.passes import collectives as c
from rackline.passes.features import Array, FloatLike

ContextName = Literal["ring", "all-gather", "ulysses"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextMethod:
    """How chips that share a sequence attend to all of it.

    Args:
        name: of the method.
        source: where it is published.
        collective: what is exchanged in the forward pass.
        op_class: of the kernels of that collective.
        elements: (core of attention, tp, cp) → size of its buffer for each token of a chip [elements].
        backward: exchanges of the backward pass over those of the forward pass [1].
        hides: whether it runs behind attention block by block, so that a stack's `context_exposed` applies; else all of
            it shows.
        gathers: whether keys and values of the whole sequence lie on every chip while a layer attends.
        cuts_heads: whether every chip takes whole heads, so that cp · tp must divide them.
        formula: in words.
    """

    name: ContextName
    source: str
    collective: Callable[[c.Group], c.CollectiveCost]
    op_class: str
    elements: Callable[[Core, Array, Array], FloatLike]
    backward: float
    hides: bool
    gathers: bool = False
    cuts_heads: bool = False
    formula: str


def keys_and_values(core: Core, tp: Array, cp: Array) -> FloatLike:
    """Keys and values of the whole sequence, of each token of a chip [elements]."""
    return core.kv_elements_per_token(tp) * cp

"""Context parallelism: how chips that share a sequence attend to all of it, one published method a record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rackline.arch import Core
from rackline.errors import unknown_name
from rackline.passes import collectives as c
from rackline.passes.features import Array, FloatLike, as_array

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


def heads_exchanged(core: Core, tp: Array, cp: Array) -> FloatLike:
    """Queries, outputs, keys and values of each token of a chip; keys and values of fewer heads than the group has
    chips are copied to all that need them [elements]."""
    heads = core.num_q_heads / as_array(tp)
    copies = np.maximum(as_array(cp) / np.maximum(core.num_kv_heads / as_array(tp), 1.0), 1.0)
    return core.decode_io_elements * heads + core.kv_elements_per_token(tp) * copies


RING = ContextMethod(
    name="ring",
    source="Liu et al. 2023, arXiv:2310.01889",
    collective=c.all_gather,  # the same bytes over the same links, in cp - 1 steps
    op_class="all_gather",
    elements=keys_and_values,
    backward=2.0,  # keys and values once more, and their gradients
    hides=True,
    formula="keys and values of the whole sequence",
)
"""Ring attention: keys and values go round the group block by block, behind the attention to the block that is there.

Source: Liu et al. 2023, Ring Attention with Blockwise Transformers, arXiv:2310.01889; Megatron-Core's cp_comm_type p2p.
"""

ALL_GATHER = ContextMethod(
    name="all-gather",
    source="The Llama 3 Herd of Models, arXiv:2407.21783",
    collective=c.all_gather,
    op_class="all_gather",
    elements=keys_and_values,
    backward=2.0,
    hides=False,
    gathers=True,
    formula="keys and values of the whole sequence",
)
"""All-gather of keys and values before attention, a scatter of their gradients behind it; nothing of it hides.

Source: The Llama 3 Herd of Models, arXiv:2407.21783, section 3.3.2."""

ULYSSES = ContextMethod(
    name="ulysses",
    source="Jacobs et al. 2023, arXiv:2309.14509",
    collective=c.all_to_all,
    op_class="all_to_all",
    elements=heads_exchanged,
    backward=1.0,
    hides=False,
    cuts_heads=True,
    formula="queries, keys, values and outputs",
)
"""DeepSpeed-Ulysses: all-to-alls give each chip the whole sequence of some heads, and give the outputs back.

Source: Jacobs et al. 2023, DeepSpeed Ulysses, arXiv:2309.14509, section 3: for a hidden size h and N tokens on P chips
each sends 4 N h/P elements a layer, of queries, keys, values and outputs; grouped keys and values are fewer."""

METHODS: dict[str, ContextMethod] = {one.name: one for one in (RING, ALL_GATHER, ULYSSES)}


def context_method(name: str) -> ContextMethod:
    """A method by name. Raises InputError for an unknown one."""
    if name not in METHODS:
        raise unknown_name("context_parallel", name, METHODS)
    return METHODS[name]

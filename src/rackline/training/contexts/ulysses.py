"""DeepSpeed-Ulysses: all-to-alls give each chip the whole sequence of some heads, and give the outputs back.

Source: Jacobs et al. 2023, DeepSpeed Ulysses, arXiv:2309.14509, section 3: for a hidden size h and N tokens on P chips
each sends 4 N h/P elements a layer, of queries, keys, values and outputs; grouped keys and values are fewer.
"""

from __future__ import annotations

import numpy as np

from rackline.arch import Core
from rackline.passes import collectives as c
from rackline.passes.features import Array, FloatLike, as_array
from rackline.training.contexts.method import ContextMethod


def sent(core: Core, tp: Array, cp: Array) -> FloatLike:
    """Queries, outputs, keys and values of each token of a chip; keys and values of fewer heads than the group has
    chips are copied to all that need them [elements]."""
    heads = core.num_q_heads / as_array(tp)
    copies = np.maximum(as_array(cp) / np.maximum(core.num_kv_heads / as_array(tp), 1.0), 1.0)
    return core.decode_io_elements * heads + core.kv_elements_per_token(tp) * copies


ULYSSES = ContextMethod(
    name="ulysses",
    source="Jacobs et al. 2023, arXiv:2309.14509",
    collective=c.all_to_all,
    op_class="all_to_all",
    elements=sent,
    backward=1.0,
    hides=False,
    cuts_heads=True,
    formula="queries, keys, values and outputs",
)

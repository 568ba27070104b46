"""Ring attention: keys and values go round the group block by block, behind the attention to the block that is there.

Source: Liu et al. 2023, Ring Attention with Blockwise Transformers, arXiv:2310.01889; Megatron-Core's cp_comm_type p2p.
"""

from __future__ import annotations

from rackline.passes import collectives as c
from rackline.training.contexts.method import ContextMethod, keys_and_values

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

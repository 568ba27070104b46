"""All-gather of keys and values before attention, a scatter of their gradients behind it; nothing of it hides.

Source: The Llama 3 Herd of Models, arXiv:2407.21783, section 3.3.2.
"""

from __future__ import annotations

from rackline.passes import collectives as c
from rackline.training.contexts.method import ContextMethod, keys_and_values

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

"""The space of two pools beside that of one engine: the same tables and decode steps, and the prefill pool's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rackline.hardware import Cluster
from rackline.parallel import Layout, LayoutGrid, Precision, enumerate_layouts, precision
from rackline.passes import Calibration
from rackline.passes.features import Array
from rackline.search.disaggregated import Disaggregated, search_pools
from rackline.search.evaluate import Block, Space
from rackline.search.space import Constraints
from rackline.serving.steady import Engine


def pools_beside(
    space: Space,
    options: list[Layout],
    limits: Constraints,
    blocks: Sequence[Block],
    prefill_on: Cluster | None,
    prefill_layouts: Sequence[Layout] | None,
    prefill_calibration: Calibration | None,
) -> Disaggregated:
    """The search over two pools, with the tables and decode steps of the aggregated one.

    Args:
        blocks: what the search over one engine has evaluated.
        prefill_on: cluster of the prefill pool; None for chips of the same.
        prefill_layouts: it may have; None for all.
        prefill_calibration: numbers of its chip; None for the same.
    """
    engines: dict[str, tuple[int, Precision, Engine]] = {}
    steps: dict[tuple[int, bool], Array] = {}
    for block in blocks:
        index = engines.setdefault(block.precision.label, (len(engines), block.precision, block.engine))[0]
        steps.setdefault((index, block.mode.two_batch_overlap), block.state.decode_s)
    first: Space | None = None
    first_options: list[Layout] | None = None
    if prefill_on is not None or prefill_layouts is not None or len(options) == 1:
        on = prefill_on or space.cluster
        first_options = list(prefill_layouts) if prefill_layouts else enumerate_layouts(space.model, on.num_chips)
        first = replace(
            space,
            cluster=on,
            grid=LayoutGrid.of(first_options),
            precisions=[precision(label, space.model, on.chip) for label in engines],
            calibration=prefill_calibration or space.calibration,
        )
    return search_pools(
        space,
        options,
        limits,
        engines=list(engines.values()),
        decode_steps=steps,
        prefill_space=first,
        prefill_options=first_options,
    )

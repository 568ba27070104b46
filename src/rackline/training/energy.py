"""Power of training: the kernels of a step on a chip, and what the chip draws idle."""

from __future__ import annotations

import numpy as np

from rackline.hardware import drawn_w
from rackline.passes import Calibration, PassTable
from rackline.passes.features import Array, as_array
from rackline.training.blocks import work_of
from rackline.training.step import StepTime
from rackline.training.work import MicroBatch


def training_w(batch: MicroBatch, step: StepTime, *, calibration: Calibration, global_batch_sequences: int) -> Array:
    """Mean power of a chip over a step, one value per run; not a number where nothing is known of it [W].

    Equation:
        idle + micro-batches / pp · joules of a micro-batch · (1 + recompute / (forward + input + weight)) / step

    at most its limit. Rows are those of the whole layer stack, of which a stage has 1/pp.

    Args:
        batch: model, runs, cluster and precision.
        step: of the same runs.
        calibration: of single kernels.
        global_batch_sequences: of a step [sequences].

    Assumes: recomputed kernels draw what the others draw on average; the exchange of gradients and the optimiser, a few
    percent of a step, draw idle power.
    """
    runs, cluster = batch.runs, batch.cluster
    if cluster.chip.power is None:
        return np.full(len(runs), np.nan)
    table = PassTable(
        rows=tuple(one.row for one in work_of(batch)),
        chip=cluster.chip,
        cluster=cluster,
        calibration=calibration,
        kinds=batch.model.cores(),
        num_layouts=len(runs),
    )
    features = {name: as_array(value)[:, None] for name, value in batch.features().items()}
    joules = table.joule_table().seconds(features)[:, 0]
    again = 1.0 + step.recompute / np.maximum(step.forward + step.input + step.weight, 1e-12)
    passes = runs.micro_batches(global_batch_sequences) / as_array(runs.pp)
    return drawn_w(cluster.chip, joules * again * passes, step.step)

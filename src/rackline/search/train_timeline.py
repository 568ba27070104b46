"""The pipeline of a run over time, stage by stage: unequal layers, the head on the last stage."""

from __future__ import annotations

import math

from rackline.search.train import TrainCandidate, TrainPlan
from rackline.training.runs import Runs
from rackline.training.schedules import Durations, Timeline, schedule
from rackline.training.step import hop_seconds

MOST_MICRO_BATCHES = 4
"""Micro-batches per stage that are shown; the middle of a longer step repeats itself."""


def timeline_of(plan: TrainPlan, one: TrainCandidate) -> Timeline:
    """Run the schedule of a candidate with its own times; at most four micro-batches per stage are placed."""
    layout, job = one.layout, plan.job
    runs = Runs.of([layout])
    kind = schedule("interleaved" if layout.virtual_pp > 1 else layout.schedule)
    chunks = kind.num_chunks(layout.virtual_pp)
    micro_batches = job.global_batch_sequences // (layout.dp * layout.micro_batch)
    shown = min(micro_batches, MOST_MICRO_BATCHES * layout.pp)
    if kind.name in ("interleaved", "dualpipe") and shown % layout.pp:
        shown = max(layout.pp, shown // layout.pp * layout.pp)
    parts = layout.pp * chunks // kind.copies
    layers = job.model.num_layers + job.mtp_layers
    per_part = [layers // parts + (1 if index < layers % parts else 0) for index in range(parts)]
    head_s = sum(one.step["exposed_s"].get(name, 0.0) for name in ("head", "logits")) * layout.pp
    forward, given, weight = (one.step[name] * layout.pp for name in ("forward_s", "input_s", "weight_s"))
    again = one.step["recompute_s"] * layout.pp
    batch = job.micro_batch(runs)
    links = job.cluster.without_latency() if job.calibration.is_unit else job.cluster
    hop = hop_seconds(links, runs, batch.tokens * 2.0 * job.model.d_model / layout.tp)

    def of(total: float, share_of_head: float) -> list[float]:
        each = [total * count / layers for count in per_part]
        each[-1] += head_s * share_of_head
        return each

    backward = given + again if kind.splits_backward else given + again + weight
    return kind.run(
        layout.pp,
        shown,
        Durations(
            forward=of(forward, 1 / 3),
            backward=of(backward, 1 / 3 if kind.splits_backward else 2 / 3),
            weight=of(weight, 1 / 3),
            # the share of a send that the stack does not hide behind compute, as in the time of the step
            hop_s=job.stack.pipeline_exposed * float(hop[0]) if math.isfinite(float(hop[0])) else 0.0,
        ),
        layout.virtual_pp,
    )

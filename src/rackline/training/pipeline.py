"""Cost of a pipeline schedule: bubbles by their closed forms, expert communication overlapped with compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

import numpy as np

from rackline.passes.features import Array, as_array
from rackline.training.runs import SCHEDULES, Runs
from rackline.training.work import Phase

CORNER = 6.0
"""Sharpness of max(device, host): the p-norm of the two, rounded where they are equal."""
DUALPIPE_CORES = 20.0 / 132.0
"""Share of the cores that move tokens between experts while DualPipe's pairs run: 20 of the 132 of an H800
(DeepSeek-V3, arXiv:2412.19437, sections 3.2.2 and 3.5.1)."""
EXCHANGE = ("expert_inside", "expert_outside")
ON_CORES = ("gemm", "experts", "attention", "state")
"""Kinds that slow down with fewer cores; memory-bound kernels do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """Time of a micro-batch on the mean stage after the overlap of a schedule [s].

    Args:
        mean: mean over all micro-batches of a step.
        pair: time of those whose forward pass overlaps the backward pass of another.
        shown: kind → exposed time.
    """

    mean: Array
    pair: Array
    shown: dict[str, Array]


def paired_share(pp: Array, micro_batches: Array) -> Array:
    """Share of the micro-batches that DualPipe runs in pairs, mean over the devices: (m - 5/4 p + 1/2) / m.

    On device r of its half, 2 (m/2 - p + r + 1) pairs in the fourth step and p/2 - r - 1 in the fifth.

    Args:
        pp: p, stages [count].
        micro_batches: m, of both directions [count].

    Sources: github.com/deepseek-ai/DualPipe, dualpipe/dualpipe.py.

    >>> float(paired_share(np.array(16.0), np.array(120.0))).__round__(3)
    0.838
    """
    return np.clip((micro_batches - 1.25 * pp + 0.5) / micro_batches, 0.0, 1.0)


def hide_exchange(runs: Runs, micro_batches: Array, shown: Mapping[str, Array], alone: Array) -> Hidden:
    """Overlap the expert exchange with compute if the schedule is DualPipe.

    In a pair the exchange of one direction overlaps the compute of the other: max(compute, exchange), with fewer cores
    for the compute. Micro-batches at the ends of a step run alone, with their exchange fully exposed.

    Args:
        micro_batches: of a step on each replica [count].
        shown: kind → time of one micro-batch that runs alone [s].
        alone: their sum, with what is recomputed [s].

    Sources: DeepSeek-V3 (arXiv:2412.19437), section 3.2.1 ("both all-to-all and PP communication can be fully hidden");
        its step of 19.9 s spends 13.95 s in such pairs (arXiv:2505.09343, table 4).
    """
    none = np.zeros(len(runs))
    dual = runs.schedule == SCHEDULES.index("dualpipe")
    if not np.any(dual):
        return Hidden(mean=alone, pair=alone, shown=dict(shown))
    exchange = sum((shown[kind] for kind in EXCHANGE if kind in shown), none)
    on_cores = sum((shown[kind] for kind in ON_CORES if kind in shown), none)
    slower = np.where(exchange > 0.0, DUALPIPE_CORES / (1.0 - DUALPIPE_CORES), 0.0)
    compute = alone - exchange + on_cores * slower
    pair = np.where(dual, np.maximum(compute, exchange), alone)
    share = np.where(dual, paired_share(as_array(runs.pp), micro_batches), 0.0)
    left = np.maximum(exchange - compute, 0.0) / np.where(exchange > 0.0, exchange, 1.0)
    factors: dict[str, Array] = dict.fromkeys(EXCHANGE, 1.0 - share * (1.0 - left))
    factors |= dict.fromkeys(ON_CORES, 1.0 + share * slower)
    return Hidden(
        mean=alone + share * (pair - alone),
        pair=pair,
        shown={kind: value * factors.get(kind, 1.0) for kind, value in shown.items()},
    )


def bubble_seconds(
    runs: Runs, phases: Mapping[Phase, Array], host: Array, stage: Array, hop: Array, *, pair: Array
) -> Array:
    """Bubble time of the stages in a step, by the closed form of each schedule [s].

    Each phase takes its kernels or a third of the host's launches, rounded as the stage itself, so that a chip that
    waits for its host gains nothing from shorter kernels that fill a bubble.

    Args:
        phases: forward, input and weight of one micro-batch on the mean stage [s].
        host: to launch it [s].
        stage: the whole of it [s].
        hop: activations from stage to stage [s].
        pair: the whole of it where DualPipe runs its forward pass under the backward pass of another [s].

    Sources: Narayanan et al. 2021 (arXiv:2104.04473), Qi et al. 2023 (arXiv:2401.10241), DualPipe README.
    """
    pp, v = as_array(runs.pp), as_array(runs.virtual_pp)
    w, both = (  # DualPipe runs a forward pass under a backward pass of the other direction
        (phases[name] ** CORNER + (host / 3.0) ** CORNER) ** (1.0 / CORNER) for name in ("weight", "forward")
    )
    found = np.zeros(len(runs))
    for number, name in enumerate(SCHEDULES):
        match name:
            case "1f1b" | "interleaved" | "gpipe":
                value = (pp - 1) / v * stage
            case "zb-h1":
                value = (pp - 1) * np.maximum(stage - 2.0 * w, 0.0)
            case "zb-h2":
                value = (pp - 1) * np.maximum(stage - 3.0 * w, 0.0)
            case "zb-v":  # of the block in schedules/zb_v, found by running it
                value = (pp - 1) / 2.0 * both
            case "dualpipe":
                value = np.maximum(pp / 2.0 - 1.0, 0.0) * np.maximum(pair + (stage - both) - 3.0 * w, 0.0)
            case _:
                assert_never(name)
        found = np.where(runs.schedule == number, value, found)
    return found + 2.0 * (pp - 1) * hop

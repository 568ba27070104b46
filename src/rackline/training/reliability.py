"""Failures and checkpoints of long runs: mean time between failures, checkpoint interval, goodput."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rackline.errors import InputError
from rackline.passes.features import FloatLike, as_array

CHIP_HOURS_BETWEEN_FAILURES = 50_630.0
"""16384 · 54 · 24 / 419: unexpected interruptions of 16,384 H100 in 54 days (Llama 3, arXiv:2407.21783, 3.3.4)."""
RESTART_S = 600.0
"""Detection, reload and start of a run after a failure (assumed)."""
STORAGE_BYTES_PER_S_PER_CHIP = 0.25e9
"""Bandwidth to storage: 2 GB/s for a node of eight (assumed; Llama 3's storage sustained 2 TB/s for 16,384 chips)."""
CHECKPOINT_BYTES_PER_PARAM = 14.0
"""bf16 weight, fp32 master weight and two moments."""


def seconds_between_failures(num_chips: FloatLike, chip_hours: float = CHIP_HOURS_BETWEEN_FAILURES) -> FloatLike:
    """Mean time between failures of a run that any chip failure stops: M = chip-hours / chips [s].

    >>> round(float(seconds_between_failures(16384)) / 3600, 1)
    3.1
    """
    return chip_hours * 3600.0 / as_array(num_chips)


def checkpoint_interval(write_s: FloatLike, between_failures_s: FloatLike) -> FloatLike:
    """Best time between the ends of two checkpoints, τ = √(2 δ M) - δ, and M where writing takes longer than that [s].

    Args:
        write_s: δ, time that one checkpoint interrupts work [s], any shape.
        between_failures_s: M [s], same shape.

    Returns:
        Work between checkpoints [s].

    Sources: Young 1974; Daly 2006 (first order; valid for δ well below 2 M).
    """
    write, between = as_array(write_s), as_array(between_failures_s)
    return np.where(write < 2.0 * between, np.sqrt(2.0 * write * between) - write, between)


def lost_share(interval_s: FloatLike, write_s: FloatLike, between_failures_s: FloatLike, restart_s: float) -> FloatLike:
    """Share of the time lost: writing δ/(τ + δ), and a failure's half interval and restart over M.

    Args:
        interval_s: τ, work between checkpoints [s].
        write_s: δ [s].
        between_failures_s: M [s].
        restart_s: R [s].
    """
    period = as_array(interval_s) + write_s
    writing = as_array(write_s) / period
    return np.minimum(writing + (period / 2.0 + restart_s) / between_failures_s, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """Cost of failures of a run.

    Args:
        between_failures_s: mean time between failures [s].
        checkpoint_bytes: one checkpoint [bytes].
        write_s: time that one checkpoint interrupts work [s].
        interval_s: work between checkpoints [s].
        goodput: share of the time spent on work that is not lost [1].
    """

    between_failures_s: float
    checkpoint_bytes: float
    write_s: float
    interval_s: float
    goodput: float


def reliability(
    total_params: float,
    num_chips: int,
    *,
    chip_hours: float = CHIP_HOURS_BETWEEN_FAILURES,
    storage_bytes_per_s_per_chip: float = STORAGE_BYTES_PER_S_PER_CHIP,
    restart_s: float = RESTART_S,
) -> Reliability:
    """Cost of failures of a run of this size, with the best checkpoint interval.

    Args:
        total_params: parameters of the model [count].
        chip_hours: chip-hours between failures [h].
        storage_bytes_per_s_per_chip: storage bandwidth per chip, when all chips write their share at once [bytes/s].
        restart_s: time to detect a failure and restart [s].

    Raises:
        InputError: there are no chips.
    """
    if num_chips < 1:
        raise InputError(what="number of chips", given=num_chips, allowed="at least 1", nearest="1")
    size = CHECKPOINT_BYTES_PER_PARAM * total_params
    write_s = size / (storage_bytes_per_s_per_chip * num_chips)
    between = float(seconds_between_failures(num_chips, chip_hours))
    interval = float(checkpoint_interval(write_s, between))
    lost = float(lost_share(interval, write_s, between, restart_s))
    return Reliability(
        between_failures_s=between, checkpoint_bytes=size, write_s=write_s, interval_s=interval, goodput=1.0 - lost
    )

"""Long runs: failures, checkpoints, restarts, spare hosts and slow ranks, and the goodput that they leave."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import factorial
from statistics import NormalDist
from typing import Literal

import numpy as np

from rackline.errors import require
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


REPAIR_S = 2.2 * 3600.0
"""From a host's failure until it is back: recovery measured on the A100 and H100 hosts of NCSA's Delta
(arXiv:2503.11901)."""
SPARE_CHANCE = 0.99
"""How often the spare hosts that are advised suffice (a choice)."""


def slowest_over_mean(num_ranks: FloatLike, jitter: FloatLike) -> FloatLike:
    """Step of the slowest rank over the mean: 1 + c z, z = Φ⁻¹((n - 0.375)/(n + 0.25)), where all wait for all [1].

    Args:
        num_ranks: n, ranks that wait for each other in every step [count], any shape.
        jitter: c, standard deviation of a rank's step over its mean, normal and independent [1], same shape.

    Returns:
        Mean of the largest of n [1].

    Sources: Blom 1958, Statistical estimates and transformed beta-variables: means of normal order statistics.

    >>> round(float(slowest_over_mean(1024, 0.01)), 3)
    1.032
    """
    place = (as_array(num_ranks) - 0.375) / (as_array(num_ranks) + 0.25)
    return 1.0 + as_array(jitter) * np.vectorize(NormalDist().inv_cdf, otypes=[float])(place)


STRAGGLING: tuple[tuple[float, float], ...] = ((0.575, 1.1), (0.9, 1.0 / (1.0 - 0.213)), (0.99, 1.0 / (1.0 - 0.45)))
"""(share of runs, what they take at most over the same run without slow ranks): of 3,079 pre-training runs on 128 chips
or more 42.5 % are at least 10 % slower, one in ten wastes 21.3 % of its time or more, one in a hundred 45 % (Lin et al.
2025, Understanding Stragglers in Large Model Training Using What-if Analysis, arXiv:2505.05713, section 4.1)."""
STRAGGLING_CHIPS = 128
"""Fewest chips of those runs [count]."""


@cache
def _straggling() -> tuple[float, float]:
    normal, shares, slowdowns = NormalDist(), *zip(*STRAGGLING, strict=True)
    slope, middle = np.polyfit([normal.inv_cdf(one) for one in shares], np.log(np.array(slowdowns) - 1.0), 1)
    return float(middle), float(slope)


def straggling_quantile(share: FloatLike) -> FloatLike:
    """What a share of runs takes at most over the same run without slow ranks: 1 + exp(a + b Φ⁻¹(share)) [1].

    The loss is log-normal by the three published quantiles, whose best line is a = -2.51, b = 0.98. Steps of one run
    differ less: nine of ten stay within 1.06 of its median.

    Args:
        share: of runs, above 0 and below 1 [1], any shape.

    Assumes: runs on all numbers of chips have one distribution (section 4.4 of the source finds no more with more
        chips). It holds imbalance of stages and of sequences as well, some of which a step counts already.

    >>> [round(float(straggling_quantile(share)), 2) for share in (0.5, 0.9, 0.99)]
    [1.08, 1.29, 1.8]
    """
    middle, slope = _straggling()
    return 1.0 + np.exp(middle + slope * np.vectorize(NormalDist().inv_cdf, otypes=[float])(as_array(share)))


def spares_needed(hosts_out: float, chance: float = SPARE_CHANCE) -> int:
    """Fewest spare hosts that suffice with this chance, where hosts out of service are Poisson distributed.

    Args:
        hosts_out: mean of the hosts that are out at once: failures a second times the time of a repair [count].

    Sources: M/G/∞ (Palm): hosts in repair are Poisson distributed independent of the distribution of a repair.

    >>> spares_needed(0.5), spares_needed(5.0)
    (3, 11)
    """
    spares, term = 0, np.exp(-hosts_out)
    held = term
    while held < chance:
        spares += 1
        term *= hosts_out / spares
        held += term
    return spares


def none_spare(hosts_out: float, spares: int) -> float:
    """Chance that a failing host finds all spare hosts taken: P(Poisson(hosts out) >= spares) [1]."""
    return float(1.0 - sum(np.exp(-hosts_out) * hosts_out**k / factorial(k) for k in range(spares)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """How a run is operated.

    Args:
        chip_hours: between failures that stop the run [h].
        restart_s: to detect a failure, replace the host and load the last checkpoint [s].
        checkpoint: "sync" stops work until a checkpoint is in the store; "async" only until it is in the memory of the
            hosts, and writes from there while work goes on.
        store_bytes_per_s: bandwidth of the store, all chips together; 0 for 0.25 GB/s a chip [bytes/s].
        spares: spare hosts; None for enough [count].
        repair_s: from a host's failure until it is back [s].
        jitter: standard deviation of a rank's step over its mean [1].
        slow_node: step of the slowest host over the others; all wait for it [1].
    """

    chip_hours: float = CHIP_HOURS_BETWEEN_FAILURES
    restart_s: float = RESTART_S
    checkpoint: Literal["sync", "async"] = "sync"
    store_bytes_per_s: float = 0.0
    spares: int | None = None
    repair_s: float = REPAIR_S
    jitter: float = 0.0
    slow_node: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """Cost of failures, checkpoints and slow ranks of a run.

    Args:
        between_failures_s: mean time between failures [s].
        checkpoint_bytes: one checkpoint [bytes].
        write_s: time that one checkpoint interrupts work [s].
        upload_s: until it is in the store, which a failure before loses [s].
        interval_s: work between checkpoints [s].
        wait_s: mean wait for a spare host after a failure [s].
        spares_needed: hosts that suffice in 99 of 100 failures [count].
        straggling: step of the slowest rank over the mean one, which all wait for [1].
        goodput: share of the time spent on steps that are not lost, at the pace of the mean rank [1].
    """

    between_failures_s: float
    checkpoint_bytes: float
    write_s: float
    upload_s: float
    interval_s: float
    wait_s: float
    spares_needed: int
    straggling: float
    goodput: float


def reliability(
    total_params: float,
    num_chips: int,
    *,
    operations: Operations | None = None,
    host_bytes_per_s: float = 25e9,
) -> Reliability:
    """Cost of failures of a run of this size, with the best checkpoint interval.

    Args:
        total_params: parameters of the model [count].
        operations: how it is operated.
        host_bytes_per_s: from a chip to the memory of its host [bytes/s].

    Raises:
        InputError: there are no chips.
    """
    require(num_chips >= 1, what="number of chips", given=num_chips, allowed="at least 1", nearest="1")
    how = operations or Operations()
    size = CHECKPOINT_BYTES_PER_PARAM * total_params
    upload_s = size / (how.store_bytes_per_s or STORAGE_BYTES_PER_S_PER_CHIP * num_chips)
    write_s = upload_s if how.checkpoint == "sync" else size / num_chips / host_bytes_per_s
    between = float(seconds_between_failures(num_chips, how.chip_hours))
    interval = max(float(checkpoint_interval(write_s, between)), upload_s - write_s)
    out = how.repair_s / between
    wait_s = 0.0 if how.spares is None else how.repair_s * none_spare(out, how.spares)
    # what a failure loses beyond half of an interval: the time in which the last checkpoint is not in the store yet
    lost = float(lost_share(interval, write_s, between, how.restart_s + wait_s + upload_s - write_s))
    straggling = float(slowest_over_mean(num_chips, how.jitter)) * how.slow_node
    return Reliability(
        between_failures_s=between,
        checkpoint_bytes=size,
        write_s=write_s,
        upload_s=upload_s,
        interval_s=interval,
        wait_s=wait_s,
        spares_needed=spares_needed(out),
        straggling=straggling,
        goodput=(1.0 - lost) / straggling,
    )

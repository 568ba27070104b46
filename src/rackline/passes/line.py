"""The line: the time of a row of a pass, from the times of its resources.

    seconds = overhead + max t + exposed (sum t - max t) + ramp sqrt(overhead max t)        t = amount / (eta peak)

Everything that times an operation calls this: the breakdown of a pass, training steps, exchanges between pools, fits
and scores of kernels. For speed, the line is implemented again for millions of points (`evaluate`), as a scalar
function (`compile`) and in the compiled loop of the simulator; a property test checks that they agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rackline.passes.calibration import CollectiveCalibration
from rackline.passes.features import Array, FloatLike
from rackline.passes.numbers import RowNumbers


def line_seconds(
    overhead_s: FloatLike, resource_s: Sequence[FloatLike], *, exposed: FloatLike = 0.0, ramp: FloatLike = 0.0
) -> FloatLike:
    """Time of one operation [s].

    Equation:
        overhead + max t + exposed (sum t - max t) + ramp sqrt(overhead max t)

    Args:
        overhead_s: fixed overhead, independent of the amounts [s].
        resource_s: t, time of each resource at the rate it reaches [s]; floats or arrays that broadcast.
        exposed: share of the shorter times that is not overlapped with the longest, 0 to 1.
        ramp: slow-down of messages whose latency and transfer time are similar.

    Returns:
        Seconds, in the broadcast shape.

    Assumes: none is negative.

    >>> float(line_seconds(1.0, (3.0, 2.0), exposed=0.5)), float(line_seconds(1.0, (4.0,), ramp=0.25))
    (5.0, 5.5)
    """
    longest: FloatLike = 0.0
    rest: FloatLike = 0.0
    for index, seconds in enumerate(resource_s):
        if index:  # the sum of all but the longest, without the cancellation of sum - max
            rest = rest + np.minimum(longest, seconds)
        longest = np.maximum(longest, seconds) if index else seconds
    total = overhead_s + longest + exposed * rest
    return total + ramp * np.sqrt(overhead_s * longest) if np.any(ramp) else total


def row_seconds(numbers: RowNumbers, features: Mapping[str, FloatLike]) -> FloatLike:
    """Time of a row [s].

    Args:
        numbers: the row with its numbers; coefficients are scalars or one value per layout.
        features: name → value, floats or arrays that broadcast with the coefficients; missing ones are 0.
    """
    row = numbers.row
    resource_s = [total(row.amounts(resource), features) / rate for resource, rate in numbers.rates.items()]
    overhead_s = total(numbers.overhead_s, features)
    return line_seconds(overhead_s, resource_s, exposed=numbers.exposed, ramp=numbers.ramp)


def collective_seconds(numbers: CollectiveCalibration, group_size: FloatLike, wire_s: Sequence[FloatLike]) -> FloatLike:
    """Time of one call of a collective whose bytes are known [s].

    Args:
        numbers: calibration of the collective.
        group_size: ranks [count].
        wire_s: bytes that a rank sends over the rate of its links, for each level [s].
    """
    overhead_s, eta_link, ramp = numbers.at(group_size)
    return line_seconds(overhead_s, [seconds / eta_link for seconds in wire_s], ramp=ramp)


def fastest(seconds: Iterable[FloatLike]) -> Array:
    """Time of a job with alternative kernels: that of the fastest at each point [s]."""
    found = [np.asarray(one, dtype=np.float64) for one in seconds]
    best = found[0]
    for other in found[1:]:
        best = np.minimum(best, other)
    return best


def total(amounts: Mapping[str, FloatLike], features: Mapping[str, FloatLike]) -> FloatLike:
    """Sum of coefficients times features; features that are missing are 0."""
    found: FloatLike = 0.0
    for name, value in amounts.items():
        if name in features:
            found = found + value * features[name]
    return found

"""The whole ratios nearest to a wanted one that a number of chips allows: replicas of two pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rackline.passes.features import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipLimit:
    """Chips that replicas of two pools may use: prefill_chips · n + decode_chips · m <= num_chips.

    Args:
        prefill_chips, decode_chips: of one replica, (pairs,); 0 where a pool has chips of its own [count].
        num_chips: [count].
    """

    prefill_chips: Array
    decode_chips: Array
    num_chips: float

    def take(self, index: Array) -> ChipLimit:
        """The limit of some pairs."""
        return ChipLimit(
            prefill_chips=self.prefill_chips[index], decode_chips=self.decode_chips[index], num_chips=self.num_chips
        )

    def steps(self, start: Array, step: Array) -> Array:
        """How often a step of (n, m) fits behind a start, both (2, pairs)."""
        left = self.num_chips - start[0] * self.prefill_chips - start[1] * self.decode_chips
        each = step[0] * self.prefill_chips + step[1] * self.decode_chips
        return np.where(left < 0, 0.0, np.where(each > 0, np.floor(left / np.where(each > 0, each, 1.0)), np.inf))


def nearest_ratios(wanted: Array, limits: Sequence[ChipLimit]) -> tuple[Array, Array]:
    """Replicas whose ratio m / n is nearest to the wanted one, from below and from above, within the limits.

    The walk down the Stern-Brocot tree: a fraction between two neighbours of the tree has at least the sum of their
    numerators and of their denominators, so when that sum is beyond the limits nothing lies between them. A run of
    steps to one side is taken at once, which makes it as long as a continued fraction.

    Args:
        wanted: decode replicas a prefill replica, above 0, (pairs,).
        limits: on both numbers.

    Returns:
        (n, m) of the nearest from below and from above, each (2, pairs); a 0 in it means that there is none.

    Sources: Graham, Knuth, Patashnik 1994, Concrete Mathematics, section 4.5.
    """
    shape = (2, wanted.size)
    below, above = np.zeros(shape), np.zeros(shape)
    below[0], above[1] = 1.0, 1.0  # 0 / 1 and 1 / 0
    moving = np.flatnonzero(wanted > 0)
    while moving.size:
        target, low, high = wanted[moving], below[:, moving], above[:, moving]
        here = [limit.take(moving) for limit in limits]
        gap_low, gap_high = target * low[0] - low[1], high[1] - target * high[0]
        up = np.floor(gap_low / np.maximum(gap_high, 1e-300))
        up = np.maximum(np.minimum(up, _most(here, low, high)), 0.0)
        low = low + up * high
        gap_low = target * low[0] - low[1]
        down = np.where(gap_low > 0, np.ceil(gap_high / np.where(gap_low > 0, gap_low, 1.0)) - 1.0, 0.0)
        down = np.maximum(np.minimum(down, _most(here, high, low)), 0.0)
        high = high + down * low
        below[:, moving], above[:, moving] = low, high
        moving = moving[(up > 0) | (down > 0)]
    return below, above


def _most(limits: Sequence[ChipLimit], start: Array, step: Array) -> Array:
    return np.minimum.reduce([limit.steps(start, step) for limit in limits])

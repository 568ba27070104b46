"""All points of a plan concatenated, one value per point."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rackline.passes.features import Array
from rackline.search.evaluate import Block
from rackline.search.space import Constraints


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """All blocks end to end, one value a point."""

    shape: tuple[int, int]
    tpot_s: Array
    ttft_s: Array
    cost: Array
    rate: Array
    free_bytes: Array
    utilisation: Array
    prefill_cost_share: Array
    evaluated: Array
    serves: Array
    meets: Array

    @classmethod
    def of(cls, blocks: list[Block], usd_per_chip_s: float, limits: Constraints) -> Points:
        shape = blocks[0].output_tokens_per_s_per_chip.shape

        def join(arrays: list[Array]) -> Array:
            return np.concatenate([np.broadcast_to(array, shape).ravel() for array in arrays])

        rate = join([block.output_tokens_per_s_per_chip for block in blocks])
        free = join([block.free_bytes for block in blocks])
        tpot = join([block.state.tpot_s for block in blocks])
        ttft = join([block.state.ttft_s for block in blocks])
        utilisation = join([block.state.prefill_utilisation for block in blocks])
        evaluated = np.isfinite(rate)
        serves = evaluated & (free >= 0) & (utilisation < 1.0)
        meets = np.ones_like(serves)
        if limits.tpot_s is not None:
            meets &= tpot <= limits.tpot_s
        if limits.ttft_s is not None:
            meets &= ttft <= limits.ttft_s
        return cls(
            shape=(shape[0], shape[1]),
            tpot_s=tpot,
            ttft_s=ttft,
            cost=usd_per_chip_s / rate * 1e6,
            rate=rate,
            free_bytes=np.where(evaluated, free, np.nan),
            utilisation=utilisation,
            prefill_cost_share=join([block.state.prefill_cost_share for block in blocks]),
            evaluated=evaluated,
            serves=serves,
            meets=meets,
        )

    def locate(self, index: int) -> tuple[int, int, int]:
        """(block, layout row, batch column) of a point."""
        block, rest = divmod(index, self.shape[0] * self.shape[1])
        row, column = divmod(rest, self.shape[1])
        return block, row, column

"""Hashes of the prompt blocks of many requests, packed into two arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import overload

import numpy as np

from rackline.passes.features import Array


class BlockHashes(Sequence[Sequence[int]]):
    """For each request, the hashes of its prompt's full blocks, 8 bytes per hash.

    Args:
        flat: hashes of all requests, concatenated, int64, (sum of blocks,).
        ends: end of each request's hashes in `flat`, (requests,).

    Example:
        >>> hashes = BlockHashes.of([[7, 8], [], [7]])
        >>> len(hashes), hashes[0], hashes[-1]
        (3, [7, 8], [7])
    """

    __slots__ = ("_ends", "_flat")

    def __init__(self, flat: Array, ends: Array) -> None:
        self._flat = flat
        self._ends = ends

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]]) -> BlockHashes:
        """Pack rows of hashes.

        Raises:
            TypeError: a hash is not an integer.
            OverflowError: a hash does not fit into 64 bits.
        """
        kept = list(rows)
        flat = list(chain.from_iterable(kept))
        if not all(kind is int for kind in set(map(type, flat))):
            raise TypeError("hashes that are not whole numbers")
        ends = np.cumsum(np.fromiter(map(len, kept), dtype=np.int64, count=len(kept)))
        return cls(np.array(flat, dtype=np.int64), ends)

    @classmethod
    def joined(cls, parts: Sequence[BlockHashes]) -> BlockHashes:
        """All parts, concatenated."""
        starts = np.cumsum([0, *(len(part._flat) for part in parts)])
        ends = [part._ends + start for part, start in zip(parts, starts, strict=False)]
        return cls(np.concatenate([part._flat for part in parts]), np.concatenate(ends))

    def __len__(self) -> int:
        """Number of requests."""
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> list[int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[int]]: ...
    def __getitem__(self, index: int | slice) -> list[int] | list[list[int]]:
        """Hashes of one request or of several."""
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(index)
        start = int(self._ends[place - 1]) if place else 0
        return self._flat[start : int(self._ends[place])].tolist()

    def pick(self, keep: Array) -> BlockHashes:
        """The hashes of selected requests.

        Args:
            keep: mask of the requests to keep, (requests,).
        """
        lengths = np.diff(self._ends, prepend=0)
        return BlockHashes(self._flat[np.repeat(keep, lengths)], np.cumsum(lengths[keep]))

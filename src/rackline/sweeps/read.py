"""The results of a sweep: its shards as one lazy table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rackline.errors import InputError
from rackline.sweeps.run import read_index
from rackline.sweeps.store import SHARDS, Store, store_of

if TYPE_CHECKING:
    from polars import LazyFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The shards of a sweep that are there.

    Args:
        store: where they lie.
        index: what was asked.
        names: of the shards that are there, in order.
    """

    store: Store
    index: Mapping[str, Any]
    names: tuple[str, ...]

    @classmethod
    def of(cls, address: str) -> Results:
        """The sweep in a folder, or at an address of fsspec.

        Raises:
            InputError: there is none, or it has no shard yet.
        """
        store = store_of(address)
        index = read_index(store)
        there = store.names()
        names = tuple(name for name in index["shards"] if name in there)
        if not names:
            raise InputError(what="folder", given=address, allowed="a sweep that was run; no shard is there yet")
        return cls(store=store, index=index, names=names)

    def scan(self) -> LazyFrame:
        """All rows as a lazy table of polars."""
        from polars import scan_parquet

        return scan_parquet(self.store.sources(list(self.names)))

    @property
    def is_complete(self) -> bool:
        """Whether all shards are there."""
        return len(self.names) == len(self.index["shards"])


__all__ = ["SHARDS", "Results"]

"""The catalogue for the ledger: objects by name, with values that the user may override."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from rackline.arch import AnyModel, build_model
from rackline.catalog import (
    law_record,
    model_record,
    names,
    price_sheet_record,
    settable_keys,
)
from rackline.errors import CatalogError, nearest_names
from rackline.hardware import (
    Chip,
    Cluster,
    MemoryTier,
    chip,
    chip_name_of,
    chip_record,
    cluster,
    cluster_record,
    memory_record,
    memory_tier,
)
from rackline.pricing import PriceSheet, sheet_from_record
from rackline.scaling import LossLaw, RoutedLaw, loss_law, routed_law

if TYPE_CHECKING:
    from rackline.catalog.base import SourcedRecord

T = TypeVar("T")

_RECORDS: Mapping[str, Callable[..., SourcedRecord]] = {
    "chips": chip_record,
    "clusters": cluster_record,
    "models": model_record,
    "memory": memory_record,
    "prices": price_sheet_record,
    "laws": law_record,
}


class World:
    """Catalogue objects, each read once, with a record of those that were used.

    Args:
        overrides: dotted keys and values that replace those of the catalogue, by name of the object.

    >>> World({"h100-sxm": {"hbm_bytes_per_s": 6.7e12}}).chip("h100-sxm").hbm_bytes_per_s
    6700000000000.0
    """

    def __init__(self, overrides: Mapping[str, Mapping[str, object]] | None = None) -> None:
        self._overrides = {name: dict(values) for name, values in (overrides or {}).items()}
        self._known: dict[tuple[str, str], Any] = {}
        self.asked: list[str] = []

    def _of(self, name: str) -> dict[str, object] | None:
        return self._overrides.get(name)

    def _get(self, kind: str, name: str, read: Callable[[], T]) -> T:
        if name not in self.asked:
            self.asked.append(name)
        if (kind, name) not in self._known:
            self._known[kind, name] = read()
        return cast("T", self._known[kind, name])

    def chip(self, name: str) -> Chip:
        """A chip of the catalogue."""
        return self._get("chips", name, lambda: chip(name, self._of(name)))

    def cluster(self, name: str) -> Cluster:
        """A cluster of the catalogue; overrides of its chip apply to it too."""

        def read() -> Cluster:
            of_chip = self._of(chip_name_of(cluster_record(name))) or {}
            replaced = {f"chip.{key}": value for key, value in of_chip.items()}
            return cluster(name, {**(self._of(name) or {}), **replaced} or None)

        found = self._get("clusters", name, read)
        if found.chip.name not in self.asked:
            self.asked.append(found.chip.name)
        return found

    def model(self, name: str) -> AnyModel:
        """A model of the catalogue."""
        return self._get("models", name, lambda: build_model(model_record(name, self._of(name))))

    def tier(self, name: str) -> MemoryTier:
        """A memory tier of the catalogue."""
        return self._get("memory", name, lambda: memory_tier(name, self._of(name)))

    def sheet(self, name: str) -> PriceSheet:
        """A price sheet of the catalogue."""
        return self._get("prices", name, lambda: sheet_from_record(price_sheet_record(name, self._of(name))))

    def law(self, name: str) -> LossLaw:
        """A loss law of the catalogue."""
        return self._get("laws", name, lambda: loss_law(name, self._of(name)))

    def routed(self, name: str) -> RoutedLaw:
        """A law of routed models of the catalogue."""
        return self._get("laws", name, lambda: routed_law(name, self._of(name)))


def overrides_from_texts(texts: Mapping[str, str]) -> dict[str, dict[str, object]]:
    """Parse pairs of NAME:KEY and a value, such as "gb200:hbm_bytes_per_s" and "16TB/s".

    Raises:
        CatalogError: there is no such object or key; the message names the nearest.
    """
    found: dict[str, dict[str, object]] = {}
    for text, value in texts.items():
        name, colon, key = text.partition(":")
        kinds = [kind for kind in _RECORDS if name in names(cast("Any", kind))]
        if not (colon and key) or not kinds:
            known = [known for kind in _RECORDS for known in names(cast("Any", kind))]
            near = nearest_names(name, known, 1)
            raise CatalogError(
                what="--set",
                given=f"{text}={value}",
                allowed="NAME:KEY=VALUE with a name of the catalogue, such as gb200:hbm_bytes_per_s=16TB/s",
                nearest=f"{near[0]}:{key or 'KEY'}={value}" if near else None,
            )
        keys = [key for kind in kinds for key in settable_keys(_RECORDS[kind](name))]
        if key not in keys:
            near = nearest_names(key, keys, 1)
            raise CatalogError(
                what="--set",
                given=f"{text}={value}",
                allowed=f"a key of {name}",
                nearest=f"{name}:{near[0]}={value}" if near else None,
            )
        found.setdefault(name, {})[key] = value
    return found

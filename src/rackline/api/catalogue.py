"""What the questions about the catalogue share: settings of one record, and its plain form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rackline.api.option import Option, option
from rackline.api.resolve import Owner, assignments, share_out
from rackline.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rackline.catalog.base import SourcedRecord


NAME = Option(kind="text", help="catalogue name or TOML file; without it, all are listed")


def set_option(example: str) -> Any:
    """Settings of one object."""
    return option("settings", f"KEY=VALUE replaces a number, such as {example}; may be repeated", default=None)


def overrides_of(record: SourcedRecord, kind: str, settings: Sequence[str]) -> dict[str, object]:
    """Settings as overrides of a record.

    Raises:
        CatalogError: a key that it does not have.
    """
    from rackline.catalog import settable_keys

    return share_out(assignments(settings), [Owner(name=kind, keys=tuple(settable_keys(record)))])[0]


def refuse_settings(settings: Sequence[str]) -> None:
    """Settings belong to one object.

    Raises:
        InputError: there are some.
    """
    given = assignments(settings)
    if given:
        key, value = next(iter(given.items()))
        raise InputError(what="set", given=f"{key}={value}", allowed="only together with the name of one object")

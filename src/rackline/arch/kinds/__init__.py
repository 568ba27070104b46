"""Attention kinds, one file each; a new file with a class that names its `catalog_kind` is registered automatically."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import cast

from rackline.arch.attention import Attention
from rackline.errors import CatalogError, nearest_name

_TYPES: Mapping[str, tuple[type, ...]] = {"int": (int,), "int | None": (int,), "float": (int, float), "bool": (bool,)}


@functools.cache
def _classes() -> Mapping[str, type]:
    found: dict[str, type] = {}
    for module in pkgutil.iter_modules(__path__):
        for value in vars(importlib.import_module(f"{__name__}.{module.name}")).values():
            name = getattr(value, "catalog_kind", None)
            if isinstance(value, type) and isinstance(name, str) and value.__module__.endswith(module.name):
                found[name] = value
    return found


def attention_kind_names() -> tuple[str, ...]:
    """Names under which a catalogue file may call for an attention kind, sorted.

    >>> "mla_sparse" in attention_kind_names()
    True
    """
    return tuple(sorted(_classes()))


def attention_from_parameters(kind: str, parameters: Mapping[str, object], *, where: str) -> Attention:
    """Build an attention kind from its name and the parameters of a catalogue table.

    Args:
        kind: one of `attention_kind_names`.
        parameters: name → number, flag or text.
        where: file or model, for messages.

    Raises:
        CatalogError: the kind or a parameter is unknown, missing or of the wrong type, or they contradict each other.
    """
    found = _classes().get(kind)
    if found is None:
        allowed = "one of " + ", ".join(attention_kind_names())
        raise CatalogError(
            what="kind", given=kind, allowed=allowed, where=where, nearest=nearest_name(kind, attention_kind_names())
        )
    known = {each.name: each for each in fields(found) if each.init}
    zero = cast("frozenset[str]", getattr(found, "may_be_zero", frozenset[str]()))
    for name, value in parameters.items():
        if name not in known:
            allowed = "a parameter of " + kind
            raise CatalogError(
                what=name, given=value, allowed=allowed, where=where, nearest=nearest_name(name, list(known))
            )
        types = _TYPES[str(known[name].type)]
        is_flag = isinstance(value, bool)
        if not isinstance(value, types) or is_flag != (types == (bool,)):
            raise CatalogError(what=name, given=value, allowed=f"of type {known[name].type}", where=where)
        if not is_flag and known[name].default is MISSING and name not in zero and not value:
            raise CatalogError(what=name, given=value, allowed="more than zero", where=where)
    for name, each in known.items():
        if each.default is MISSING and name not in parameters:
            raise CatalogError(what=name, given="nothing", allowed=f"required by {kind}", where=where)
    built = found(**parameters)
    if reason := built.problem():
        raise CatalogError(what=kind, given=reason, allowed="a consistent table", where=where)
    return built

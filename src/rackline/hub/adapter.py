"""Low-rank adapters: what an adapter_config.json of PEFT says."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rackline.errors import ConfigError
from rackline.files import read_text
from rackline.hub.repository import RepositoryId, open_repository

ADAPTER = "adapter_config.json"
_MOST_BYTES = 2**20
_MOST_RANK = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One low-rank adapter: W x + (alpha / rank) · B A x (LoRA, arXiv:2106.09685).

    Args:
        name: folder or repository.
        base: model that it belongs to, as its configuration names it; may be empty.
        rank: width of the bottleneck [elements].
        alpha: numerator of the scale; the rank where it is not stated.
        targets: last parts of the names of the products that have one; "all-linear" for all but the head.
        rank_pattern: ranks of products that differ, by a pattern of their name.
        trained_whole: modules that are stored whole beside the adapter (modules_to_save).
        layers: numbers of the layers that have it (layers_to_transform); None for all.
        has_bias: whether biases are stored as well.
        where: file or repository.
    """

    name: str
    base: str
    rank: int
    alpha: float
    targets: tuple[str, ...]
    rank_pattern: tuple[tuple[str, int], ...] = ()
    trained_whole: tuple[str, ...] = ()
    layers: tuple[int, ...] | None = None
    has_bias: bool = False
    where: str = ""


def read_adapter(name: str, *, offline: bool = False) -> Adapter:
    """Read an adapter by the path of its file or folder, or by its repository on the Hub.

    Args:
        name: "path/to/adapter", "path/to/adapter_config.json" or "org/name[@revision]".
        offline: leave the network alone.

    Raises:
        ConfigError: not a low-rank adapter, or a key that cannot be used.
        HubError: the repository cannot be read.
    """
    path = Path(name)
    file = path / ADAPTER if path.is_dir() else path
    where, called = str(file), file.resolve().parent.name
    if not file.is_file():
        identity = RepositoryId.parse(name)
        if identity is None:
            allowed = f"a folder with {ADAPTER}, that file, or a Hugging Face id"
            raise ConfigError(what="adapter", given=name, allowed=allowed)
        file, where, called = open_repository(identity, offline=offline).required(ADAPTER), str(identity), identity.name
    return adapter_from_file(file, where=where, name=called)


def adapter_from_file(file: Path, *, where: str, name: str) -> Adapter:
    """Read an adapter_config.json.

    Raises:
        ConfigError: as `read_adapter`.
    """
    text = read_text(file, what=ADAPTER, allowed="a readable file", max_bytes=_MOST_BYTES, refusal=ConfigError)
    try:
        data: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(what="JSON syntax", given=str(error), allowed="valid JSON", where=where) from None
    if not isinstance(data, dict):
        raise ConfigError(what="JSON", given=type(data).__name__, allowed="an object", where=where)
    table = cast("dict[str, Any]", data)
    kind = table.get("peft_type", "LORA")
    if kind not in ("LORA", "ADALORA"):
        raise ConfigError(
            what="peft_type", given=kind, allowed="LORA (adapters of other kinds are not known)", where=where
        )
    rank = table.get("r")
    if not isinstance(rank, int) or isinstance(rank, bool) or not 1 <= rank <= _MOST_RANK:
        raise ConfigError(what="r", given=rank, allowed=f"a whole number from 1 to {_MOST_RANK}", where=where)
    alpha = table.get("lora_alpha", rank)
    if not isinstance(alpha, (int, float)) or isinstance(alpha, bool):
        raise ConfigError(what="lora_alpha", given=alpha, allowed="a number", where=where)
    return Adapter(
        name=name,
        base=str(table.get("base_model_name_or_path") or ""),
        rank=rank,
        alpha=float(alpha),
        targets=_targets(table.get("target_modules"), where),
        rank_pattern=_ranks(table.get("rank_pattern"), where),
        trained_whole=_names(table.get("modules_to_save"), "modules_to_save", where),
        layers=_layers(table.get("layers_to_transform"), where),
        has_bias=table.get("bias", "none") not in ("none", None),
        where=where,
    )


def _targets(value: object, where: str) -> tuple[str, ...]:
    if isinstance(value, str) and value:
        return (value,)
    found = _names(value, "target_modules", where)
    if not found:
        raise ConfigError(
            what="target_modules",
            given=value,
            allowed='a list of names such as ["q_proj", "v_proj"], or "all-linear"',
            where=where,
        )
    return found


def _names(value: object, key: str, where: str) -> tuple[str, ...]:
    if value is None:
        return ()
    names = cast("list[object]", value) if isinstance(value, list) else [0]
    if not all(isinstance(one, str) and one for one in names):
        raise ConfigError(what=key, given=str(names), allowed="a list of names", where=where)
    return tuple(sorted(str(one) for one in names))


def _layers(value: object, where: str) -> tuple[int, ...] | None:
    if value is None:
        return None
    numbers: list[object] = cast("list[object]", value) if isinstance(value, list) else [value]
    if not numbers or not all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in numbers):
        allowed = "a list of layer numbers"
        raise ConfigError(what="layers_to_transform", given=repr(numbers), allowed=allowed, where=where)
    return tuple(sorted({cast("int", one) for one in numbers}))


def _ranks(value: object, where: str) -> tuple[tuple[str, int], ...]:
    if not value:
        return ()
    table = cast("dict[str, object]", value) if isinstance(value, dict) else {"": None}
    if not all(isinstance(rank, int) and 1 <= rank <= _MOST_RANK for rank in table.values()):
        raise ConfigError(what="rank_pattern", given=str(table), allowed="ranks by module", where=where)
    return tuple((pattern, cast("int", rank)) for pattern, rank in table.items())

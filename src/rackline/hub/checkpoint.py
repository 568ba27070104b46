"""What a repository holds beside its configuration: tensors of a checkpoint by their headers, low-rank adapters."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from rackline.errors import ConfigError, HubError, InputError
from rackline.files import read_text, write_text
from rackline.hub.repository import MOST_FILE_BYTES, Repository, RepositoryId, asked, open_repository, parts_of

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MOST_HEADER_BYTES = 64 * 2**20
"""Longest header that is read [bytes]; that of the largest published shards is under 1 MB."""
_READERS = 8
_SHARD = re.compile(r"^[\w.-]+\.safetensors$")

DTYPE_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "U64": 64, "I32": 32, "U32": 32, "I16": 16, "U16": 16,
    "I8": 8, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4, "F4_E2M1": 4, "I4": 4, "U4": 4, "C64": 64,
}  # fmt: skip
"""Bits of an element by the name of its data type in a header (safetensors, tensor.rs)."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a checkpoint.

    Args:
        name: as the checkpoint calls it.
        dtype: as the header calls it: "BF16", "F8_E4M3", "U8".
        shape: elements of each dimension [count].
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Elements as stored; a packed one holds several weights [count]."""
        return math.prod(self.shape)

    @property
    def stored_bytes(self) -> float:
        """Size [bytes]."""
        return self.elements * DTYPE_BITS.get(self.dtype, 8) / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The tensors of a checkpoint.

    Args:
        tensors: all of them, sorted by name.
        where: file, folder or repository with revision.
        total_size: metadata.total_size of the index [bytes]; None where it is not stated.
    """

    tensors: tuple[Tensor, ...]
    where: str
    total_size: int | None = None

    @property
    def stored_bytes(self) -> float:
        """Size of all tensors [bytes]."""
        return sum(tensor.stored_bytes for tensor in self.tensors)


def folder_checkpoint(folder: Path) -> Checkpoint | None:
    """Headers of the safetensors files of a local folder; None where a file of the index is missing, or all are.

    Raises:
        HubError: a file or the index is no safetensors.
    """
    index = folder / INDEX
    if index.is_file():
        total, files = _index(_index_text(index), where=str(index))
    else:
        every = sorted(one.name for one in folder.glob("*.safetensors"))
        total, files = None, [SINGLE] if SINGLE in every else every
    if not files or not all((folder / name).is_file() for name in files):
        return None
    found: list[Tensor] = []
    for name in files:
        with open(folder / name, "rb") as stream:
            length = _header_length(stream.read(8), where=str(folder / name))
            found += _tensors(stream.read(length), where=str(folder / name), length=length)
    return Checkpoint(tensors=_sorted(found), where=str(folder), total_size=total)


def repository_checkpoint(repository: Repository, *, fetch: bool) -> Checkpoint | None:
    """Headers of the safetensors files of a repository.

    They are kept by commit once they were read, because a large checkpoint has hundreds of files.

    Args:
        repository: at a revision.
        fetch: whether headers that are not kept are read from the Hub.

    Returns:
        None where there are no safetensors, or they are neither kept nor may be read.

    Raises:
        HubError: a header cannot be had, or is none.
    """
    file = f"{repository.name.replace('/', '--')}--{repository.commit}.json"
    kept = repository.settings.summaries / file if repository.commit else None
    if kept is not None and (known := _read_kept(kept)) is not None:
        return known
    local = repository.settings.folder_of(repository.name) / "snapshots" / repository.commit
    found = folder_checkpoint(local) if repository.commit and local.is_dir() else None
    if found is None and fetch and repository.may_fetch:
        found = _fetched(repository)
    if found is not None and kept is not None:
        _keep(found, kept)
    return found


def _fetched(repository: Repository) -> Checkpoint | None:
    index = repository.file(INDEX)
    total: int | None = None
    files = [SINGLE]
    if index is not None:
        total, files = _index(_index_text(index), where=f"{repository.name}: {INDEX}")
    with ThreadPoolExecutor(max_workers=_READERS) as pool:
        parts = list(pool.map(partial(_remote_header, repository), files))
    if index is None and parts == [None]:
        return None  # weights in another format
    where = f"{repository.name}@{repository.commit[:7]}"
    missing = [name for name, part in zip(files, parts, strict=True) if part is None]
    if missing:
        raise HubError(
            what="model",
            given=str(repository.id),
            allowed=f"a whole checkpoint: its index names {missing[0]}, which is not there",
        )
    return Checkpoint(tensors=_sorted(one for part in parts if part for one in part), where=where, total_size=total)


def _remote_header(repository: Repository, name: str) -> list[Tensor] | None:
    """The header of one file, whose connection is closed when the header is there; None where there is no file."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError

    settings = repository.settings
    url = hf_hub_url(repository.name, name, revision=repository.commit or None, endpoint=settings.endpoint)
    where = f"{repository.name}: {name}"

    def read() -> list[Tensor] | None:
        wanted = {"Range": f"bytes=0-{MOST_HEADER_BYTES}"}
        try:
            data, needed, length = bytearray(), 8, 0
            for part in parts_of(url, settings, most_bytes=MOST_HEADER_BYTES + 2**24, headers=wanted):
                data += part
                if needed == 8 and len(data) >= 8:
                    length = _header_length(bytes(data[:8]), where=where)
                    needed += length
                if length and len(data) >= needed:
                    return _tensors(bytes(data[8:needed]), where=where, length=length)
            raise OSError(f"IncompleteRead: {len(data)} of {needed} bytes")
        except EntryNotFoundError:
            return None

    return asked(read, repository.id, settings, what=f"header of {name}")


def _header_length(head: bytes, *, where: str) -> int:
    length = int.from_bytes(head, "little") if len(head) == 8 else 0
    if not 2 <= length <= MOST_HEADER_BYTES:
        raise HubError(
            what="safetensors header", given=f"a length of {length}", allowed="a safetensors file", where=where
        )
    return length


def _tensors(header: bytes, *, where: str, length: int) -> list[Tensor]:
    wrong = HubError(what="safetensors header", given="no table of tensors", allowed="a safetensors file", where=where)
    if len(header) < length:
        raise wrong
    return [_tensor(name, entry, wrong) for name, entry in _object(header, wrong).items() if name != "__metadata__"]


def _object(content: bytes | str, wrong: HubError) -> dict[str, Any]:
    """The object that a JSON text holds."""
    try:
        data: object = json.loads(content)
    except (ValueError, RecursionError):
        raise wrong from None
    if not isinstance(data, dict):
        raise wrong
    return cast("dict[str, Any]", data)


def _tensor(name: str, entry: object, wrong: HubError) -> Tensor:
    table: Mapping[str, Any] = cast("Mapping[str, Any]", entry) if isinstance(entry, dict) else {}
    dtype, shape = table.get("dtype"), table.get("shape")
    if not isinstance(dtype, str) or not isinstance(shape, list):
        raise wrong
    sizes = cast("list[object]", shape)
    if not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise wrong
    return Tensor(name, dtype, tuple(cast("list[int]", sizes)))


def _index_text(file: Path) -> str:
    """The text of an index, within the bounds of what is read."""
    return read_text(file, what="index", allowed="a readable file", max_bytes=MOST_FILE_BYTES, refusal=HubError)


def _index(content: str, *, where: str) -> tuple[int | None, list[str]]:
    """Total size and files of an index."""
    wrong = HubError(what="index", given="no weight_map", allowed="an index of safetensors files", where=where)
    table = _object(content, wrong)
    files: object = table.get("weight_map")
    if not isinstance(files, dict):
        raise wrong
    names = sorted({str(name) for name in cast("dict[str, object]", files).values()})
    if not names or not all(_SHARD.match(name) for name in names):
        raise wrong
    stated: object = table.get("metadata")
    size: object = cast("dict[str, object]", stated).get("total_size") if isinstance(stated, dict) else None
    return (int(size) if isinstance(size, (int, float)) and not isinstance(size, bool) else None), names


def _sorted(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    return tuple(sorted(tensors, key=lambda tensor: tensor.name))


def _read_kept(file: Path) -> Checkpoint | None:
    """Headers that were kept; None where there are none, or the file is not whole."""
    try:
        data: Any = json.loads(file.read_bytes())
        return Checkpoint(
            tensors=tuple(Tensor(name, dtype, tuple(shape)) for name, dtype, shape in data["tensors"]),
            where=data["where"],
            total_size=data["total_size"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _keep(checkpoint: Checkpoint, file: Path) -> None:
    rows = [[tensor.name, tensor.dtype, list(tensor.shape)] for tensor in checkpoint.tensors]
    data = {"where": checkpoint.where, "total_size": checkpoint.total_size, "tensors": rows}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps(data, separators=(",", ":")), what="tensor headers")
    except (OSError, InputError):  # a cache that cannot be written is none
        return


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

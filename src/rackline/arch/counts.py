"""Parameters that follow from a description against those of its checkpoint: how far apart they are, and where."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rackline.arch.model import AnyModel, Model
from rackline.arch.tensor_names import weights_of

if TYPE_CHECKING:
    from rackline.arch.lookup import FoundModel
    from rackline.hub import Checkpoint

TOLERANCE = 0.01
"""Relative difference to a checkpoint beyond which every answer carries a warning."""
NAME_TOLERANCE = 0.05
"""The same to the size that a name states, which is rounded."""
_SIZE = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)([MBT])(?![A-Za-z0-9])", re.I)
_UNITS = {"m": 1e6, "b": 1e9, "t": 1e12}
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedPart:
    """One part of a model.

    Args:
        kind: attention, ffn, experts, ...
        counted: parameters that follow from the description [count].
        stored: parameters of the checkpoint [count].
    """

    kind: str
    counted: int
    stored: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CountCheck:
    """A model's parameters against its checkpoint.

    Args:
        counted: parameters that follow from the description; layers for multi-token prediction where they are stored
            [count].
        stored: parameters of the checkpoint, without its towers [count].
        parts: by part; empty where only the sum is known.
        tower: parameters of towers for images and sound in the checkpoint [count].
        types: weights by part and data type [count]; empty where only the sum is known.
        total_size: metadata.total_size of the index [bytes]; None where it is not known.
        stored_bytes: size of all tensors by their headers [bytes]; None where they were not read.
        where: what was compared with.
    """

    json_keys: ClassVar = (
        "counted_params=counted",
        "stored_params=stored",
        "difference",
        "parts",
        "tower_params=tower",
        "params_by_dtype=types",
        "total_size_bytes=total_size",
        "stored_bytes",
        "compared_with=where",
    )

    counted: int
    stored: int
    parts: tuple[CountedPart, ...]
    tower: int
    types: dict[str, dict[str, int]]
    total_size: int | None
    stored_bytes: float | None
    where: str

    @property
    def difference(self) -> float:
        """counted / stored - 1."""
        return self.counted / self.stored - 1.0 if self.stored else 0.0

    @property
    def largest(self) -> CountedPart | None:
        """The part that differs most."""
        return max(self.parts, key=lambda part: abs(part.counted - part.stored), default=None)


def check_counts(model: AnyModel, found: FoundModel) -> CountCheck | None:
    """Compare a model with its checkpoint; None where nothing is known of it or the model is an aggregate.

    Args:
        model: built from the record.
        found: with tensor headers, or the Hub's own count.
    """
    if not isinstance(model, Model):
        return None
    if found.checkpoint is not None:
        return _by_headers(model, found.checkpoint)
    elements = found.elements_by_dtype or {}
    plain = set(elements) <= _FLOATS and not any("left out" in (source.note or "") for source in found.record.sources)
    if not elements or not plain:
        return None
    stored = sum(elements.values())
    # a checkpoint may hold the layers for multi-token prediction, and a tied head twice
    head = model.vocab_size * model.d_model if model.tied_embeddings else 0
    options = {model.total_params + mtp + extra for mtp in (0, model.mtp_params) for extra in (0, head)}
    return CountCheck(
        counted=min(options, key=lambda option: abs(option - stored)),
        stored=stored,
        parts=(),
        tower=0,
        types={},
        total_size=None,
        stored_bytes=None,
        where="the Hub's count of its tensors",
    )


def _by_headers(model: Model, checkpoint: Checkpoint) -> CountCheck:
    weights = weights_of(checkpoint.tensors, num_layers=model.num_layers)
    stored: Counter[str] = Counter()
    types: dict[str, Counter[str]] = {}
    for weight in weights:
        if weight.kind == "head" and model.tied_embeddings:
            continue  # the embedding once more
        stored[weight.kind] += weight.elements
        types.setdefault(weight.kind, Counter())[weight.dtype] += weight.elements
    counted = {kind: count for kind, count in model.parameters().total.items() if count}
    tower = stored.pop("tower", 0)
    if model.tower_params:
        stored["towers"], tower = tower, 0
    if stored.get("mtp"):
        counted["mtp"] = model.mtp_params
    kinds = [*counted, *(kind for kind in stored if kind not in counted)]
    return CountCheck(
        counted=sum(counted.values()),
        stored=sum(stored.values()),
        parts=tuple(CountedPart(kind=kind, counted=counted.get(kind, 0), stored=stored.get(kind, 0)) for kind in kinds),
        tower=tower,
        types={kind: dict(counter) for kind, counter in types.items()},
        total_size=checkpoint.total_size,
        stored_bytes=checkpoint.stored_bytes,
        where=f"tensor headers of {checkpoint.where}",
    )


def count_warnings(model: AnyModel, found: FoundModel) -> tuple[str, ...]:
    """What every answer must say of a model whose count is off by more than 1 %."""
    check = check_counts(model, found)
    if check is None:
        return _against_name(model, found)
    if abs(check.difference) <= TOLERANCE:
        return ()
    worst = check.largest
    at = f", most in {worst.kind} ({worst.counted:.4g} counted, {worst.stored:.4g} stored)" if worst else ""
    return (
        f"{found.origin.name}: {check.counted:.4g} parameters counted, {check.stored:.4g} by {check.where} "
        f"({check.difference:+.1%}){at}: the description is uncertain",
    )


def size_in_name(name: str) -> float | None:
    """Parameters that a name states, active ones and those of one expert apart; None where it states none.

    Example:
        >>> size_in_name("Qwen3-30B-A3B") / 1e9, size_in_name("Mixtral-8x7B-v0.1"), size_in_name("mpt-125m") / 1e6
        (30.0, None, 125.0)
    """
    found = _SIZE.search(name)
    return float(found[1]) * _UNITS[found[2].lower()] if found else None


def _against_name(model: AnyModel, found: FoundModel) -> tuple[str, ...]:
    """A count that is far from the size in the name; names of the catalogue are checked against what is published."""
    stated = None if found.origin.kind == "catalogue" else size_in_name(found.record.full_name)
    if stated is None or abs(model.total_params / stated - 1.0) <= NAME_TOLERANCE:
        return ()
    off = model.total_params / stated - 1.0
    return (f"{found.origin.name}: {model.total_params:.4g} parameters counted, {stated:.4g} by its name ({off:+.1%})",)

"""A low-rank adapter on the model of a question."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rackline.api.media import MediaQuestion
from rackline.api.option import Quantity, count, option, si, whole
from rackline.errors import ConfigError, HubError, InputError

if TYPE_CHECKING:
    from rackline.api.watch import Watch
    from rackline.arch import AnyModel
    from rackline.hub import Adapter


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterQuestion(MediaQuestion):
    """A question whose tokens may all go through a low-rank adapter."""

    adapter: str | None = field(
        default=None,
        metadata=option(
            "text",
            "low-rank adapter (LoRA) that every token goes through: its folder, adapter_config.json or Hugging Face id",
            group="Model by name",
        ),
    )
    adapters: Quantity = field(
        default="1",
        metadata=whole(
            "number of adapters of this shape, of which each request uses one; all are in memory unless "
            "`resident_adapters` says how many",
            group="Model by name",
        ),
    )
    resident_adapters: Quantity | None = field(
        default=None,
        metadata=whole(
            "adapters that memory holds at a time; the others are transferred from the host when a request needs them, "
            "in place of the least recently used",
            group="Model by name",
        ),
    )
    adapter_popularity: Quantity = field(
        default="0",
        metadata=option(
            "count",
            "how requests choose adapters: exponent of Zipf's law, 0 for all alike, 1 for shares of 1, 1/2, 1/3, ...",
            unit="1",
            zero=True,
            maximum=5.0,
            group="Model by name",
        ),
    )
    adapter_link: Quantity | None = field(
        default=None,
        metadata=option(
            "rate",
            "bandwidth of an adapter's transfer from the host, per chip; by default that of the chip's PCIe or "
            "superchip link",
            unit="B/s",
            group="Model by name",
        ),
    )


_OF_SEVERAL = ("resident_adapters", "adapter_popularity", "adapter_link")


def with_adapter(model: AnyModel, question: AdapterQuestion, watch: Watch) -> AnyModel:
    """The model with the adapter of a question; a warning where the adapter says that it belongs to another one.

    Raises:
        InputError: an aggregate model.
        ConfigError, HubError: the adapter cannot be read, or changes modules that the model does not have.
    """
    number, resident = count(question.adapters) or 1, count(question.resident_adapters)
    changed = question.changed()
    if question.adapter is None:
        for name in ("adapters", *_OF_SEVERAL):
            if name in changed:
                raise InputError(what=name, given=changed[name], allowed="only with `adapter`, which says their shape")
        return model
    if number == 1:
        for name in _OF_SEVERAL:
            if name in changed:
                raise InputError(what=name, given=changed[name], allowed="only with `adapters`, of several")
    if resident is not None and resident > number:
        raise InputError(what="resident_adapters", given=resident, allowed=f"up to {number}, all adapters")
    from rackline.arch import Model, apply_adapter
    from rackline.arch.lookup import is_called
    from rackline.hub import read_adapter

    if not isinstance(model, Model):
        raise InputError(what="adapter", given=question.adapter, allowed="a model whose layers are known")
    adapter = read_adapter(question.adapter, offline=question.offline)
    if adapter.base and not is_called(model, adapter.base):
        watch.warn(f"the adapter {adapter.name} was made for {adapter.base}, not for {model.name}")
    built = apply_adapter(model, adapter)
    if number > 1 and built.adapter is not None:
        if any(module.copies > 1 for module in built.adapter.modules):
            raise InputError(what="adapters", given=number, allowed="1 where experts have adapters")
        several = replace(
            built.adapter,
            number=number,
            resident=resident or number,
            popularity=si(question.adapter_popularity),
            link_bytes_per_s=si(question.adapter_link),
        )
        built = replace(built, adapter=several)
    watch.adapter = built.adapter
    return built


def adapter_of_folder(name: str) -> Adapter | None:
    """The adapter of a file, or of a folder that holds one and no model; None for everything else."""
    from rackline.hub import read_adapter
    from rackline.hub.checkpoint import ADAPTER

    path = Path(name).expanduser()
    try:
        folder = path.is_dir() and (path / ADAPTER).is_file() and not (path / "config.json").is_file()
        found = folder or (path.name == ADAPTER and path.is_file())
    except (OSError, ValueError):
        return None
    return read_adapter(str(path)) if found else None


def adapter_of_repository(name: str, *, offline: bool) -> Adapter | None:
    """The adapter of a repository of the Hub; None where there is none."""
    from rackline.hub import read_adapter

    try:
        return read_adapter(name, offline=offline)
    except (HubError, ConfigError):
        return None

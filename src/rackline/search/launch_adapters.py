"""Low-rank adapters in launch commands: the options of each engine, which are data of its launch rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from rackline.arch import AppliedAdapter
from rackline.catalog import launch_rules_record

_LIST = "{modules}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterWords:
    """What an engine is told of adapters.

    Args:
        words: options of the command.
        file: lines of its options file.
        notes: what to do for the other adapters.
        lacks: what the engine cannot take.
    """

    words: tuple[str, ...] = ()
    file: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()


def adapter_words(engine: str, adapter: AppliedAdapter) -> AdapterWords:
    """Options for adapters of one shape.

    Args:
        engine: with launch rules.
        adapter: their shape and how many there are.
    """
    options = launch_rules_record(engine).adapters
    if options is None:
        return AdapterWords(lacks=("options for adapters are not known",))
    rank = max(module.rank for module in adapter.modules)
    wider = [one for one in options.ranks or (rank,) if one >= rank]
    lacks: list[str] = []
    if not wider:
        lacks.append(f"adapters of rank {rank}: {max(options.ranks or (rank,))} is the most")
    if adapter.whole_params:
        lacks.append("modules that are stored whole beside the adapter are not loaded with it")
    names = list(dict.fromkeys(module.name.rpartition(".")[2] for module in adapter.modules))
    known = options.modules
    unknown = [] if known is None else [name for name in names if name not in known]
    if unknown:
        lacks.append(f"adapters on {', '.join(unknown)} have no name in its options")
    modules = names if known is None else [known[name] for name in names if name in known]
    values = {
        "name": adapter.name.rstrip("/").rpartition("/")[2],
        "path": _path(adapter),
        "rank": str(min(wider, default=rank)),
        "resident": str(adapter.resident),
        "number": str(adapter.number),
        "modules": ", ".join(modules),
    }
    waiting = options.waiting if adapter.resident < adapter.number else ()
    return AdapterWords(
        words=tuple(_filled((*options.words, *waiting), values, modules)),
        file=tuple(line.format(**values) for line in options.file),
        notes=(f"{adapter.number:,} adapters: {options.later}",) if adapter.number > 1 else (),
        lacks=tuple(lacks),
    )


def _path(adapter: AppliedAdapter) -> str:
    """Folder or repository from which an engine loads it, which knows no revision."""
    if not adapter.where:
        return adapter.name
    folder = PurePath(adapter.where)
    return str(folder.parent) if folder.suffix == ".json" else adapter.where.partition("@")[0]


def _filled(words: Sequence[str], values: dict[str, str], modules: Sequence[str]) -> list[str]:
    """Words with their values; the modules are words of their own."""
    found: list[str] = []
    for word in words:
        found += modules if word == _LIST else [word.format(**values)]
    return found

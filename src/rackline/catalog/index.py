"""Names of the catalogue: which file a name or alias stands for, and the nearest names to an unknown one."""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
import re
from collections.abc import Mapping, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Literal, cast

from rackline.errors import UnknownNameError, nearest_names
from rackline.files import own_folder, parse_toml

Kind = Literal[
    "chips", "clusters", "memory", "models", "prices", "calibrations", "stacks", "launch_rules", "laws", "runs",
    "training_stacks", "orchestrators", "uses",
]  # fmt: skip

SINGULAR = {
    "chips": "chip",
    "clusters": "cluster",
    "memory": "memory tier",
    "models": "model",
    "prices": "price sheet",
    "calibrations": "calibration",
    "stacks": "stack",
    "training_stacks": "training stack",
    "launch_rules": "set of launch rules",
    "orchestrators": "orchestrator",
    "laws": "scaling law",
    "runs": "training run",
    "uses": "use",
}
_CANONICAL = re.compile(r"^[a-z0-9][a-z0-9._-]*$")
_LONGEST_NAME = 200  # characters; longer ones are no names
_MODEL_PREFIXES = ("meta-",)
_MODEL_SUFFIXES = ("-instruct", "-hf", "-fp8", "-nvfp4")


@functools.cache
def names(kind: Kind) -> tuple[str, ...]:
    """Return the canonical names of all objects of a kind, shipped ones and the user's, sorted.

    Args:
        kind: "chips", "clusters", "memory", "models", "prices", "calibrations", "stacks", "laws", "runs".

    Example:
        >>> "h100-sxm" in names("chips")
        True
    """
    if kind not in SINGULAR:
        raise UnknownNameError(what="kind of catalogue object", given=kind, allowed=", ".join(SINGULAR))
    files = [file for place in (folder(kind), user_catalogue() / kind) if place.is_dir() for file in place.iterdir()]
    return tuple(sorted({file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")}))


@functools.cache
def folder(kind: str) -> Traversable:
    """Where the shipped files of a kind are."""
    return importlib.resources.files("rackline.catalog").joinpath("data", kind)


def user_catalogue(environment: Mapping[str, str] | None = None) -> Path:
    """The user's own catalogue, with a folder a kind; its files come before shipped ones of the same name.

    RACKLINE_CATALOGUE, else rackline/catalogue in XDG_DATA_HOME or ~/.local/share.

    Args:
        environment: variables; those of the process by default.

    >>> user_catalogue({"XDG_DATA_HOME": "/data"}).as_posix()
    '/data/rackline/catalogue'
    """
    return own_folder("RACKLINE_CATALOGUE", ("XDG_DATA_HOME", ".local/share"), "catalogue", environment)


@functools.cache
def file_of(kind: Kind, name: str) -> Traversable:
    """The file of a canonical name: the user's own, else the shipped one."""
    own = user_catalogue() / kind / f"{name}.toml"
    return own if _exists(own) else folder(kind).joinpath(own.name)


def find(kind: Kind, name: str) -> Traversable:
    """Return the file of a name; only alias look-ups open other files, and then only their headers.

    A chip's name stands for its usual machine where a cluster is asked for. A name that the catalogue does not have
    stands for the file of that name in the working folder.
    """
    if not name.endswith(".toml") and len(name) <= _LONGEST_NAME:
        if name in names(kind):
            return file_of(kind, name)
        index = alias_index(kind)
        for form in _forms(kind, name):
            if form in index:
                return file_of(kind, index[form])
    user_file = Path(name)
    if (name.endswith(".toml") or "/" in name) and _exists(user_file):
        return user_file
    beside = Path(f"{name}.toml")
    if _CANONICAL.match(name) and len(name) <= _LONGEST_NAME and not name.endswith(".toml") and _exists(beside):
        return beside
    chip = canonical_name("chips", name) if kind == "clusters" and len(name) <= _LONGEST_NAME else None
    if chip is not None:
        machine = usual_machine(chip)
        if machine is None:
            allowed = f"a cluster; none of the catalogue has the chip {chip}: write one with `rackline new cluster`"
            raise UnknownNameError(what="cluster", given=name, allowed=allowed)
        return file_of(kind, machine)
    what, allowed = SINGULAR[kind], f"one of {len(names(kind))} catalogue names or a .toml file"
    if name.endswith(".toml"):
        what, allowed = f"{SINGULAR[kind]} file", "an existing file"
    near = _nearest(kind, Path(name).stem if name.endswith(".toml") else name)
    raise UnknownNameError(what=what, given=name, allowed=allowed, nearest=", ".join(near) or None)


def usual_machine(chip: str) -> str | None:
    """The smallest cluster of the catalogue with a chip; None without one.

    Args:
        chip: canonical name.

    Example:
        >>> usual_machine("h100-sxm"), usual_machine("gb200"), usual_machine("t4")
        ('dgx-h100', 'gb200-nvl72', None)
    """
    return machines().get(chip)


@functools.cache
def machines() -> dict[str, str]:
    """The smallest cluster of each chip."""
    found: dict[str, tuple[int, str]] = {}
    for name in names("clusters"):
        head = _head(file_of("clusters", name).read_text(encoding="utf-8"))
        chip, size = str(head.get("chip")), cast("int", head.get("num_chips"))
        found[chip] = min(found.get(chip, (size, name)), (size, name))
    return {chip: name for chip, (_, name) in found.items()}


def canonical_name(kind: Kind, label: str) -> str | None:
    """The catalogue's name for a label that a source uses; None when it has none.

    Example:
        >>> canonical_name("models", "Llama 3.1 70B"), canonical_name("models", "unheard of")
        ('llama-3.1-70b', None)
    """
    form = "-".join(label.lower().split())
    return form if form in names(kind) else alias_index(kind).get(form)


def stack_name(label: str) -> str:
    """Catalogue name of a serving or training stack from any spelling; unknown ones in lower case."""
    return canonical_name("stacks", label) or label.lower()


def _exists(file: Path) -> bool:
    """Whether there is something of this name that is no folder; reading it says what is wrong with a device."""
    try:
        return file.exists() and not file.is_dir()
    except (OSError, ValueError):  # a name that is too long, or has a NUL character
        return False


def _nearest(kind: Kind, name: str) -> list[str]:
    """Return canonical names whose name or alias looks like the given one."""
    if len(name) > _LONGEST_NAME:
        return []
    index = alias_index(kind)
    found: list[str] = []
    for form in _forms(kind, name):
        for near in nearest_names(form, [*names(kind), *index]):
            canonical = index.get(near, near)
            if canonical not in found:
                found.append(canonical)
    return found[:3]


def _forms(kind: Kind, name: str) -> list[str]:
    """Return the spellings under which a name is looked up, the most exact first.

    A model's Hugging Face id loses its organisation, the ``Meta-`` prefix and the suffixes for
    instruction tuning, format and quantisation one by one, so that an alias may name any of them.
    """
    forms = [name.lower()]
    if kind == "models":
        bare = forms[0].rsplit("/", 1)[-1]
        forms.append(bare)
        changed = True
        while changed:
            changed = False
            for prefix in _MODEL_PREFIXES:
                if bare.startswith(prefix):
                    bare, changed = bare.removeprefix(prefix), True
                    forms.append(bare)
            for suffix in _MODEL_SUFFIXES:
                if bare.endswith(suffix):
                    bare, changed = bare.removesuffix(suffix), True
                    forms.append(bare)
    return list(dict.fromkeys(forms))


@functools.cache
def alias_index(kind: Kind) -> dict[str, str]:
    """Map lower-case aliases (and their shortened forms) to canonical names."""
    exact: dict[str, str] = {name: name for name in names(kind)}
    loose: dict[str, str] = {}
    for name in names(kind):
        for alias in _aliases(file_of(kind, name).read_text(encoding="utf-8")):
            forms = _forms(kind, alias)
            exact.setdefault(forms[0], name)
            for form in forms[1:]:
                loose.setdefault(form, name)
    return loose | exact


def shipped_head(kind: Kind, name: str) -> dict[str, object]:
    """The keys of a file of the catalogue before its first table, read without its record."""
    return _head(file_of(kind, name).read_text(encoding="utf-8"))


def _head(text: str) -> dict[str, object]:
    """The keys of a file before its first table; a broken file has none."""
    head = re.split(r"(?m)^\s*\[[^\n]*\]\s*(?:#[^\n]*)?$", text, maxsplit=1)[0] if "\n[" in text else text
    try:
        return parse_toml(head)
    except ValueError:
        return {}


def _aliases(text: str) -> Sequence[str]:
    """The aliases in the head of a file."""
    aliases = _head(text).get("aliases", [])
    return [a for a in cast("list[object]", aliases) if isinstance(a, str)] if isinstance(aliases, list) else ()


@functools.cache
def build_hash() -> str:
    """Hash of the program, its catalogue and the user's own: shards of another build are not mixed in."""
    root, own = Path(__file__).resolve().parents[1], user_catalogue()
    found = hashlib.sha256()
    files = [(root, path) for end in ("py", "c", "toml") for path in root.rglob(f"*.{end}")]
    for place, path in sorted([*files, *((own, path) for path in own.rglob("*.toml"))]):
        found.update(path.relative_to(place).as_posix().encode())
        found.update(path.read_bytes())
    return found.hexdigest()[:16]

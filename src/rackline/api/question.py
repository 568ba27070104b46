"""What all questions have in common: they are data, made from keywords, texts or JSON, and turned back into them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any, ClassVar, Self

from rackline.api.option import Option
from rackline.errors import InputError, nearest_names


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question: its fields are the options, in SI units once it is made.

    A field takes an SI number or a text with a unit, a name or an object. Two questions are equal when they ask
    the same, however their quantities were written.
    """

    ask: ClassVar[str]

    def __post_init__(self) -> None:
        """Read each value once, as its option says; nothing, where a field is never nothing, is its default."""
        usual = _never_none(type(self))
        for name, option in options(type(self)).items():
            given = getattr(self, name)
            if given is None and name in usual:
                given = usual[name]
            if given is not None:
                object.__setattr__(self, name, option.read(given, name))

    def changed(self) -> dict[str, Any]:
        """The fields whose values are not the default ones."""
        usual = defaults(type(self))
        found = {name: getattr(self, name) for name in options(type(self))}
        return {name: value for name, value in found.items() if name not in usual or usual[name] != value}

    def to_data(self) -> dict[str, Any]:
        """The question as data for JSON or TOML: its name and what differs from the defaults, in SI units.

        An object is written by its name.
        """
        data: dict[str, Any] = {"ask": self.ask}
        for name, value in self.changed().items():
            if isinstance(value, tuple):
                data[name] = list(value)  # pyright: ignore[reportUnknownArgumentType]
            elif value is None or isinstance(value, str | bool | int | float):
                data[name] = value
            else:
                data[name] = str(getattr(value, "name", value))
        return data

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """The question that `to_data` wrote, or a file of questions holds.

        Raises:
            InputError: an unknown key, a value that an option cannot use, or a value that is missing.
        """
        return cls(**check_names(cls, {name: value for name, value in data.items() if name != "ask"}))

    def to_params(self) -> dict[str, str]:
        """The question as flat texts, such as the query of an address: what differs from the defaults."""
        known = options(type(self))
        return {name: "" if value is None else known[name].write(value) for name, value in self.changed().items()}

    @classmethod
    def from_params(cls, params: Mapping[str, str]) -> Self:
        """The question that `to_params` wrote.

        Raises:
            InputError: as `from_data`.
        """
        known = options(cls)
        values = {
            name: (known[name].parse(text) if text else None) if name in known else text
            for name, text in params.items()
        }
        return cls(**check_names(cls, values))


@cache
def options(kind: type[Question]) -> dict[str, Option]:
    """The options of a question by the names of its fields, in their order."""
    return {field.name: field.metadata["option"] for field in fields(kind) if "option" in field.metadata}


@cache
def written_defaults(kind: type[Question]) -> dict[str, Any]:
    """The default of each field that has one, as it is written in the source ("8k")."""
    known = options(kind)
    return {field.name: field.default for field in fields(kind) if field.name in known and field.default is not MISSING}


@cache
def _never_none(kind: type[Question]) -> dict[str, Any]:
    """The defaults, as they are written, of the fields whose type does not have None."""
    usual = written_defaults(kind)
    texts = {field.name: str(field.type) for field in fields(kind) if field.name in usual}
    return {name: usual[name] for name, text in texts.items() if usual[name] is not None and "None" not in text}


@cache
def defaults(kind: type[Question]) -> dict[str, Any]:
    """The same as the question keeps them (8000.0)."""
    known = options(kind)
    return {
        name: None if value is None else known[name].read(value, name) for name, value in written_defaults(kind).items()
    }


def check_names(kind: type[Question], values: dict[str, Any]) -> dict[str, Any]:
    """Refuse names that the question does not have, and values that it lacks.

    Raises:
        InputError: with the nearest name, or what is missing.
    """
    known, usual = options(kind), written_defaults(kind)
    for name in values:
        if name not in known:
            near = nearest_names(name, known, 1)
            raise InputError(what=kind.ask, given=name, allowed=", ".join(known), nearest=near[0] if near else None)
    for name, option in known.items():
        if name not in usual and values.get(name) is None:
            raise InputError(what=name, given="nothing", allowed=option.help)
        if option.kind == "switch" and name in values and values[name] is None:
            raise InputError(what=name, given="nothing", allowed="true or false")
    return values

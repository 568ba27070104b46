"""What all questions have in common: they are data, made from keywords, texts or JSON, and turned back into them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from typing import Any, ClassVar, Self, TypeVar, cast, dataclass_transform

from rackline.api.option import Option, absent, limit, option, shared, tokens, whole
from rackline.api.verbs import entries
from rackline.errors import InputError, nearest_names

Kind = TypeVar("Kind")


@dataclass_transform(
    frozen_default=True, kw_only_default=True, field_specifiers=(option, shared, tokens, whole, limit, absent)
)
def question(kind: type[Kind]) -> type[Kind]:
    """Make a class a question: a frozen dataclass of options. It has no slots, since it may have several groups."""
    return dataclass(frozen=True, kw_only=True)(kind)


@question
class Question:
    """A question: its fields are the options, in SI units once it is made.

    A field takes an SI number or a text with a unit, a name or an object. Two questions are equal when they ask
    the same, however their quantities were written.
    """

    ask: ClassVar[str]
    headings: ClassVar[Mapping[str, str]] = {}
    """Headings of `--help` for options of its groups that stand under another one here."""

    def __post_init__(self) -> None:
        """Read each value once, as its option says; nothing is the default."""
        usual = written_defaults(type(self))
        for name, one in options(type(self)).items():
            given = getattr(self, name)
            if given is None or (given == () and usual.get(name, given) is None):  # so that `replace` reads it again
                given = usual.get(name)
            object.__setattr__(self, name, one.empty if given is None else one.read(given, name))

    def changed(self) -> dict[str, Any]:
        """The options whose values are not the default ones."""
        return self.given(*options(type(self)))

    def given(self, *names: str) -> dict[str, Any]:
        """Those of some options whose values are not the default ones, in this order."""
        usual = defaults(type(self))
        return {name: getattr(self, name) for name in names if name not in usual or usual[name] != getattr(self, name)}

    def refuse(self, *names: str, allowed: str) -> None:
        """Refuse options that do not belong to what is asked.

        Args:
            allowed: what the message says.

        Raises:
            InputError: one of them is given.
        """
        for name, value in self.given(*names).items():
            raise InputError(what=name, given=value, allowed=allowed)

    def either(self, *names: str) -> dict[str, Any]:
        """The one of some options that is given, none where none is.

        Raises:
            InputError: two of them are given.
        """
        first, *more = [*self.given(*names), ""]
        self.refuse(*filter(None, more), allowed=f"only without `{first}`")
        return self.given(*names)

    def to_data(self) -> dict[str, Any]:
        """The question as data for JSON or TOML: its name and what differs from the defaults, in SI units.

        An object is written by its name.
        """
        data: dict[str, Any] = {"ask": self.ask}
        for name, value in self.changed().items():
            if isinstance(value, tuple):
                data[name] = list(cast("tuple[Any, ...]", value))
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
    found: dict[str, Option] = {
        field.name: field.metadata["option"] for field in fields(kind) if "option" in field.metadata
    }
    return {name: replace(one, group=kind.headings.get(name, one.group)) for name, one in found.items()}


@cache
def written_defaults(kind: type[Question]) -> dict[str, Any]:
    """The default of each field that has one, as it is written in the source ("8k")."""
    known = options(kind)
    return {field.name: field.default for field in fields(kind) if field.name in known and field.default is not MISSING}


@cache
def defaults(kind: type[Question]) -> dict[str, Any]:
    """The same as the question keeps them (8000.0)."""
    known = options(kind)
    return {
        name: known[name].empty if value is None else known[name].read(value, name)
        for name, value in written_defaults(kind).items()
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
    for name, one in known.items():
        if name not in usual and values.get(name) is None:
            raise InputError(what=name, given="nothing", allowed=one.help)
        if one.kind == "switch" and name in values and values[name] is None:
            raise InputError(what=name, given="nothing", allowed="true or false")
    return values


def flag_of(name: str, option: Option) -> str:
    """The long flag of an option; an argument has none."""
    return "" if option.positional else option.flag or f"--{name.replace('_', '-')}"


def command_of(question: Question) -> str:
    """The command that asks the same.

    Example:
        >>> from rackline.api.fit import FitQuestion
        >>> command_of(FitQuestion("llama-3.1-8b", on="dgx-h100", context="32k"))
        'rackline fit llama-3.1-8b --on dgx-h100 --context 32000'
    """
    known = options(type(question))
    words = ["rackline", question.ask]
    for name, value in question.changed().items():
        one = known[name]
        flag = flag_of(name, one)
        if one.kind == "switch":
            words.append(flag)
            continue
        if isinstance(value, tuple) and not one.is_quantity:
            for part in cast("tuple[Any, ...]", value):
                words += [*([flag] if flag else []), str(part)]
        elif value is not None:
            words += [*([flag] if flag else []), one.write(value)]
    return shlex.join(words)


def python_of(question: Question) -> str:
    """The call that asks the same, where `rl` is `rackline`.

    Example:
        >>> from rackline.api.fit import FitQuestion
        >>> python_of(FitQuestion("llama-3.1-8b", on="dgx-h100", context="32k"))
        "rl.fit('llama-3.1-8b', on='dgx-h100', context=32000)"
    """
    known = options(type(question))
    words: list[str] = []
    for name, value in question.changed().items():
        words.append(_python(value) if known[name].positional else f"{name}={_python(value)}")
    return f"rl.{entries()[question.ask].function}({', '.join(words)})"


def _python(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(_python(one) for one in cast('tuple[Any, ...]', value))}]"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return repr(int(value))
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    return repr(getattr(value, "name", value))

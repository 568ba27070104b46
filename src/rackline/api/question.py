"""A question is data: a frozen dataclass whose fields are its options, made from keywords, texts or JSON.

An option says its help, unit, bounds and flag, and how its text is read and written: all doors are made from it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Self, TypeAlias, TypeVar, cast, dataclass_transform

from rackline.api.verbs import entries
from rackline.errors import InputError, require, unknown_name
from rackline.late import late
from rackline.units import (
    USUAL_PERCENTILE,
    Quantity,
    format_limit,
    parse_bytes,
    parse_count,
    parse_fraction,
    parse_limit,
    parse_per_second,
    parse_rate,
    parse_seconds,
    parse_usd,
    parse_usd_per_hour,
    parse_usd_per_month,
    parse_watts,
    parse_whole,
)

with late:
    from rackline import arch, hardware, parallel, passes

Taken = TypeVar("Taken", contravariant=True)
Held = TypeVar("Held", covariant=True)
T = TypeVar("T")

_GOES_ON = " \\"  # at the end of a line of the shell


class Reads(Generic[Taken, Held]):
    """The type of a field that takes a text or a number and, once the question is made, holds the value of it.

    Only type checkers read it.
    """

    def __get__(self, question: object, kind: Any) -> Held: ...
    def __set__(self, question: object, value: Taken) -> None: ...


ModelLike: TypeAlias = "str | Path | arch.AnyModel"
ClusterLike: TypeAlias = "str | Path | hardware.Cluster"
CalibrationLike: TypeAlias = "str | Path | passes.Calibration"
Number: TypeAlias = "Reads[Quantity | None, float]"
MaybeNumber: TypeAlias = "Reads[Quantity | None, float | None]"
Numbers: TypeAlias = "Reads[Quantity | Sequence[Quantity] | None, tuple[float, ...]]"
Whole: TypeAlias = "Reads[Quantity | None, int]"
MaybeWhole: TypeAlias = "Reads[Quantity | None, int | None]"
Text: TypeAlias = "Reads[str | None, str]"
MaybeText: TypeAlias = "Reads[Quantity | None, str | None]"
Texts: TypeAlias = "Reads[str | Sequence[str] | None, tuple[str, ...]]"
Settings: TypeAlias = "Reads[Mapping[str, str | float] | Sequence[str] | str | None, tuple[str, ...]]"
Precisions: TypeAlias = "Reads[str | None, str | tuple[str, ...]]"
Limit: TypeAlias = "Reads[Quantity | None, float | str | None]"
MaybeLayout: TypeAlias = "Reads[str | parallel.Layout | None, str | None]"

MOST_TOKENS = 1e9
MOST_SECONDS = 86400.0
MOST_USD = 1e6
MOST_CHIPS = 1e9

Kind = Literal[
    "text", "switch", "settings", "object", "limit", "seconds", "count", "whole", "fraction", "rate", "per_second",
    "bytes", "usd", "usd_per_hour", "usd_per_month", "watts",
]  # fmt: skip

# how a text of each kind of quantity is read, and what stands behind a number when it is written as a text
_QUANTITIES: dict[str, tuple[Callable[..., float], str]] = {
    "seconds": (parse_seconds, "s"),
    "count": (parse_count, ""),
    "whole": (parse_whole, ""),
    "fraction": (parse_fraction, ""),
    "rate": (parse_rate, "B/s"),
    "per_second": (parse_per_second, "/s"),
    "bytes": (parse_bytes, "B"),
    "usd": (parse_usd, ""),
    "usd_per_hour": (parse_usd_per_hour, ""),
    "usd_per_month": (parse_usd_per_month, ""),
    "watts": (parse_watts, "W"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """What there is to know of one field of a question.

    Args:
        kind: how it is read: a quantity by its unit, a text, a switch, KEY=VALUE settings, or a name or an object.
        help: one line for readers.
        unit: of a number, in SI, as the nomenclature writes it.
        group: heading under which `--help` shows it.
        flag: name on the command line where it is not the field's ("--import" for a Python keyword).
        short: one letter.
        choices: the texts that are allowed; empty for any.
        several: whether it holds several values.
        repeated: whether the flag is repeated for several values; else they have commas between them.
        positional: whether it is an argument, without a flag.
        minimum, maximum: bounds of a number [unit of the option].
        zero: whether zero is allowed.
        hidden: whether `--help` leaves it out.
        before_file: whether its value, one of the choices, stands before the name of a file.
        output: whether it names a file or folder that is written.
    """

    kind: Kind
    help: str
    unit: str = "-"
    group: str = ""
    flag: str = ""
    short: str = ""
    choices: tuple[str, ...] = ()
    several: bool = False
    repeated: bool = False
    positional: bool = False
    minimum: float | None = None
    maximum: float | None = None
    zero: bool = False
    hidden: bool = False
    before_file: bool = False
    output: bool = False

    @property
    def is_quantity(self) -> bool:
        """Whether its values are numbers with a unit."""
        return self.kind in _QUANTITIES

    @property
    def is_tuple(self) -> bool:
        """Whether a question holds a tuple of its values."""
        return self.several or self.kind == "settings"

    @property
    def empty(self) -> tuple[()] | None:
        """What a question holds where nothing is given and nothing is the default."""
        return () if self.is_tuple else None

    def read(self, value: Any, name: str) -> Any:
        """A value from outside as the question keeps it: SI numbers, texts, tuples, objects.

        Raises:
            InputError: not a value of this option.
        """
        read = _READERS.get(self.kind, _quantity)
        if not self.several:
            return read(self, value, name)
        parts = self._parts(value)
        require(parts, what=name, given=value, allowed="at least one value")
        return tuple(read(self, part, name) for part in parts)

    def write(self, value: Any) -> str:
        """The text that `read` reads as this value; an object is written by its name."""
        if not self.is_tuple:
            return self._write_one(value)
        parts = [self._write_one(one) for one in cast("tuple[Any, ...]", value)]
        if self.is_quantity:
            return ",".join(parts)
        return ";".join(re.sub(r"([;\\])", r"\\\1", part) for part in parts)  # which `parse` takes apart

    def parse(self, text: str) -> Any:
        """The value of a text that `write` wrote, for `read`."""
        if self.kind == "switch":
            return {"true": True, "false": False}.get(text, text)
        if self.is_quantity or not self.is_tuple:
            return text
        parts = re.finditer(r"(?:^|;)((?:[^;\\]|\\.)*)", text, re.DOTALL)
        return [re.sub(r"\\(.)", r"\1", part[1], flags=re.DOTALL) for part in parts]

    def _parts(self, value: Any) -> list[Any]:
        if isinstance(value, str) and self.is_quantity:
            return [part.strip() for part in value.split(",") if part.strip()]
        if isinstance(value, Sequence) and not isinstance(value, str):
            return [part for one in cast("Sequence[Any]", value) for part in self._parts(one)]
        return [value]

    def _write_one(self, value: Any) -> str:
        if isinstance(value, bool):
            return "true" if value else "false"
        if self.kind == "limit" and isinstance(value, int | float):
            return f"{value!r}s"
        if isinstance(value, int | float):
            text = str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))
            return text + (_QUANTITIES[self.kind][1] if self.is_quantity else "")
        return value if isinstance(value, str) else str(getattr(value, "name", value))


def option(kind: Kind, help_text: str, *, default: Any = MISSING, **more: Any) -> Any:
    """A field of a question that is an option, required where it has no default.

    Nothing (None) stands for the default; an option that may be nothing has None for it.

    Args:
        more: further fields of `Option`; `kw_only=False` makes it an argument.
    """
    return shared(Option(kind=kind, help=help_text), default=default, **more)


def shared(one: Option, *, default: Any = MISSING, **more: Any) -> Any:
    """An option that several questions have, as `option` makes it; `more` replaces fields of it."""
    named = more.pop("kw_only", True)
    return field(default=default, kw_only=named, metadata={"option": replace(one, positional=not named, **more)})


def tokens(help_text: str, *, minimum: float = 1.0, default: Any = MISSING, **more: Any) -> Any:
    """An option that counts tokens, such as 4k or 128Ki."""
    more = {"unit": "token", "minimum": minimum, "maximum": MOST_TOKENS, **more}
    return option("count", help_text, default=default, **more)


def whole(help_text: str, *, minimum: int = 1, maximum: float = MOST_CHIPS, default: Any = MISSING, **more: Any) -> Any:
    """An option that counts whole things."""
    more = {"unit": "count", "minimum": minimum, "maximum": maximum, "zero": minimum == 0, **more}
    return option("whole", help_text, default=default, **more)


def limit(what: str, example: str, *, default: Any = None) -> Any:
    """An option that limits a latency of most requests, or of their mean."""
    text = f"{what} that 99 of 100 requests stay below, such as {example}; another share: {example}@p90, {example}@mean"
    return option("limit", text, unit="s", default=default)


def absent(default: Any) -> Any:
    """A value of a group of questions that most of them have as an option; in the others it is always this."""
    return field(default=default, init=False)


def _switch(one: Option, value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise InputError(what=name, given=value, allowed="true or false")
    return value


def _quantity(one: Option, given: Any, name: str) -> float:
    bounds = {end: value for end in ("minimum", "maximum") if (value := getattr(one, end)) is not None}
    return _QUANTITIES[one.kind][0](given, name=name, zero_allowed=one.zero, **bounds)


def _limit(one: Option, value: Any, name: str) -> float | str:
    limit_s, percentile = parse_limit(value, name=name, maximum=MOST_SECONDS)
    return limit_s if percentile == USUAL_PERCENTILE else format_limit(limit_s, percentile)


def _text(one: Option, value: Any, name: str) -> str:
    if isinstance(value, bool):
        raise InputError(what=name, given=value, allowed="a text")
    if isinstance(value, int | float):
        value = repr(value)
    if not isinstance(value, str | Path):
        label = getattr(value, "label", None)
        if not callable(label):
            raise InputError(what=name, given=value, allowed="a text")
        value = label()
    text = str(value)
    require(text.strip(), what=name, given=text, allowed=", ".join(one.choices) or "a text that is not empty")
    if one.choices and text not in one.choices:
        raise unknown_name(name, text, one.choices)
    return text


def _settings(one: Option, value: Any, name: str) -> tuple[str, ...]:
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value).items()
        return tuple(f"{key}={number!r}" if isinstance(number, float) else f"{key}={number}" for key, number in pairs)
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Sequence):
        parts = tuple(cast("Sequence[Any]", value))
        if all(isinstance(part, str) for part in parts):
            return parts
    raise InputError(what=name, given=cast("object", value), allowed="KEY=VALUE, such as hbm_bytes_per_s=20e12")


def _name_or_object(one: Option, value: Any, name: str) -> Any:
    """Names and files are texts; an object passes as it is."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, bool | int | float | Mapping | list | tuple) or (isinstance(value, str) and not value.strip()):
        raise InputError(what=name, given=cast("object", value), allowed="a name or a file")
    return value


_READERS: Mapping[str, Callable[[Option, Any, str], Any]] = {
    "switch": _switch,
    "settings": _settings,
    "object": _name_or_object,
    "text": _text,
    "limit": _limit,
}


@dataclass_transform(
    frozen_default=True, kw_only_default=True, field_specifiers=(option, shared, tokens, whole, limit, absent)
)
def question(kind: type[T]) -> type[T]:
    """Make a class a question: a frozen dataclass of options. It has no slots, since it may have several groups."""
    return dataclass(frozen=True, kw_only=True)(kind)


@dataclass_transform(
    frozen_default=True, kw_only_default=True, field_specifiers=(option, shared, tokens, whole, limit, absent)
)
def group(kind: type[T]) -> type[T]:
    """Make a class a group of options that questions inherit; it is never made itself, which halves its cost."""
    return dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)(kind)


@question
class Question:
    """A question: its fields are the options, in SI units once it is made.

    A field takes an SI number or a text with a unit, a name or an object. Two questions are equal when they ask
    the same, however their quantities were written.
    """

    ask: ClassVar[str]
    """Its command; from the name of the class where it states none: `InferPricesQuestion`, `infer-prices`."""
    headings: ClassVar[Mapping[str, str]] = {}
    """Headings of `--help` for options of its groups that stand under another one here."""

    def __init_subclass__(cls) -> None:
        if "ask" not in vars(cls):
            cls.ask = "-".join(re.findall("[A-Z][a-z]*", cls.__name__.removesuffix("Question"))).lower()

    def __post_init__(self) -> None:
        """Read each value once, as its option says; nothing is the default."""
        usual = written_defaults(type(self))
        for name, one in options(type(self)).items():
            given = getattr(self, name)
            if given is None or (given == () and usual.get(name, given) is None):  # so that `replace` reads it again
                given = usual.get(name)
            object.__setattr__(self, name, one.empty if given is None else one.read(given, name))

    def check_options(self) -> None:
        """Refuse options that contradict or miss each other, before anything is read or computed.

        A question, or a group of options, refuses its own and then calls `super().check_options()`.

        Raises:
            InputError: such options, in the words of the question.
        """

    def changed(self) -> dict[str, Any]:
        """The options whose values are not the default ones."""
        return self.given(*options(type(self)))

    def given(self, *names: str) -> dict[str, Any]:
        """The options among these whose values are not the default ones, in this order."""
        usual = defaults(type(self))
        return {name: getattr(self, name) for name in names if name not in usual or usual[name] != getattr(self, name)}

    def refuse(self, *names: str, allowed: str, nearest: str | None = None) -> None:
        """Refuse options that do not belong to what is asked.

        Args:
            allowed, nearest: as in `InputError`.

        Raises:
            InputError: one of them is given.
        """
        for name, value in self.given(*names).items():
            shown = ", ".join(map(str, cast("tuple[Any, ...]", value))) if isinstance(value, tuple) else value
            if isinstance(shown, float) and shown.is_integer():
                shown = int(shown)
            raise InputError(what=name, given=shown, allowed=allowed, nearest=nearest)

    def either(self, *names: str) -> dict[str, Any]:
        """The option among these that is given, None where none is.

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
        return {"ask": self.ask, **{name: _plain(value) for name, value in self.changed().items()}}

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
    return {
        field.name: replace(one, group=kind.headings.get(field.name, one.group))
        for field in fields(kind)
        if (one := field.metadata.get("option"))
    }


@cache
def written_defaults(kind: type[Question]) -> dict[str, Any]:
    """The default of each field that has one, as it is written in the source ("8k")."""
    known = options(kind)
    return {field.name: field.default for field in fields(kind) if field.name in known and field.default is not MISSING}


@cache
def defaults(kind: type[Question]) -> dict[str, Any]:
    """The default of each field that has one, as the question keeps it (8000.0)."""
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
            raise unknown_name(kind.ask, name, known)
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
        >>> from rackline.api.explain import FitQuestion
        >>> command_of(FitQuestion("llama-3.1-8b", on="dgx-h100", context="32k"))
        'rackline fit llama-3.1-8b --on dgx-h100 --context 32000'
    """
    known = options(type(question))
    words = ["rackline", question.ask]
    for name, value in question.changed().items():
        one = known[name]
        flag = [] if one.positional else [flag_of(name, one)]
        if one.kind == "switch":
            words += flag
        elif isinstance(value, tuple) and not one.is_quantity:
            words += [word for part in cast("tuple[Any, ...]", value) for word in (*flag, str(part))]
        elif value is not None:
            words += [*flag, one.write(value)]
    return shlex.join(words)


def folded_command(question: Question, width: int) -> str:
    """The command that asks the same, broken before options so that it fits a width and can still be pasted.

    Example:
        >>> from rackline.api.explain import FitQuestion
        >>> print(folded_command(FitQuestion("llama-3.1-8b", on="dgx-h100", context="32k"), 50))
        rackline fit llama-3.1-8b --on dgx-h100 \\
          --context 32000
    """
    lines = [""]
    for part in re.split(r" (?=--)", command_of(question)):
        if lines[-1] and len(lines[-1]) + len(part) + len(" " + _GOES_ON) > width:
            lines[-1] += _GOES_ON
            lines.append(f"  {part}")
        else:
            lines[-1] += f" {part}" if lines[-1] else part
    return "\n".join(lines)


def python_of(question: Question) -> str:
    """The call that asks the same, where `rl` is `rackline`.

    Example:
        >>> from rackline.api.explain import FitQuestion
        >>> python_of(FitQuestion("llama-3.1-8b", on="dgx-h100", context="32k"))
        "rl.fit('llama-3.1-8b', on='dgx-h100', context=32000)"
    """
    flags = {name: "" if one.positional else f"{name}=" for name, one in options(type(question)).items()}
    given = sorted(question.changed().items(), key=lambda one: flags[one[0]] != "")  # arguments before keywords
    words = (f"{flags[name]}{_python(value)}" for name, value in given)
    return f"rl.{entries()[question.ask].function}({', '.join(words)})"


def _plain(value: Any) -> Any:
    """A value of a question as data; an object is written by its name."""
    if isinstance(value, tuple):
        return list(cast("tuple[Any, ...]", value))
    return value if value is None or isinstance(value, str | bool | int | float) else str(getattr(value, "name", value))


def _python(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(_python(one) for one in cast('tuple[Any, ...]', value))}]"
    whole_number = isinstance(value, float) and value.is_integer() and abs(value) < 1e15
    return repr(int(value) if whole_number else _plain(value))

"""One option of a question: its help, unit, bounds and flag, how its text is read and how its value is written.

The command line, the keyword arguments, files of questions, JSON Schema and addresses are all made from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, cast

from rackline.errors import InputError, nearest_names
from rackline.units import (
    Bounds,
    Quantity,
    parse_bytes,
    parse_count,
    parse_fraction,
    parse_limit,
    parse_per_second,
    parse_rate,
    parse_seconds,
    parse_usd_per_hour,
    parse_usd_per_month,
    parse_watts,
    parse_whole,
)

if TYPE_CHECKING:
    from rackline.arch import AnyModel
    from rackline.hardware import Cluster
    from rackline.parallel import Layout
    from rackline.passes import Calibration

Taken = TypeVar("Taken", contravariant=True)
Held = TypeVar("Held", covariant=True)


class Reads(Generic[Taken, Held]):
    """The type of a field that takes a text or a number and, once the question is made, holds the value of it.

    Only type checkers read it.
    """

    def __get__(self, question: object, kind: Any) -> Held: ...
    def __set__(self, question: object, value: Taken) -> None: ...


ModelLike: TypeAlias = "str | Path | AnyModel"
ClusterLike: TypeAlias = "str | Path | Cluster"
CalibrationLike: TypeAlias = "str | Path | Calibration"
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
MaybeLayout: TypeAlias = "Reads[str | Layout | None, str | None]"

MOST_TOKENS = 1e9
MOST_SECONDS = 86400.0
MOST_USD = 1e6
MOST_CHIPS = 1e9

Kind = Literal[
    "text", "switch", "settings", "object", "limit", "seconds", "count", "whole", "fraction", "rate", "per_second",
    "bytes", "usd_per_hour", "usd_per_month", "watts",
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
    "usd_per_hour": (parse_usd_per_hour, ""),
    "usd_per_month": (parse_usd_per_month, ""),
    "watts": (parse_watts, "W"),
}
_ESCAPED = {";": "\\;", "\\": "\\\\"}


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
        if not parts:
            raise InputError(what=name, given=value, allowed="at least one value")
        return tuple(read(self, part, name) for part in parts)

    def write(self, value: Any) -> str:
        """The text that `read` reads as this value; an object is written by its name."""
        if self.is_tuple:
            parts = [self._write_one(one) for one in cast("tuple[Any, ...]", value)]
            if self.is_quantity:
                return ",".join(parts)
            return ";".join("".join(_ESCAPED.get(letter, letter) for letter in part) for part in parts)
        return self._write_one(value)

    def parse(self, text: str) -> Any:
        """The value of a text that `write` wrote, for `read`."""
        if self.kind == "switch":
            return {"true": True, "false": False}.get(text, text)
        return _split(text) if self.is_tuple and not self.is_quantity else text

    def _parts(self, value: Any) -> list[Any]:
        if isinstance(value, str):
            if self.is_quantity:
                return [part.strip() for part in value.split(",") if part.strip()]
            return [value]
        if isinstance(value, Sequence):
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
    """The same for an option that several questions have; `more` replaces fields of it."""
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
    """An option that limits a latency, at its mean or at a percentile."""
    text = f"largest {what}: of the mean, such as {example}, or of a percentile: {example}@p99"
    return option("limit", text, unit="s", default=default)


def absent(default: Any) -> Any:
    """A value of a group of questions that most of them have as an option; in the others it is always this."""
    return field(default=default, init=False)


def _switch(one: Option, value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise InputError(what=name, given=value, allowed="true or false")
    return value


def _quantity(one: Option, value: Any, name: str) -> float:
    bounds: Bounds = {"zero_allowed": one.zero}
    if one.minimum is not None:
        bounds["minimum"] = one.minimum
    if one.maximum is not None:
        bounds["maximum"] = one.maximum
    return _QUANTITIES[one.kind][0](value, name=name, **bounds)


def _limit(one: Option, value: Any, name: str) -> float | str:
    limit_s, percentile = parse_limit(value, name=name, maximum=MOST_SECONDS)
    return limit_s if percentile is None else f"{limit_s!r}s@p{percentile:g}"


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
    if not text.strip():
        raise InputError(what=name, given=text, allowed=", ".join(one.choices) or "a text that is not empty")
    if one.choices and text not in one.choices:
        near = nearest_names(text, one.choices, 1)
        raise InputError(what=name, given=text, allowed=", ".join(one.choices), nearest=near[0] if near else None)
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
    plain = isinstance(value, bool | int | float | Mapping | list | tuple)
    if plain or (isinstance(value, str) and not value.strip()):
        raise InputError(what=name, given=cast("object", value), allowed="a name or a file")
    return value


_READERS: Mapping[str, Callable[[Option, Any, str], Any]] = {
    "switch": _switch,
    "settings": _settings,
    "object": _name_or_object,
    "text": _text,
    "limit": _limit,
}


def _split(text: str) -> list[str]:
    """Parts between semicolons; a backslash makes the next letter an ordinary one."""
    parts, escaped = [""], False
    for letter in text:
        if escaped:
            parts[-1] += letter
            escaped = False
        elif letter == "\\":
            escaped = True
        elif letter == ";":
            parts.append("")
        else:
            parts[-1] += letter
    return parts

"""One option of a question: its help, unit, bounds and flag, in the metadata of the question's field.

The command line, the keyword arguments, files of questions, JSON Schema and addresses are all made from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, assert_never, cast, overload

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
    parse_watts,
    parse_whole,
)

if TYPE_CHECKING:
    from rackline.arch import AnyModel
    from rackline.hardware import Chip, Cluster
    from rackline.parallel import Layout
    from rackline.passes import Calibration

    ModelLike = str | Path | AnyModel
    ChipLike = str | Path | Chip
    ClusterLike = str | Path | Cluster
    CalibrationLike = str | Path | Calibration
    LayoutLike = str | Layout
    Settings = Mapping[str, str | float] | Sequence[str] | str
    Texts = str | Sequence[str]
    Quantities = Quantity | Sequence[Quantity]

MOST_TOKENS = 1e9
MOST_SECONDS = 86400.0
MOST_USD = 1e6
MOST_CHIPS = 1e9

Kind = Literal[
    "text", "switch", "settings", "object", "limit", "seconds", "count", "whole", "fraction", "rate", "per_second",
    "bytes", "usd_per_hour", "watts",
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

    def read(self, value: Any, name: str) -> Any:
        """A value from outside as the question keeps it: SI numbers, texts, tuples, objects.

        Raises:
            InputError: not a value of this option.
        """
        if self.several:
            parts = self._parts(value)
            if not parts:
                raise InputError(what=name, given=value, allowed="at least one value")
            return tuple(part for one in parts for part in self._one(one, name))
        (found,) = self._one(value, name)
        return found

    def write(self, value: Any) -> str:
        """The text that `read` reads as this value; an object is written by its name."""
        if self.several or self.kind == "settings":
            parts = [self._write_one(one) for one in cast("tuple[Any, ...]", value)]
            if self.is_quantity:
                return ",".join(parts)
            return ";".join("".join(_ESCAPED.get(letter, letter) for letter in part) for part in parts)
        return self._write_one(value)

    def parse(self, text: str) -> Any:
        """The value of a text that `write` wrote, for `read`."""
        match self.kind:
            case "switch":
                return {"true": True, "false": False}.get(text, text)
            case "settings":
                return _split(text)
            case "text" | "object" | "limit":
                return _split(text) if self.several else text
            case (
                "seconds" | "count" | "whole" | "fraction" | "rate" | "per_second" | "bytes" | "usd_per_hour" | "watts"
            ):
                return text
            case _:
                assert_never(self.kind)

    def _parts(self, value: Any) -> list[Any]:
        if isinstance(value, str):
            if self.is_quantity:
                return [part.strip() for part in value.split(",") if part.strip()]
            return [value]
        if isinstance(value, Sequence):
            return [part for one in cast("Sequence[Any]", value) for part in self._parts(one)]
        return [value]

    def _one(self, value: Any, name: str) -> tuple[Any, ...]:
        match self.kind:
            case "switch":
                if not isinstance(value, bool):
                    raise InputError(what=name, given=value, allowed="true or false")
                return (value,)
            case "settings":
                return (_settings(value, name),)
            case "object":
                return (_name_or_object(value, name),)
            case "text":
                return (self._text(value, name),)
            case "limit":
                limit_s, percentile = parse_limit(value, name=name, maximum=MOST_SECONDS)
                return (limit_s if percentile is None else f"{limit_s!r}s@p{percentile:g}",)
            case (
                "seconds" | "count" | "whole" | "fraction" | "rate" | "per_second" | "bytes" | "usd_per_hour" | "watts"
            ):
                return (self._quantity(value, name),)
            case _:
                assert_never(self.kind)

    def _quantity(self, value: Any, name: str) -> float:
        bounds: Bounds = {"zero_allowed": self.zero}
        if self.minimum is not None:
            bounds["minimum"] = self.minimum
        if self.maximum is not None:
            bounds["maximum"] = self.maximum
        return _QUANTITIES[self.kind][0](value, name=name, **bounds)

    def _text(self, value: Any, name: str) -> str:
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
            raise InputError(what=name, given=text, allowed=", ".join(self.choices) or "a text that is not empty")
        if self.choices and text not in self.choices:
            near = nearest_names(text, self.choices, 1)
            raise InputError(what=name, given=text, allowed=", ".join(self.choices), nearest=near[0] if near else None)
        return text

    def _write_one(self, value: Any) -> str:
        if isinstance(value, bool):
            return "true" if value else "false"
        if self.kind == "limit" and isinstance(value, int | float):
            return f"{value!r}s"
        if isinstance(value, int | float):
            text = str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))
            return text + (_QUANTITIES[self.kind][1] if self.is_quantity else "")
        return value if isinstance(value, str) else str(getattr(value, "name", value))


def option(kind: Kind, help_text: str, **more: Any) -> dict[str, Option]:
    """Metadata for `dataclasses.field` that makes the field an option; `more` are further fields of `Option`."""
    return {"option": Option(kind=kind, help=help_text, **more)}


def tokens(help_text: str, minimum: float = 1.0, **more: Any) -> dict[str, Option]:
    """An option that counts tokens, such as 4k or 128Ki."""
    return option("count", help_text, unit="token", minimum=minimum, maximum=MOST_TOKENS, **more)


def whole(help_text: str, minimum: int = 1, maximum: float = MOST_CHIPS, **more: Any) -> dict[str, Option]:
    """An option that counts whole things."""
    return option("whole", help_text, unit="count", minimum=minimum, maximum=maximum, zero=minimum == 0, **more)


def latency(help_text: str, **more: Any) -> dict[str, Option]:
    """An option that is a time of a request."""
    return option("seconds", help_text, unit="s", maximum=MOST_SECONDS, **more)


def limit(what: str, example: str) -> dict[str, Option]:
    """An option that limits a latency, at its mean or at a percentile."""
    return option(
        "limit", f"largest {what}: of the mean, such as {example}, or of a percentile: {example}@p99", unit="s"
    )


@overload
def si(value: Quantity) -> float: ...
@overload
def si(value: None) -> None: ...
@overload
def si(value: Quantity | None) -> float | None: ...
def si(value: Quantity | None) -> float | None:
    """A quantity of a question as the SI number that the question has made of it."""
    return None if value is None else float(value)


@overload
def count(value: Quantity) -> int: ...
@overload
def count(value: None) -> None: ...
@overload
def count(value: Quantity | None) -> int | None: ...
def count(value: Quantity | None) -> int | None:
    """A whole number of a question."""
    return None if value is None else int(value)


def texts(value: Texts | Quantities | Settings | None) -> tuple[str, ...]:
    """Texts of a question, which are a tuple by now; empty for None."""
    return () if value is None else cast("tuple[str, ...]", value)


def numbers(value: Quantities | None) -> tuple[float, ...]:
    """SI numbers of a question that holds several; empty for None."""
    return () if value is None else tuple(float(one) for one in cast("Sequence[float]", value))


def layout_text(value: LayoutLike | None) -> str | None:
    """The text of a layout that may have been given as an object, which is a text by now."""
    return cast("str | None", value)


def _settings(value: Any, name: str) -> tuple[str, ...]:
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


def _name_or_object(value: Any, name: str) -> Any:
    """Names and files are texts; an object passes as it is."""
    if isinstance(value, Path):
        return str(value)
    plain = isinstance(value, bool | int | float | Mapping | list | tuple)
    if plain or (isinstance(value, str) and not value.strip()):
        raise InputError(what=name, given=cast("object", value), allowed="a name or a file")
    return value


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

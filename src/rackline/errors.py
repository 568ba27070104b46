"""The errors that rackline raises on bad input.

Every message is a single line that says what was given, what is allowed, where, and the nearest valid
name or value. The command line prints that line and exits with status 2.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager

_LONGEST = 240  # characters of what was given that are printed


class RacklineError(Exception):
    """Base of all errors that rackline raises on purpose; ``str()`` is one line."""

    def __str__(self) -> str:
        """Return the message with all line breaks folded into spaces."""
        return " ".join(super().__str__().split())


class InputError(RacklineError):
    """A value from outside that rackline cannot use.

    Args:
        what: What the value is, in the reader's words ("chip", "--tpot").
        given: The value as it was given.
        allowed: What would have been accepted.
        where: File, line and key, or the argument it came from; may be empty.
        nearest: The nearest accepted name or value, if there is one.

    Example:
        >>> print(InputError(what="chip", given="h1000", allowed="a catalogue name", nearest="h100-sxm"))
        chip: got 'h1000', allowed: a catalogue name; nearest: h100-sxm
    """

    def __init__(self, *, what: str, given: object, allowed: str, where: str = "", nearest: str | None = None) -> None:
        self.what = what
        self.given = given
        self.allowed = allowed
        self.where = where
        self.nearest = nearest
        prefix = ": ".join(part for part in (where, what) if part)
        text = shown(given)
        message = f"{prefix}: got {text}" if prefix else f"got {text}"
        if allowed:
            message += f", allowed: {allowed}"
        if nearest:
            message += f"; nearest: {nearest}"
        super().__init__(harmless(message))

    def __reduce__(self) -> tuple[object, ...]:
        """Rebuild from the keyword arguments, so that errors cross process borders."""
        return (
            _rebuild,
            (
                type(self),
                {
                    "what": self.what,
                    "given": self.given,
                    "allowed": self.allowed,
                    "where": self.where,
                    "nearest": self.nearest,
                },
            ),
        )


def require(
    holds: object, *, what: str, given: object, allowed: str, where: str = "", nearest: str | None = None
) -> None:
    """Refuse a value from outside unless a condition holds; the other arguments are those of `InputError`.

    >>> require(2 > 1, what="number", given=2, allowed="above 1")
    """
    if not holds:
        raise InputError(what=what, given=given, allowed=allowed, where=where, nearest=nearest)


@contextmanager
def placed(where: str) -> Generator[None]:
    """Give refusals of what runs inside their place, such as a file and its line, unless they name one.

    Example:
        >>> with placed("mix.csv, line 3"):
        ...     require(False, what="share", given=-1, allowed="0 or more")
        Traceback (most recent call last):
        ...
        rackline.errors.InputError: mix.csv, line 3: share: got -1, allowed: 0 or more
    """
    try:
        yield
    except InputError as error:
        if error.where:
            raise
        raise type(error)(
            what=error.what, given=error.given, allowed=error.allowed, where=where, nearest=error.nearest
        ) from None


class UnitError(InputError):
    """A text or number that is not a usable quantity of the wanted kind."""


class UnknownNameError(InputError):
    """A name that is neither in the catalogue nor an existing file."""


class CatalogError(InputError):
    """A catalogue file, or an override of one of its values, that breaks the schema."""


class ConfigError(InputError):
    """A Hugging Face ``config.json`` that cannot be read as a model."""


class HubError(InputError):
    """A model on the Hugging Face Hub that cannot be read: missing, private, gated, or out of reach."""


class LayoutError(InputError):
    """A parallel layout that does not fit the model or the cluster."""


class PrecisionError(InputError):
    """A data type that the chip or the model does not support."""


# what a terminal would obey: C0 without tab and line feed, delete, C1
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def harmless(text: str) -> str:
    r"""A text of others with its control characters written out.

    >>> harmless("\x1b[31mred")
    '\\x1b[31mred'
    """
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def shown(value: object) -> str:
    """What was given as text, cut where it is long."""
    try:
        text = repr(value[:_LONGEST] if isinstance(value, str) else value)
    except (ValueError, RecursionError):  # a whole number of thousands of digits; nesting without bound
        text = f"a {type(value).__name__} that is too long to print"
    if len(text) > _LONGEST or (isinstance(value, str) and len(value) > _LONGEST):
        return f"{text[: _LONGEST - 40]} ... ({len(value) if isinstance(value, str) else len(text):,} characters)"
    return text


def _rebuild(kind: type[InputError], values: dict[str, object]) -> InputError:
    return kind(**values)  # type: ignore[arg-type]


def nearest_names(name: str, candidates: Iterable[str], n: int = 3) -> list[str]:
    """Return up to ``n`` candidates that look most like ``name``, best first, ignoring case.

    Args:
        name: The name that was not found.
        candidates: The names that exist.
        n: How many to return at most [count].

    Returns:
        The similar names; empty when none is similar enough.

    Example:
        >>> nearest_names("H100", ["h100-sxm", "a100-sxm-80gb", "tpu-v5e"])
        ['h100-sxm']
    """
    by_lower = {candidate.lower(): candidate for candidate in candidates}
    wanted = name.lower()
    close = difflib.get_close_matches(wanted, by_lower, n=n, cutoff=0.5)
    for lower in sorted(by_lower, key=len):
        if len(close) >= n:
            break
        if wanted and lower not in close and (lower.startswith(wanted) or wanted.startswith(lower)):
            close.append(lower)
    return [by_lower[lower] for lower in close[:n]]


def nearest_name(given: object, candidates: Iterable[str]) -> str | None:
    """The candidate that looks most like what was given; None when none is similar enough, or it is no text.

    Example:
        >>> nearest_name("llama3", ["llama", "qwen"])
        'llama'
    """
    return next(iter(nearest_names(given, candidates, 1)), None) if isinstance(given, str) else None


def unknown_name(
    what: str, given: object, known: Iterable[str], kind: type[InputError] = InputError, where: str = ""
) -> InputError:
    """The error that a name is none of those known, with the nearest of them."""
    names = list(known)
    return kind(what=what, given=given, allowed=", ".join(names), where=where, nearest=nearest_name(given, names))

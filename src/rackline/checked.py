"""Checks of floats and arrays that closed forms take."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from rackline.errors import InputError

Num = TypeVar("Num", bound=float | NDArray[np.float64])
"""A float or an array of floats: what comes in decides what goes out."""

Formula = TypeVar("Formula", bound=Callable[..., Any])


def checked(
    where: str, *, zero: tuple[str, ...] = (), at_least_one: tuple[str, ...] = (), **values: object
) -> tuple[Any, ...]:
    """Return the values as float arrays, refusing all that is not a positive finite number.

    Args:
        where: name of the function that asks, for the message.
        zero: names for which 0 is allowed as well.
        at_least_one: names for which nothing below 1 is allowed.
        values: the arguments by name.

    Returns:
        The values in the order given, as arrays of float64.

    Raises:
        InputError: a text, NaN, infinite, negative or (unless allowed) zero value; shapes that clash.

    >>> checked("example", batch_size=0.0)
    Traceback (most recent call last):
    rackline.errors.InputError: example: batch_size: got 0.0, allowed: a finite number above 0
    """
    arrays: list[NDArray[np.float64]] = []
    for name, value in values.items():
        allowed = "a finite number above 0"
        if name in zero or name in at_least_one:
            allowed = f"a finite number of at least {0 if name in zero else 1}"
        raw: NDArray[Any] | None
        try:
            raw = np.asarray(value)
        except ValueError:  # nested lists of unequal length
            raw = None
        if raw is None or raw.dtype.kind not in "iuf":
            raise InputError(what=name, given=value, allowed=allowed, where=where)
        array = raw.astype(np.float64)
        good = np.isfinite(array) & ((array >= 0.0) if name in zero else (array > 0.0))
        if name in at_least_one:
            good &= array >= 1.0
        if not good.all():
            raise InputError(what=name, given=float(array[~good].flat[0]), allowed=allowed, where=where)
        arrays.append(array)
    try:
        np.broadcast_shapes(*(array.shape for array in arrays))
    except ValueError:
        shapes = {name: array.shape for name, array in zip(values, arrays, strict=True)}
        raise InputError(what="shapes", given=shapes, allowed="shapes that broadcast together", where=where) from None
    return tuple(arrays)


def plain(value: Any) -> Any:
    """Return a 0-d array or NumPy scalar as a Python float and any other array as it is."""
    return float(value) if np.ndim(value) == 0 else value


def positive(*, zero: tuple[str, ...] = (), at_least_one: tuple[str, ...] = ()) -> Callable[[Formula], Formula]:
    """Decorate a formula whose arguments are positive finite numbers: they come to it as float arrays, see `checked`.

    Args:
        zero: names for which 0 is allowed as well.
        at_least_one: names for which nothing below 1 is allowed.

    >>> @positive(zero=("think_s",))
    ... def whole_s(run_s: float, think_s: float = 0.0) -> float:
    ...     return plain(run_s + think_s)
    >>> whole_s(2.0)
    2.0
    """

    def of(formula: Formula) -> Formula:
        taken = signature(formula)

        @wraps(formula)
        def checked_formula(*values: Any, **named: Any) -> Any:
            given = taken.bind(*values, **named)
            given.apply_defaults()
            return formula(*checked(formula.__name__, zero=zero, at_least_one=at_least_one, **given.arguments))

        return cast("Formula", checked_formula)

    return of

"""Texts of a training run → objects: stacks, schedules, recompute, whole batches."""

from __future__ import annotations

from collections.abc import Sequence

from rackline.catalog import names
from rackline.errors import InputError, UnknownNameError, nearest_names
from rackline.training.runs import RECOMPUTE, SCHEDULES
from rackline.training.stack import TrainingStack, training_stack
from rackline.units import parse_count

ROUNDING = 0.06
"""How far a batch may be moved to the nearest power of two: 16M tokens in sequences of 8192 are 2048 of them."""


def find_train_stack(name: str) -> TrainingStack:
    """A training stack by name or file.

    Raises:
        UnknownNameError: neither.
        CatalogError: a file that breaks the schema.
    """
    try:
        return training_stack(name)
    except UnknownNameError as error:
        if name.endswith(".toml"):
            raise
        known = (*names("training_stacks"), "unit")
        near = nearest_names(name, known, 1)
        raise UnknownNameError(
            what="--stack",
            given=name,
            allowed=f"{', '.join(known)} or a TOML file",
            nearest=near[0] if near else None,
        ) from error


def read_schedules(given: Sequence[str] | None) -> tuple[str, ...]:
    """Schedules to look at; all by default."""
    return _several(given, SCHEDULES, "--schedule") or SCHEDULES


def read_recompute(given: Sequence[str] | None) -> tuple[str, ...]:
    """Ways to recompute to look at; all but reversible by default, which is another model."""
    return _several(given, RECOMPUTE, "--recompute") or ("none", "selective", "full")


def _several(given: Sequence[str] | None, allowed: Sequence[str], option: str) -> tuple[str, ...]:
    for name in given or ():
        if name not in allowed:
            near = nearest_names(name, allowed, 1)
            raise InputError(what=option, given=name, allowed=", ".join(allowed), nearest=near[0] if near else None)
    return tuple(given or ())


def whole_batch(tokens: float, seq_len: int) -> int:
    """Sequences of a batch of so many tokens: the exact number, else the power of two within 6 %, else the nearest.

    Raises:
        InputError: less than one sequence.

    >>> whole_batch(16e6, 8192), whole_batch(4096.0 * 96, 4096)
    (2048, 96)
    """
    exact = tokens / seq_len
    if exact < 0.5:
        raise InputError(
            what="--global-batch",
            given=f"{tokens:g} tokens",
            allowed=f"at least one sequence of {seq_len} tokens",
            nearest=str(seq_len),
        )
    if exact.is_integer():
        return int(exact)
    power = 1 << max(0, round(exact).bit_length() - 1)
    near = min((power, 2 * power), key=lambda n: abs(n - exact))
    return near if abs(near / exact - 1.0) <= ROUNDING else max(1, round(exact))


def busiest(load: str, capacity: str | None) -> float:
    """Tokens of the busiest expert rank over the mean, cut where a capacity factor drops the rest [1].

    Raises:
        InputError: less than the mean.

    >>> busiest("1.4", "1.25"), busiest("1", None)
    (1.25, 1.0)
    """
    found = parse_count(load, name="--expert-load", minimum=1.0, maximum=1000.0)
    most = found if capacity is None else parse_count(capacity, name="--capacity", minimum=1.0, maximum=1000.0)
    return min(found, most)

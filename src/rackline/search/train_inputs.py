"""Texts of a training run → objects: stacks, schedules, recomputation, divisible batches."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rackline.catalog import names
from rackline.errors import InputError, UnknownNameError, nearest_names
from rackline.training.memory import CHEAPEST_FIRST
from rackline.training.runs import RECOMPUTE, SCHEDULES
from rackline.training.stack import TrainingStack, default_training_stack, training_stack

MICRO_BATCHES_OF_A_STEP = 64
"""Micro-batches of a step on each replica up to which a rounded batch is divided further."""
ROUNDING = 0.06
"""How far a batch may be moved so that replicas can share it: 16M tokens in sequences of 8192 are 2048 of them."""


def find_train_stack(name: str | None) -> TrainingStack:
    """A training stack by name or file; the catalogue's default without one.

    Raises:
        UnknownNameError: neither.
        CatalogError: a file that breaks the schema.
    """
    if name is None:
        return training_stack(default_training_stack())
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


def read_schedules(given: Sequence[str] | None, stack: TrainingStack) -> tuple[str, ...]:
    """Schedules to look at; those that the stack has by default."""
    return _several(given, SCHEDULES, "--schedule") or stack.schedules


def read_recompute(given: Sequence[str] | None) -> tuple[str, ...]:
    """Ways to recompute to look at; all but reversible by default, which is another model."""
    return _several(given, RECOMPUTE, "--recompute") or CHEAPEST_FIRST


def _several(given: Sequence[str] | None, allowed: Sequence[str], option: str) -> tuple[str, ...]:
    for name in given or ():
        if name not in allowed:
            near = nearest_names(name, allowed, 1)
            raise InputError(what=option, given=name, allowed=", ".join(allowed), nearest=near[0] if near else None)
    return tuple(given or ())


def whole_batch(tokens: float, seq_len: int, num_chips: int) -> int:
    """Sequences of a batch of about this many tokens: within 6 %, the count that replicas divide best.

    Replicas share a batch evenly and their number divides the chips, so what counts is the greatest common divisor of
    sequences and chips. A whole count with which it is as large as with any other stays; else the count wins with which
    it is largest, of equals the one that micro-batches divide further, and of those the nearest.

    Args:
        tokens: asked for [tokens].
        seq_len: [tokens].
        num_chips: [count].

    Raises:
        InputError: less than one sequence.

    >>> whole_batch(16e6, 8192, 1024), whole_batch(4096.0 * 1000, 4096, 8), whole_batch(64e6, 4096, 512)
    (2048, 1000, 16384)
    >>> whole_batch(4e6, 8192, 2000)  # 500 replicas divide 500 sequences; 512 is a rounder number, but 16 divide it
    500
    """
    exact = tokens / seq_len
    if exact < 0.5:
        raise InputError(
            what="--global-batch",
            given=f"{tokens:g} tokens",
            allowed=f"at least one sequence of {seq_len} tokens",
            nearest=str(seq_len),
        )
    low, high = math.ceil(exact * (1.0 - ROUNDING)), math.floor(exact * (1.0 + ROUNDING))
    near = np.arange(max(low, 1), max(high, 1) + 1)
    near = near[np.argsort(np.abs(near - exact), kind="stable")]
    if not near.size or low > high:
        return max(1, round(exact))
    shared = np.gcd(near, num_chips)
    if exact.is_integer() and math.gcd(int(exact), num_chips) == int(shared.max()):
        return int(exact)
    near = near[shared == shared.max()]
    return int(near[np.argmax(np.gcd(near, num_chips * MICRO_BATCHES_OF_A_STEP))])

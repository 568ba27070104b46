"""The additive coupling of Feistel ciphers and reversible networks: an invertible map from any function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def couple(x: T, y: T, function: Callable[[T], T], add: Callable[[T, T], T]) -> tuple[T, T]:
    """Mix two halves reversibly, with any function.

    (x, y) -> (x, y + f(x))

    Args:
        x: half that stays the same.
        y: half that is changed.
        function: f, any function of x; it need not have an inverse.
        add: +, an invertible operation: sum, sum modulo a number, exclusive or.

    Returns:
        Both halves.

    Sources: lecture C130, C131; Feistel 1973; Gomez et al. 2017, arXiv:1707.04585.

    >>> import operator
    >>> couple(5, 9, lambda x: x * x, operator.add)
    (5, 34)
    """
    return x, add(y, function(x))


def uncouple(x: T, z: T, function: Callable[[T], T], subtract: Callable[[T, T], T]) -> tuple[T, T]:
    """Undo `couple`.

    (x, z) -> (x, z - f(x))

    Args:
        x: half that stayed.
        z: half that was changed.
        function: the same f.
        subtract: inverse of the operation; exclusive or is its own inverse.

    Returns:
        Both halves as they were: exactly for integers, within rounding for floats.

    Sources: lecture C130, C131.

    >>> import operator
    >>> uncouple(5, 34, lambda x: x * x, operator.sub)
    (5, 9)
    """
    return x, subtract(z, function(x))


def coupled_rounds(x: T, y: T, functions: Sequence[Callable[[T], T]], add: Callable[[T, T], T]) -> tuple[T, T]:
    """Rounds of `couple`, with the halves swapped after each.

    Args:
        x: first half.
        y: second half.
        functions: f of each round.
        add: see `couple`.

    Returns:
        Both halves after the last round.

    Sources: lecture C130, C131.
    """
    for function in functions:
        kept, changed = couple(x, y, function, add)
        x, y = changed, kept
    return x, y


def uncoupled_rounds(x: T, y: T, functions: Sequence[Callable[[T], T]], subtract: Callable[[T, T], T]) -> tuple[T, T]:
    """Undo `coupled_rounds`, from the last round to the first.

    Args:
        x: first half.
        y: second half.
        functions: f of each round, in the order of `coupled_rounds`.
        subtract: see `uncouple`.

    Returns:
        Both halves before the first round.

    Sources: lecture C130 to C132.

    >>> import operator
    >>> rounds = [lambda x: x * x, lambda x: x + 7, lambda x: 3 * x]
    >>> uncoupled_rounds(*coupled_rounds(5, 9, rounds, operator.add), rounds, operator.sub)
    (5, 9)
    """
    for function in reversed(functions):
        x, y = uncouple(y, x, function, subtract)
    return x, y


def stored_activations(num_layers: int, reversible: bool) -> int:
    """Layer outputs that are stored for the backward pass.

    num_layers, or 2 where each layer is rebuilt from the next

    Args:
        num_layers: layers [count].
        reversible: whether they are coupled.

    Returns:
        Outputs [count].

    Assumes: no recomputation of ordinary layers; a reversible stack keeps the two halves of its last layer.

    Sources: lecture C132; Gomez et al. 2017, table 1.

    >>> stored_activations(80, False), stored_activations(80, True)
    (80, 2)
    """
    return 2 if reversible else num_layers


def output_difference(
    function: Callable[[Any], Any], x: Any, change: Any, exclusive_or: Callable[[Any, Any], Any]
) -> Any:
    """Effect of a change of the input on the output, over the field of two elements (a cipher's differential).

    delta_out = f(x ^ delta) ^ f(x)

    Args:
        function: f, such as an encryption.
        x: input.
        change: delta.
        exclusive_or: ^.

    Returns:
        The bits of the output that change.

    Sources: lecture C127; Biham and Shamir 1991.

    >>> import operator
    >>> output_difference(lambda x: 3 * x, 0b1000, 0b0001, operator.xor)
    3
    """
    return exclusive_or(function(exclusive_or(x, change)), function(x))

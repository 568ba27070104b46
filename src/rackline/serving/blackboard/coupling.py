"""Additive couplings of Feistel ciphers and reversible networks, and how a stack of layers mixes its inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rackline.checked import checked
from rackline.errors import require

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


def layers_until_mixed(reads: NDArray[np.bool_]) -> float:
    """Layers after which each output depends on each input.

    The smallest n for which all entries of the n-th Boolean power of the matrix are true

    Args:
        reads: whether output i of one layer reads input j, shape (units, units).

    Returns:
        Layers [count]; infinite if no number of layers is enough.

    Raises:
        InputError: not a square matrix.

    Assumes: all layers read in the same way; each read matters.

    Sources: lecture C124; flash card Q26.

    >>> round_of_neighbours = np.eye(8, dtype=bool) | np.roll(np.eye(8, dtype=bool), 1, axis=1)
    >>> layers_until_mixed(round_of_neighbours), layers_until_mixed(np.eye(8, dtype=bool))
    (7, inf)
    """
    require(
        reads.ndim == 2 and reads.shape[0] == reads.shape[1] and reads.size,
        what="reads",
        given=f"shape {reads.shape}",
        allowed="a square matrix",
    )
    depends = reads
    for layers in range(1, len(reads) ** 2 + 1):
        if bool(depends.all()):
            return layers
        further = depends @ reads
        if layers > len(reads) and bool((further == depends).all()):
            break
        depends = further
    return math.inf


def layers_to_reach(context_len: float, window: float | None) -> float:
    """Layers of attention after which the last token depends on the first.

    n = ceil((L - 1) / (w - 1)), one layer without a window

    Args:
        context_len: L [tokens].
        window: w, tokens that a query sees, itself included [tokens]; None for all.

    Returns:
        Layers [count]; infinite for a window of one token.

    Raises:
        InputError: less than one token.

    Assumes: causal attention; all layers have this window.

    Sources: each layer carries information w - 1 tokens further; flash card Q26.

    >>> layers_to_reach(131072.0, 1024.0), layers_to_reach(131072.0, None)
    (129, 1)
    """
    checked("layers_to_reach", at_least_one=("context_len",), context_len=context_len)
    if window is None:
        return 1
    checked("layers_to_reach", at_least_one=("window",), window=window)
    if window >= context_len:
        return 1
    return math.inf if window == 1 else math.ceil((context_len - 1) / (window - 1))


def reading_accuracy(words: NDArray[Any], answers: NDArray[np.bool_], *, num_bits: int, steps: int = 200) -> float:
    """Accuracy of a linear probe on half of the words, after training on the other half.

    Logistic regression on the bits of a word, by gradient descent from zero

    Args:
        words: integers, shape (words,).
        answers: the answer for each of them, same shape.
        num_bits: bits of a word [count].
        steps: steps of the descent; 0 leaves the probe untrained [count].

    Returns:
        Share of correct answers; 0.5 is chance.

    Raises:
        InputError: the shapes differ, or there are fewer than four words.

    Assumes: a linear probe; structure that it does not find may still be there.

    Sources: lecture C125; flash card Q27.

    >>> words = np.arange(4096)
    >>> reading_accuracy(words, words % 2 == 1, num_bits=12)
    1.0
    """
    require(
        words.shape == answers.shape and words.ndim == 1 and len(words) >= 4,
        what="words",
        given=f"shape {words.shape}",
        allowed="four or more, an answer for each",
    )
    bits = ((words[:, None] >> np.arange(num_bits)) & 1) * 2.0 - 1.0
    wanted = np.where(answers, 1.0, -1.0)
    learn, test = slice(0, None, 2), slice(1, None, 2)
    weights = np.zeros(num_bits)
    for _ in range(steps):
        pull = wanted[learn] / (1.0 + np.exp(wanted[learn] * (bits[learn] @ weights)))
        weights += bits[learn].T @ pull / len(pull)
    return float((np.where(bits[test] @ weights > 0.0, 1.0, -1.0) == wanted[test]).mean())

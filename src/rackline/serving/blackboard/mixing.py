"""How a stack of layers mixes its inputs, and whether a probe finds structure in the outputs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rackline.checked import checked
from rackline.errors import InputError


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
    if reads.ndim != 2 or reads.shape[0] != reads.shape[1] or not reads.size:
        raise InputError(what="reads", given=f"shape {reads.shape}", allowed="a square matrix")
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
    if words.shape != answers.shape or words.ndim != 1 or len(words) < 4:
        raise InputError(what="words", given=f"shape {words.shape}", allowed="four or more, an answer for each")
    bits = ((words[:, None] >> np.arange(num_bits)) & 1) * 2.0 - 1.0
    wanted = np.where(answers, 1.0, -1.0)
    learn, test = slice(0, None, 2), slice(1, None, 2)
    weights = np.zeros(num_bits)
    for _ in range(steps):
        pull = wanted[learn] / (1.0 + np.exp(wanted[learn] * (bits[learn] @ weights)))
        weights += bits[learn].T @ pull / len(pull)
    said = np.where(bits[test] @ weights > 0.0, 1.0, -1.0)
    return float((said == wanted[test]).mean())

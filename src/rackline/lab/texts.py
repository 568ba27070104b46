"""Text and tasks that the experiments train on."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]


@cache
def prose_tokens() -> tuple[Tokens, Tokens]:
    """The project's own documentation as characters: what is trained on, and the last tenth, which is not.

    The text lies in `rackline/lab/prose.txt`, under the project's licence. Tokens are ASCII codes.

    Returns:
        Two arrays of one dimension.
    """
    data = files("rackline.lab").joinpath("prose.txt").read_bytes()
    tokens = np.frombuffer(data, dtype=np.uint8).astype(np.int32)
    cut = tokens.size * 9 // 10
    return tokens[:cut], tokens[cut:]


def windows(text: Tokens, random: np.random.Generator, number: int, length: int) -> Tokens:
    """Pieces of a text from random places, (number, length)."""
    starts = random.integers(0, text.size - length, number)
    return text[starts[:, None] + np.arange(length)]


def recall_task(
    random: np.random.Generator, number: int, pairs: int, queries: int, symbols: int
) -> tuple[Tokens, NDArray[np.float32]]:
    """Associative recall: keys with values, then keys whose value is to be given.

    A sequence is k1 v1 k2 v2 ... then q1 a1 q2 a2 ...; keys differ from each other, values are random.

    Args:
        number: of sequences [count].
        pairs, queries: of a sequence [count].
        symbols: keys, and as many values [count].

    Returns:
        Tokens, (number, 2 · (pairs + queries)), and the positions whose next token is an answer, one shorter.

    Sources: Arora et al. 2023, arXiv:2312.04927 (multi-query associative recall).
    """
    keys = np.argsort(random.random((number, symbols)), axis=1)[:, :pairs]
    values = random.integers(0, symbols, (number, pairs)) + symbols
    asked = random.integers(0, pairs, (number, queries))
    rows = np.arange(number)[:, None]
    shown = np.stack([keys, values], axis=-1).reshape(number, -1)
    wanted = np.stack([keys[rows, asked], values[rows, asked]], axis=-1).reshape(number, -1)
    answers = np.zeros((number, 2 * (pairs + queries) - 1), dtype=np.float32)
    answers[:, 2 * pairs :: 2] = 1.0
    return np.concatenate([shown, wanted], axis=1).astype(np.int32), answers

"""Layers that mix, pipelines that overlap batches, stages of unequal layers: against enumeration."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rackline.errors import InputError
from rackline.ledger.ciphers import cipher_reads
from rackline.serving import blackboard as bb


@pytest.mark.parametrize(("length", "window"), [(1, 4), (2, 2), (9, 3), (10, 3), (64, 7), (64, 64), (65, 64)])
def test_layers_to_reach_follow_from_the_reads_of_a_window(length: int, window: int) -> None:
    at = np.arange(length)
    back = at[:, None] - at[None, :]
    depends = reads = (back >= 0) & (back < window)
    layers = 1
    while not depends[-1, 0]:
        depends = depends @ reads
        layers += 1
    assert bb.layers_to_reach(float(length), float(window)) == layers


def test_a_window_of_one_never_reaches() -> None:
    assert bb.layers_to_reach(8.0, 1.0) == math.inf
    assert bb.layers_to_reach(8.0, None) == 1


def test_layers_until_mixed() -> None:
    assert bb.layers_until_mixed(np.ones((5, 5), dtype=bool)) == 1
    assert bb.layers_until_mixed(cipher_reads()) == 2
    apart = np.kron(np.eye(2, dtype=bool), np.ones((3, 3), dtype=bool))
    assert bb.layers_until_mixed(apart) == math.inf
    turning = np.roll(np.eye(4, dtype=bool), 1, axis=1)  # a permutation moves and never mixes
    assert bb.layers_until_mixed(turning) == math.inf
    with pytest.raises(InputError, match="square"):
        bb.layers_until_mixed(np.ones((2, 3), dtype=bool))


@pytest.mark.parametrize(("stages", "micro"), [(1, 4), (2, 1), (4, 4), (4, 3), (4, 1), (8, 4), (8, 7), (16, 5)])
def test_stale_updates_of_an_endless_one_forward_one_backward(stages: int, micro: int) -> None:
    """The first stage runs `stages` forwards ahead of its backwards and updates after each batch's last backward."""
    missed = 0
    for forward in range(40 * micro * stages):
        backwards = max(0, forward - stages + 1)
        missed = max(missed, forward // micro - backwards // micro)
    assert bb.stale_updates(float(stages), float(micro)) == missed


def test_stage_imbalance() -> None:
    assert bb.stage_imbalance([1.0] * 12, 4) == 1.0
    assert bb.stage_imbalance([1.0] * 5, 2) == pytest.approx(3.0 / 2.5)
    assert bb.stage_imbalance([0.0, 0.0, 3.0, 1.0], 2) == 2.0
    assert bb.stage_imbalance([1.0, 3.0], 1) == 1.0
    with pytest.raises(InputError, match="1 to 2 layers"):
        bb.stage_imbalance([1.0, 1.0], 3)


def test_reading_finds_what_is_there_and_only_that() -> None:
    rng = np.random.default_rng(3)
    words = rng.integers(0, 1 << 16, size=4096)
    assert bb.reading_accuracy(words, (words >> 5) & 1 == 1, num_bits=16) > 0.99
    coins = rng.integers(0, 2, size=4096) == 1
    assert bb.reading_accuracy(words, coins, num_bits=16) == pytest.approx(0.5, abs=0.05)
    with pytest.raises(InputError, match="an answer for each"):
        bb.reading_accuracy(words, coins[:8], num_bits=16)

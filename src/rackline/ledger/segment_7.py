"""Segment 7: invertible couplings in ciphers and neural networks (C127, C130 to C133)."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from rackline.ledger.work import Finding, Work
from rackline.scaling.overtrain import FORWARD_FLOP_PER_PARAM_TOKEN, PRETRAIN_FLOP_PER_PARAM_TOKEN
from rackline.serving import blackboard as bb
from rackline.units import format_percent

_BITS = 16
_MASK = (1 << _BITS) - 1


def exclusive_or(one: int, other: int) -> int:
    """Sum of two words without carries, which undoes itself."""
    return one ^ other


def rounds_of(count: int) -> list[Callable[[int], int]]:
    """Round functions of a small cipher: keyed, not invertible, the same at each call."""
    rng = np.random.default_rng(count)
    keys = [int(key) for key in rng.integers(1, _MASK, size=count)]

    def mixing(key: int) -> Callable[[int], int]:
        def function(x: int) -> int:
            mixed = ((x ^ key) * 40503 + (x >> 5) * 52711) & _MASK
            return (mixed ^ (mixed >> 7)) & (_MASK ^ (mixed >> 3))

        return function

    return [mixing(key) for key in keys]


def c127(it: Work) -> Finding:
    functions = rounds_of(int(it.q("rounds")))

    def encrypted(word: int, rounds: int) -> int:
        left, right = bb.coupled_rounds(word >> _BITS, word & _MASK, functions[:rounds], exclusive_or)
        return left << _BITS | right

    rng = np.random.default_rng(int(it.q("samples")))
    shares: list[str] = []
    for rounds in (1, len(functions)):
        flipped: list[int] = []
        for word in rng.integers(0, 1 << 2 * _BITS, size=int(it.q("samples"))):
            place = _BITS + int(rng.integers(0, _BITS))  # in the half that the first round reads
            cipher = functools.partial(encrypted, rounds=rounds)
            flipped.append(int(bb.output_difference(cipher, int(word), 1 << place, exclusive_or)).bit_count())
        share, many = float(np.mean(flipped)) / (2 * _BITS), f"{rounds} {'round' if rounds == 1 else 'rounds'}"
        label = f"share of output bits that one input bit flips, {many}"
        it.near(label, share, "share", "half", when=f"the cipher has {many}")
        shares.append(f"{format_percent(share)} after {many}")
    return it.done(f"Of all bits change {' and '.join(shares)}.")


def c130(it: Work) -> Finding:
    functions = rounds_of(int(it.q("rounds")))
    images = len({functions[0](x) for x in range(_MASK + 1)})
    it.show("values that f takes over its inputs", images / (_MASK + 1), "share")
    rng = np.random.default_rng(0)
    pairs = [tuple(int(v) for v in rng.integers(0, _MASK, size=2)) for _ in range(int(it.q("samples")))]
    back = [
        bb.uncoupled_rounds(*bb.coupled_rounds(x, y, functions, exclusive_or), functions, exclusive_or) == (x, y)
        for x, y in pairs
    ]
    it.true("every pair comes back exactly", all(back), by_definition=True)
    return it.done("f is only ever computed forward, so it needs no inverse.")


def c131(it: Work) -> Finding:
    rng = np.random.default_rng(1)
    width = 16
    weights = [rng.normal(0.0, width**-0.5, (width, width)) for _ in range(int(it.q("layers")))]

    def layer(w: Any) -> Callable[[Any], Any]:
        return lambda x: np.tanh(w @ x)

    layers = [layer(w) for w in weights]
    x, y = rng.normal(size=width), rng.normal(size=width)
    u, v = bb.uncoupled_rounds(*bb.coupled_rounds(x, y, layers, operator.add), layers, operator.sub)
    off = float(max(np.abs(u - x).max(), np.abs(v - y).max()))
    it.show("largest difference after 32 layers and back", off, "")
    it.true("within rounding", off <= it.q("rounding"), when="exact means within rounding")
    it.true("to the last bit", off == 0.0, when="exact means to the last bit")
    return it.done("Sums of floats round, so inputs come back within rounding and not bit by bit.")


def c132(it: Work) -> Finding:
    few, many = int(it.q("few")), int(it.q("many"))
    growth = bb.stored_activations(many, False) / bb.stored_activations(few, False)
    it.identity("ordinary, 80 layers over 4", growth, many / few, "times")
    it.identity(
        "reversible, 80 layers over 4",
        bb.stored_activations(many, True) / bb.stored_activations(few, True),
        1.0,
        "times",
    )
    return it.done("The two halves of the last layer are enough to rebuild all earlier ones.")


def c133(it: Work) -> Finding:
    again = PRETRAIN_FLOP_PER_PARAM_TOKEN + FORWARD_FLOP_PER_PARAM_TOKEN
    it.near("FLOP of a reversible over an ordinary step", again / PRETRAIN_FLOP_PER_PARAM_TOKEN, "times", "extra")
    model, chip = it.world.model("llama-3.1-70b"), it.world.chip("h100-sxm")
    redo = bb.compute_s(1.0, model.active_params, chip.flop_per_s("bf16"), it.q("context_len"))
    read = bb.kv_fetch_s(1.0, it.q("context_len"), model.kv_bytes_per_token(2.0), chip.hbm_bytes_per_s)
    it.least("computing 4,096 tokens again over reading their cache", redo / read, "times", it.q("saved"))
    return it.done(
        f"A reversible step computes {format_percent(again / PRETRAIN_FLOP_PER_PARAM_TOKEN - 1.0)} more and stores no "
        f"outputs; reading a cache takes one part in {redo / read:,.0f} of the time of computing it."
    )

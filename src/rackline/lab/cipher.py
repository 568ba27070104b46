"""A Feistel cipher and a network: how far a small change spreads (lecture C124 to C130).

A Feistel round turns any function f into an invertible map: (x, y) -> (y, x + f(y)). After a few rounds one changed
bit of the input changes half of the bits of the output, for any input. A network is a stack of layers that mixes
all of its inputs as well. Whether a change grows in it depends on its weights: a plain stack with large random weights
is chaotic, and mean-field theory says how far; a residual stack with normalised layers is not, and training leaves it
that way, because a derivative must stay meaningful to be followed.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from rackline.lab.experiment import Curve, Experiment, Reading, Setup
from rackline.serving.blackboard import layers_until_mixed

Words = NDArray[np.uint64]
Weights = dict[str, jax.Array]
Stack = Callable[[Weights, jax.Array], jax.Array]
"""Weights and inputs (..., width) -> state after each layer, (depth, ..., width)."""
RoundFunction = Callable[[Words, int], Words]

HALF_BITS = 16
_MASK = np.uint64((1 << HALF_BITS) - 1)
ROUNDS = 12
PRESENT_SBOX = (12, 5, 6, 11, 9, 0, 10, 13, 3, 14, 15, 8, 4, 7, 1, 2)  # Bogdanov et al., CHES 2007, section 3

NUM_BITS = 64  # inputs of the networks
DEPTH = 12


# --- The cipher ---


def multiply_and_fold(half: Words, key: int) -> Words:
    """A round function that cannot be inverted: the square of half plus key, folded to half its width."""
    mixed = (half + np.uint64(key)) & _MASK
    square = mixed * mixed + np.uint64(0x9E37) * mixed
    return ((square >> np.uint64(9)) ^ square) & _MASK


def encrypt(words: Words, keys: list[int], f: RoundFunction = multiply_and_fold, *, xor: bool = True) -> Words:
    """Feistel rounds over words of two halves, a round a key: (x, y) -> (y, x + f(y)), + modular or by XOR.

    Args:
        words: any shape, 2 · HALF_BITS bits each.
    """
    x, y = words >> np.uint64(HALF_BITS), words & _MASK
    for key in keys:
        change = f(y, key)
        x, y = y, (x ^ change if xor else (x + change) & _MASK)
    return (x << np.uint64(HALF_BITS)) | y


def decrypt(words: Words, keys: list[int], f: RoundFunction = multiply_and_fold, *, xor: bool = True) -> Words:
    """The inverse of `encrypt` with the same keys: f itself is never inverted."""
    x, y = words >> np.uint64(HALF_BITS), words & _MASK
    for key in reversed(keys):
        change = f(x, key)
        x, y = (y ^ change if xor else (y - change) & _MASK), x
    return (x << np.uint64(HALF_BITS)) | y


def avalanche(cipher: Callable[[Words], Words], words: Words, num_bits: int) -> NDArray[np.float64]:
    """Share of the words in which output bit j changes when input bit i is flipped, shape (i, j)."""
    plain, places = cipher(words), np.arange(num_bits, dtype=np.uint64)
    changes = (cipher(words ^ np.uint64(1 << bit)) ^ plain for bit in range(num_bits))
    return np.array([((changed[:, None] >> places) & np.uint64(1)).mean(axis=0) for changed in changes])


def differential_uniformity(table: NDArray[np.int64]) -> int:
    """Most inputs x that share one output difference: max over a != 0, b of |{x: S(x ^ a) ^ S(x) = b}|.

    Args:
        table: S, shape (2^n,).

    Sources: Nyberg, Eurocrypt 1993; lecture C127 (differentiation over the field of two elements).

    >>> differential_uniformity(np.array(PRESENT_SBOX))
    4
    """
    inputs = np.arange(table.size)
    return max(int(np.bincount(table[inputs ^ change] ^ table).max()) for change in range(1, table.size))


# --- The networks ---


def normal(random: np.random.Generator, *shape: int) -> jax.Array:
    """Normal numbers in float32: drawn by NumPy, because JAX would compile a program for each shape."""
    return jnp.asarray(random.standard_normal(shape, dtype=np.float32))


def signs(random: np.random.Generator, *shape: int) -> jax.Array:
    """Numbers that are 1 or -1."""
    return jnp.asarray(_numpy_signs(random, *shape))


def _numpy_signs(random: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return (2 * random.integers(0, 2, shape) - 1).astype(np.float32)


def plain_weights(random: np.random.Generator, width: int, depth: int, gain: float) -> jax.Array:
    """Weights of a plain stack, normal with standard deviation gain / √width, shape (depth, width, width)."""
    return normal(random, depth, width, width) * (gain / np.sqrt(width))


def plain_layers(weights: Weights, x: jax.Array) -> jax.Array:
    """State after each layer of x -> tanh(W x), shape (depth, ..., width)."""

    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        after = jnp.tanh(x @ w)
        return after, after

    return jax.lax.scan(layer, x, weights["layers"])[1]


def residual_weights(random: np.random.Generator, width: int, depth: int) -> Weights:
    """Weights of a residual stack and of its reader."""
    return {
        "up": normal(random, depth, width, 2 * width) / np.sqrt(width),
        "down": normal(random, depth, 2 * width, width) / np.sqrt(2 * width * 2 * depth),
        "read": normal(random, width) / np.sqrt(width),
    }


def residual_layers(weights: Weights, x: jax.Array) -> jax.Array:
    """State after each layer of x -> x + W2 tanh(W1 norm(x)), shape (depth, ..., width)."""

    def layer(x: jax.Array, w: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        up, down = w
        normed = x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)
        after = x + jnp.tanh(normed @ up) @ down
        return after, after

    return jax.lax.scan(layer, x, (weights["up"], weights["down"]))[1]


def correlations(gain: float, start: float, depth: int) -> NDArray[np.float64]:
    """Correlation of two inputs' states in each layer of a wide plain stack, before tanh, by mean-field theory.

    q' = gain^2 E[tanh^2(z)],  c' = gain^2 E[tanh(z1) tanh(z2)] / q',  z of variance q, z1 and z2 of correlation c

    Args:
        gain: standard deviation of the weights times √width; above 1 small differences grow.
        start: correlation of the inputs, whose entries are 1 or -1.
        depth: layers [count].

    Returns:
        Shape (depth,).

    Assumes: infinite width, no biases.

    Sources: Poole, Lahiri, Raghu, Sohl-Dickstein, Ganguli 2016, arXiv:1606.05340, equations 3 and 5.

    >>> correlations(4.0, 1.0 - 2.0 / 64, 12)[[0, 3, 11]].round(2).tolist()
    [0.97, 0.76, 0.12]
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    q, c = gain**2, start
    found = [c]
    for _ in range(depth - 1):
        second = c * nodes[:, None] + np.sqrt(max(1.0 - c * c, 0.0)) * nodes[None, :]
        first = np.tanh(np.sqrt(q) * nodes)
        both = float(weights @ (first[:, None] * np.tanh(np.sqrt(q) * second)) @ weights)
        square = float(weights @ first**2)
        q, c = gain**2 * square, min(both / square, 1.0)
        found.append(c)
    return np.array(found)


def sign_flips(stack: Stack, weights: Weights, inputs: jax.Array, random: np.random.Generator) -> NDArray[np.float64]:
    """Share of the signs of each layer's state that change when one input of ±1 is flipped, shape (depth,)."""
    flipped = np.array(inputs)
    rows = np.arange(flipped.shape[0])
    flipped[rows, random.integers(0, flipped.shape[1], rows.size)] *= -1.0
    before, after = (np.asarray(_states(stack, weights, one)) > 0 for one in (inputs, flipped))
    return np.mean(before != after, axis=(1, 2))


@partial(jax.jit, static_argnums=0)
def _states(stack: Stack, weights: Weights, inputs: jax.Array) -> jax.Array:
    return stack(weights, inputs)


@partial(jax.jit, static_argnums=0)
def _jacobians(stack: Stack, weights: Weights, inputs: jax.Array) -> jax.Array:
    def last(x: jax.Array) -> jax.Array:
        return stack(weights, x[None])[-1, 0]

    return jax.vmap(jax.jacrev(last))(inputs)


def largest_gain(stack: Stack, weights: Weights, inputs: jax.Array) -> float:
    """Mean over inputs of the largest singular value of the stack's Jacobian: its local Lipschitz constant."""
    return float(np.linalg.norm(np.asarray(_jacobians(stack, weights, inputs)), ord=2, axis=(1, 2)).mean())


def quantised_block(stack: Stack, weights: Weights, num_bits: int = 8) -> NDArray[np.int64]:
    """A block as a table of bits: all signs of the first inputs in, as many signs of the last state out, (2^bits,)."""
    words = np.arange(2**num_bits)
    bits = ((words[:, None] >> np.arange(num_bits)) & 1) * 2.0 - 1.0
    inputs = np.ones((words.size, NUM_BITS))
    inputs[:, :num_bits] = bits
    out = np.asarray(_states(stack, weights, jnp.asarray(inputs))[-1, :, :num_bits] > 0).astype(np.int64)
    return out @ (1 << np.arange(num_bits))


def majority_inputs(random: np.random.Generator, number: int) -> tuple[jax.Array, jax.Array]:
    """Inputs of ±1 and whether more of the first half than of the second half are +1."""
    inputs, half = _numpy_signs(random, number, NUM_BITS), NUM_BITS // 2
    wanted = inputs[:, :half].sum(axis=1) > inputs[:, half:].sum(axis=1)
    return jnp.asarray(inputs), jnp.asarray(wanted, dtype=jnp.float32)


@cache
def _training(stack: Stack) -> tuple[Callable[..., jax.Array], Callable[..., Weights]]:
    """What a stack answers, and a step of gradient descent: the same functions for all seeds."""

    def read(w: Weights, inputs: jax.Array) -> jax.Array:
        return stack(w, inputs)[-1] @ w["read"]

    def loss(w: Weights, inputs: jax.Array, wanted: jax.Array) -> jax.Array:
        logits = read(w, inputs)
        return jnp.mean(jnp.logaddexp(0.0, logits) - wanted * logits)

    def step(w: Weights, inputs: jax.Array, wanted: jax.Array) -> Weights:
        slope = jax.grad(loss)(w, inputs, wanted)
        return {name: one - 0.05 * slope[name] for name, one in w.items()}

    return jax.jit(read), jax.jit(step)


def trained(stack: Stack, weights: Weights, random: np.random.Generator, steps: int) -> tuple[Weights, float]:
    """The stack after training to tell which half has more ones, and its share of right answers on new inputs."""
    read, step = _training(stack)
    for _ in range(steps):
        weights = step(weights, *majority_inputs(random, 256))
    inputs, wanted = majority_inputs(random, 2048)
    return weights, float(jnp.mean((read(weights, inputs) > 0) == (wanted > 0.5)))


# --- The experiment ---


def run(setup: Setup) -> Experiment:
    """Invertibility, avalanche and differential tables of a cipher, and the same three of networks."""
    setup.progress("Feistel cipher")
    rows, curves, findings = _cipher(setup)
    setup.progress("networks")
    more, drawn, said = _networks(setup)
    return Experiment(
        name="cipher",
        claims=("C124", "C126", "C127", "C128", "C130"),
        rows=(*rows, *more),
        findings=(*findings, *said),
        curves=(*curves, *drawn),
        axes=("rounds or layers", "share of output bits that change"),
    )


def _cipher(setup: Setup) -> tuple[list[Reading], list[Curve], list[str]]:
    random = np.random.default_rng(setup.seed)
    words = random.integers(0, 1 << (2 * HALF_BITS), 20_000, dtype=np.uint64)
    keys = [int(key) for key in random.integers(0, 1 << HALF_BITS, ROUNDS)]
    halves = np.arange(1 << HALF_BITS, dtype=np.uint64)
    images = np.unique(multiply_and_fold(halves, keys[0])).size / halves.size
    rows = [
        Reading(
            quantity=f"words not decrypted, {name}",
            unit="words",
            predicted=0.0,
            measured=float((decrypt(encrypt(words, keys, xor=xor), keys, xor=xor) != words).sum()),
            check="equal",
            source="C130",
        )
        for name, xor in (("XOR", True), ("addition modulo 2^16", False))
    ]
    sample = words[: 500 if setup.quick else 4000]
    ciphers = [partial(encrypt, keys=keys[:rounds]) for rounds in range(1, ROUNDS + 1)]
    by_round = [avalanche(one, sample, 2 * HALF_BITS) for one in ciphers]
    full = next((n for n, matrix in enumerate(by_round, 1) if (matrix > 0).all()), ROUNDS + 1)
    share, spread = float(by_round[-1].mean()), float(np.abs(by_round[-1] - 0.5).max())
    rows += [
        Reading(
            quantity="values that the round function takes, of all (1 would be invertible)",
            predicted=1.0 - 1.0 / np.e,
            measured=images,
            tolerance=0.25,
            check="shown",
            source="a random function takes 1 - 1/e of them",
        ),
        Reading(
            quantity="rounds until each output bit depends on each input bit",
            unit="rounds",
            predicted=layers_until_mixed(by_round[0].T > 0),
            measured=float(full),
            check="equal",
            source="powers of the Boolean matrix of one round",
        ),
        Reading(
            quantity=f"bits that change after {ROUNDS} rounds",
            predicted=0.5,
            measured=share,
            tolerance=0.01,
            check="equal",
            source="C128: a coin for each bit",
        ),
        Reading(
            quantity="furthest entry of the avalanche matrix from one half",
            predicted=5.0 * 0.5 / np.sqrt(sample.size),
            measured=spread,
            check="at_most",
            source="five standard deviations of a fair coin",
        ),
        Reading(
            quantity="differential uniformity of the PRESENT S-box (of 16)",
            predicted=4.0,
            measured=float(differential_uniformity(np.array(PRESENT_SBOX))),
            check="equal",
            source="Bogdanov et al. 2007",
        ),
        Reading(
            quantity="differential uniformity of a linear box (of 16)",
            predicted=16.0,
            measured=float(differential_uniformity(np.array([one ^ ((one << 1) & 15) for one in range(16)]))),
            check="equal",
            source="the difference of a linear map does not depend on its input",
        ),
    ]
    curves = [
        Curve(
            name="Feistel cipher",
            kind="measured",
            x=tuple(float(n) for n in range(1, ROUNDS + 1)),
            y=tuple(float(matrix.mean()) for matrix in by_round),
        )
    ]
    return rows, curves, [f"the round function takes {images:.0%} of its values, the cipher inverts all the same"]


def _networks(setup: Setup) -> tuple[list[Reading], list[Curve], list[str]]:
    number = 64 if setup.quick else 256
    gain, width = 4.0, NUM_BITS if setup.quick else 8 * NUM_BITS
    flips: dict[str, list[NDArray[np.float64]]] = {"chaotic": [], "untrained": [], "trained": []}
    slopes, boxes = ({name: list[float]() for name in flips} for _ in range(2))
    right: dict[str, list[float]] = {"residual": [], "plain": []}
    steps = 200 if setup.quick else 600
    for seed in setup.seeds(3, 5):
        setup.progress(f"networks, random seed {seed}")
        random = np.random.default_rng(seed)
        inputs, wide = signs(random, number, NUM_BITS), signs(random, number, width)
        chaotic, start = plain_weights(random, width, DEPTH, gain), residual_weights(random, NUM_BITS, DEPTH)
        learned, accuracy = trained(residual_layers, start, random, steps)
        right["residual"].append(accuracy)
        flips["chaotic"].append(sign_flips(plain_layers, {"layers": chaotic}, wide, random))
        small = plain_weights(random, NUM_BITS, DEPTH, gain)
        right["plain"].append(trained(plain_layers, {"layers": small, "read": start["read"]}, random, steps)[1])
        stacks: dict[str, tuple[Stack, Weights]] = {
            "chaotic": (plain_layers, {"layers": small}),
            "untrained": (residual_layers, start),
            "trained": (residual_layers, learned),
        }
        for name, (stack, weights) in stacks.items():
            if name != "chaotic":
                flips[name].append(sign_flips(stack, weights, inputs, random))
            slopes[name].append(largest_gain(stack, weights, inputs[:16]))
            boxes[name].append(float(differential_uniformity(quantised_block(stack, weights))))
    last = {name: [float(one[-1]) for one in found] for name, found in flips.items()}
    shares = {name: float(np.mean(found)) for name, found in last.items()}
    expected = np.arccos(correlations(gain, 1.0 - 2.0 / width, DEPTH)) / np.pi
    predicted = float(expected[-1])
    rows = [
        Reading.of_runs(
            last["chaotic"],
            quantity=f"signs that change, plain random network of gain {gain:g}",
            predicted=predicted,
            tolerance=0.15,
            check="equal",
            source="C126; mean-field theory, arXiv:1606.05340",
        ),
        *(
            Reading.of_runs(
                last[name],
                quantity=f"signs that change, {name} residual network",
                predicted=0.25,
                check="at_most",
                source="C128: half of what a cipher changes",
            )
            for name in ("untrained", "trained")
        ),
        *(
            reading
            for name in flips
            for reading in (
                Reading.of_runs(slopes[name], quantity=f"largest singular value of the Jacobian, {name}"),
                Reading.of_runs(boxes[name], quantity=f"differential uniformity of 8 quantised signs, {name} (of 256)"),
            )
        ),
        Reading(
            quantity="differential uniformity of a random function of 8 bits (of 256)",
            measured=float(differential_uniformity(np.random.default_rng(setup.seed).integers(0, 256, 256))),
            statistical=True,
        ),
        Reading.of_runs(
            right["residual"],
            quantity="right answers after training, residual network",
            predicted=0.9,
            check="at_least",
            source="C126: derivatives stay meaningful",
        ),
        Reading.of_runs(
            right["plain"],
            quantity="right answers after training, plain network",
            predicted=0.6,
            check="at_most",
            source="C126: derivatives that grow in each layer lead nowhere; half is a guess",
        ),
    ]
    depths = tuple(float(n) for n in range(1, DEPTH + 1))
    curves = [
        *(
            Curve(name=f"{name} network", kind="measured", x=depths, y=tuple(map(float, np.mean(found, axis=0))))
            for name, found in flips.items()
        ),
        Curve(name="chaotic network", kind="predicted", x=depths, y=tuple(map(float, expected))),
    ]
    said = [
        f"a plain stack with large random weights changes {shares['chaotic']:.0%} of its signs (mean-field theory: "
        f"{predicted:.0%}), a residual stack {shares['untrained']:.1%}, after training {shares['trained']:.1%}",
        f"after {steps} steps the residual stack gives {np.mean(right['residual']):.0%} right answers, the plain one "
        f"{np.mean(right['plain']):.0%}",
        "its quantised blocks have differences that nearly all inputs share: no cipher by the measure of cryptanalysis",
    ]
    return rows, curves, said

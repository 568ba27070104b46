"""Training of the experiments' small models: Adam with a cosine of the learning rate, by optax."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar, cast

import jax
import optax

Tree = TypeVar("Tree")


def fit(
    params: Tree,
    loss: Callable[..., jax.Array],
    batch: Callable[[int], tuple[Any, ...]],
    steps: int,
    learning_rate: float = 3e-3,
) -> Tree:
    """Parameters after some steps of Adam; what is trained again with the same function is compiled once.

    Args:
        params: a tree of arrays.
        loss: (params, *batch) -> scalar.
        batch: number of the step -> what the loss takes beside the parameters.
        steps: [count].
        learning_rate: at the start; it falls to zero as a cosine.
    """
    optimiser, step = _compiled(loss, steps, learning_rate)
    state = optimiser.init(cast(Any, params))
    now: Any = params
    for number in range(steps):
        now, state = step(now, state, batch(number))
    return now


@lru_cache(maxsize=4)
def _compiled(loss: Callable[..., jax.Array], steps: int, learning_rate: float) -> tuple[Any, Callable[..., Any]]:
    """Adam and a step of it."""
    optimiser = optax.adam(optax.cosine_decay_schedule(learning_rate, steps))

    @jax.jit
    def step(now: Any, state: Any, given: tuple[Any, ...]) -> tuple[Any, Any]:
        updates, state = optimiser.update(jax.grad(loss)(now, *given), state, now)
        return optax.apply_updates(now, updates), state

    return optimiser, step

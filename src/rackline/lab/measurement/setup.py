"""How a machine is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rackline.lab.measurement.engine import Dtype


def no_steps(text: str, finished: int, total: int) -> None:
    """Reports nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureSetup:
    """How a machine is measured.

    Args:
        engine: whose passes are measured.
        dtype: of weights and cache; the engine's usual one if None.
        device: name of the JAX platform, "cpu" or "gpu".
        quick: a small model and few repeats, for a first look.
        agreed_within_s: longest time of the passes until their repeats agree, after which the result is marked; 300, or
            20 for a first look, if None [s].
        seed: random seed of weights and requests.
        python: interpreter of the environment that has the engine; found by itself if None.
        cpu_clock: count the processor's time of one core, not the wall's, where other programs keep the machine busy.
        progress: is told (what is done, parts finished, parts in all).
    """

    engine: str = "jax"
    dtype: Dtype | None = None
    device: str = "cpu"
    quick: bool = False
    agreed_within_s: float | None = None
    seed: int = 0
    python: str | None = None
    cpu_clock: bool = False
    progress: Callable[[str, int, int], None] = no_steps

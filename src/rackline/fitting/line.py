"""The line of a kernel with its parameters, bounded by transforms so that a fit stays within their range.

    t = overhead + max(a, b) + exposed min(a, b) + depth_s depth + tile_s tiles + permute t_permute + quantise
    a = FLOP / (eta_compute peak), b = bytes / (eta_memory bandwidth)

Times and counts are fitted as logarithms, shares as logits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from rackline.fitting.amounts import Amounts
from rackline.fitting.tables import Array
from rackline.passes.features import as_array
from rackline.passes.line import line_seconds

CACHE_OVER_MEMORY = 4.0  # rate of the last-level cache over that of the memory, about 3 to 5 on these chips

SOFT_L1_SCALE = 0.1  # log error beyond which a row counts in proportion instead of squared


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One parameter of the line.

    Args:
        name: key in a calibration.
        start: value that a class begins with.
        share: True if it lies between 0 and 1, False if it is only positive.
    """

    name: str
    start: float
    share: bool = False

    def encode(self, value: float) -> float:
        """Value → transformed space."""
        if self.share:
            value = min(max(value, 1e-4), 1.0 - 1e-4)
            return float(np.log(value / (1.0 - value)))
        return float(np.log(max(value, 1e-18)))

    def decode(self, coded: float) -> float:
        """Transformed space → value."""
        return float(1.0 / (1.0 + np.exp(-coded))) if self.share else float(np.exp(coded))


_OVERHEAD = Term(name="overhead_s", start=8e-6)
_LINE = (
    Term(name="eta_compute", start=0.6, share=True),
    Term(name="eta_memory", start=0.82, share=True),
    Term(name="exposed", start=0.3, share=True),
)
_DEPTH = Term(name="depth_s", start=1e-10)
_QUANTISE = Term(name="quantise_s", start=1e-6)

TERMS: Mapping[str, tuple[Term, ...]] = {
    "gemm": (Term(name="overhead_s", start=4e-6), *_LINE, _DEPTH),
    "attention_decode": (
        _OVERHEAD,
        *_LINE,
        _DEPTH,
        Term(name="tile_s", start=4e-7),
        Term(name="cached", start=0.3, share=True),
    ),
    "mla_decode": (_OVERHEAD, *_LINE, _DEPTH),
    "attention_prefill": (_OVERHEAD, *_LINE, Term(name="depth_s", start=1e-9), Term(name="tile_s", start=4e-7)),
    "mla_prefill": (_OVERHEAD, *_LINE, Term(name="depth_s", start=1e-9)),
    "moe": (
        Term(name="overhead_s", start=3e-5),
        *_LINE,
        Term(name="tile_s", start=1e-7),
        Term(name="permute", start=1.3),
    ),
}


def terms_of(op_class: str, quantised: bool) -> tuple[Term, ...]:
    """Parameters of a class; products whose table contains a quantisation have its launch too."""
    return (*TERMS[op_class], _QUANTISE) if quantised else TERMS[op_class]


def seconds(values: Mapping[str, float | Array], work: Amounts) -> Array:
    """Time of each row [s].

    Equation:
        overhead + max(a, b) + exposed min(a, b) + depth_s depth + tile_s tiles + permute t_permute
        + quantise_s + t_quantise / eta_memory

    Args:
        values: parameters by name; those that are absent are 0, shares of the peak 1.
        work: of the rows.

    Returns:
        Time [s], shape (rows,).

    Assumes: bytes that fit the share `cached` of the last-level cache come from it, because a benchmark repeats its
        call; a pass of a model does not find them there.
    """
    eta_memory = values.get("eta_memory", 1.0)
    compute = work.compute_s / values.get("eta_compute", 1.0)
    cached = np.minimum(values.get("cached", 0.0) * work.cache_s, work.memory_s)
    memory = (work.memory_s - cached) / eta_memory + cached / CACHE_OVER_MEMORY
    time = (
        line_seconds(values.get("overhead_s", 0.0), (compute, memory), exposed=values.get("exposed", 0.0))
        + values.get("depth_s", 0.0) * work.depth
        + values.get("tile_s", 0.0) * work.tiles
        + values.get("permute", 0.0) * work.permute_memory_s
    )
    if "quantise_s" in values:
        time = time + values["quantise_s"] + work.quantise_memory_s / eta_memory
    return as_array(time)


def encode(terms: Sequence[Term], values: Mapping[str, float]) -> Array:
    """Values → transformed space, shape (terms,)."""
    return np.array([term.encode(values.get(term.name, term.start)) for term in terms])


def decode(terms: Sequence[Term], coded: Array) -> dict[str, float]:
    """Transformed space → values by name."""
    return {term.name: term.decode(x) for term, x in zip(terms, coded, strict=True)}


def robust_fit(residuals: Callable[[Array], Array], start: Array) -> Array:
    """Minimise sum soft_l1(residual / 0.1), from `start`.

    Args:
        residuals: of log times, shape (rows,), as a function of the parameters in transformed space.
        start: parameters to begin with, shape (terms,).

    Returns:
        Parameters, shape (terms,).
    """
    from scipy import optimize

    solve = cast("Callable[..., Any]", optimize.least_squares)  # pyright: ignore[reportUnknownMemberType]
    found = solve(residuals, start, loss="soft_l1", f_scale=SOFT_L1_SCALE, max_nfev=80)
    return np.asarray(found.x, dtype=np.float64)

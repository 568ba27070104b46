"""The line of a kernel and its parameters.

    t = overhead + max(a, b) + exposed min(a, b) + depth_s depth + tile_s tiles + permute t_permute + quantise
    a = FLOP / (eta_compute peak), b = bytes / (eta_memory bandwidth)

Times and counts are fitted as logarithms, shares as logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from rackline.fitting.amounts import Amounts
from rackline.fitting.solver import Parameter
from rackline.fitting.tables import Array
from rackline.passes.features import as_array
from rackline.passes.line import line_seconds

CACHE_OVER_MEMORY = 4.0  # rate of the last-level cache over that of the memory, about 3 to 5 on these chips


_OVERHEAD = Parameter(name="overhead_s", start=8e-6)
_LINE = (
    Parameter(name="eta_compute", start=0.6, form="share"),
    Parameter(name="eta_memory", start=0.82, form="share"),
    Parameter(name="exposed", start=0.3, form="share"),
)
_DEPTH = Parameter(name="depth_s", start=1e-10)
_QUANTISE = Parameter(name="quantise_s", start=1e-6)

_TILE = Parameter(name="tile_s", start=4e-7)
_CACHED = Parameter(name="cached", start=0.3, form="share")
_DECODE = (_OVERHEAD, *_LINE, _DEPTH)
_PREFILL = (_OVERHEAD, *_LINE, Parameter(name="depth_s", start=1e-9))
_STREAMED = (Parameter(name="overhead_s", start=3e-6), _LINE[1], _CACHED)
"""Of kernels that move bytes and compute next to nothing."""
TERMS: Mapping[str, tuple[Parameter, ...]] = {
    "gemm": (Parameter(name="overhead_s", start=4e-6), *_LINE, _DEPTH),
    "moe": (
        Parameter(name="overhead_s", start=3e-5),
        *_LINE,
        Parameter(name="tile_s", start=1e-7),
        Parameter(name="permute", start=1.3),
    ),
    "mla_decode": _DECODE,
    "mla_prefill": _PREFILL,
    **{f"{name}_decode": _DECODE for name in ("index", "compressed_index", "block_index")},
    **{f"{name}_prefill": _PREFILL for name in ("index", "compressed_index", "block_index")},
    **dict.fromkeys(("gated_delta_prefill", "kda_prefill"), (*_PREFILL, _TILE, _CACHED)),
    **dict.fromkeys(("convolution_decode", "convolution_prefill", "hyper_connections", "quantise"), _STREAMED),
}
"""Class → parameters; other cores have those of attention."""
_OF_PHASE = {"decode": (*_DECODE, _TILE, _CACHED), "prefill": (*_PREFILL, _TILE)}


def terms_of(work: Amounts) -> tuple[Parameter, ...]:
    """Parameters of a class, and of the classes that are fitted with it under their names; products whose table
    contains a quantisation have its launch too."""
    own = TERMS.get(work.op_class) or _OF_PHASE[work.op_class.rpartition("_")[2]]
    if np.any(work.quantise_memory_s > 0):
        own = (*own, _QUANTISE)
    more = [replace(term, name=f"{one.op_class}.{term.name}") for one in work.others for term in terms_of(one)]
    return (*own, *more)


def of_class(values: Mapping[str, float], op_class: str) -> dict[str, float]:
    """The values of a class that was fitted with another, by their own names; "" for the other's."""
    start = f"{op_class}." if op_class else ""
    return {
        name.removeprefix(start): value
        for name, value in values.items()
        if name.startswith(start) and "." not in name.removeprefix(start)
    }


def seconds(values: Mapping[str, float], work: Amounts) -> Array:
    """Time of each row [s].

    Equation:
        overhead + max(a, b) + exposed min(a, b) + depth_s depth + tile_s tiles + permute t_permute
        + quantise_s + t_quantise / eta_memory + the same of each other row + what is known

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
        line_seconds(
            values.get("overhead_s", 0.0) * work.launches, (compute, memory), exposed=values.get("exposed", 0.0)
        )
        + values.get("depth_s", 0.0) * work.depth
        + values.get("tile_s", 0.0) * work.tiles
        + values.get("permute", 0.0) * work.permute_memory_s
    )
    if "quantise_s" in values:
        time = time + values["quantise_s"] + work.quantise_memory_s / eta_memory
    for other in work.others:
        time = time + seconds(of_class(values, other.op_class), other)
    return as_array(time + work.known_s)

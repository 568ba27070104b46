"""Fit the lines of one class: all chips → generation → chip and stack, each shrunk towards its parent; its errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rackline.fitting import modules
from rackline.fitting.amounts import Amounts, amounts, joined
from rackline.fitting.solver import (
    SEEDS,
    SOFT_L1_SCALE,
    Errors,
    Mask,
    Older,
    OlderFit,
    Parameter,
    Values,
    fit,
    grouped,
    half_of_families,
    leave_out,
    median_and_p90,
    random_half,
)
from rackline.fitting.tables import FEWEST_ROWS, Array, Measurements
from rackline.hardware import Chip
from rackline.passes.features import as_array
from rackline.passes.row import line_seconds

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
"""Parameters of kernels that move bytes and compute next to nothing."""
TERMS: Mapping[str, tuple[Parameter, ...]] = {
    "gemm": (Parameter(name="overhead_s", start=4e-6), *_LINE, _DEPTH),
    "latent_product": (Parameter(name="overhead_s", start=8e-6), *_LINE, _DEPTH, _TILE, _CACHED),
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


def slopes(values: Mapping[str, float], work: Amounts) -> dict[str, Array]:
    """d ln(time) / d value of each row, by the parameters of `seconds`, shape (rows,) each.

    Assumes: where compute and memory take equally long, or the cache holds all bytes just so, either side's slope.
    """
    time, found = seconds(values, work), _slopes(values, work)
    return {name: found[name] / time for name in values if name in found}


def _slopes(values: Mapping[str, float], work: Amounts) -> dict[str, Array]:
    """d time / d value [s]."""
    eta_compute, eta_memory = values.get("eta_compute", 1.0), values.get("eta_memory", 1.0)
    exposed, of_cache = values.get("exposed", 0.0), values.get("cached", 0.0) * work.cache_s
    compute, cached = work.compute_s / eta_compute, np.minimum(of_cache, work.memory_s)
    from_memory = (work.memory_s - cached) / eta_memory
    memory = from_memory + cached / CACHE_OVER_MEMORY
    longer = compute > memory
    of_compute, of_memory = np.where(longer, 1.0, exposed), np.where(longer, exposed, 1.0)
    quantised = work.quantise_memory_s / eta_memory if "quantise_s" in values else 0.0
    found = {
        "overhead_s": work.launches,
        "eta_compute": -of_compute * compute / eta_compute,
        "eta_memory": -(of_memory * from_memory + quantised) / eta_memory,
        "exposed": np.minimum(compute, memory),
        "cached": of_memory * np.where(of_cache < work.memory_s, work.cache_s, 0.0)
        * (1.0 / CACHE_OVER_MEMORY - 1.0 / eta_memory),
        "depth_s": work.depth,
        "tile_s": work.tiles,
        "permute": work.permute_memory_s,
        "quantise_s": np.ones(len(work.known_s)),
    }  # fmt: skip
    for other in work.others:
        own = _slopes(of_class(values, other.op_class), other)
        found |= {f"{other.op_class}.{name}": slope for name, slope in own.items()}
    return found


# Pull towards the parent, per parameter, in rows of a size: (log-error scale)² units. Chosen by held-out error among
# 0.003, 0.01, 0.03, 0.1 (see docs/history); parents are pulled weakly towards the start of their class.
_PULL, _PULL_OF_EXPERTS = 0.01, 0.03
_PARENT_PULL = 0.01
_MOST_POOLED = 2400
MOST_STEPS = 80


def pull_of(work: Amounts) -> float:
    """Strength of the pull of a group towards its parent."""
    return _PULL_OF_EXPERTS if work.op_class == "moe" else _PULL


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rows of one chip, stack, class and data type.

    Args:
        chip, generation, stack, stack_version: what was measured.
        work: amounts of the rows.
        measured_s: time of each row [s], shape (rows,).
        families: shape family of each row, shape (rows,).
        older: the shapes that older versions share with it, the newest of them first.
        newest_s: of an older version: times of the newest one at the same shapes [s], shape (rows,).
    """

    chip: str
    generation: str
    stack: str
    stack_version: str
    work: Amounts
    measured_s: Array
    families: npt.NDArray[np.int64]
    older: tuple[Group, ...] = ()
    newest_s: Array | None = None

    @property
    def key(self) -> tuple[str, str, str, str]:
        """(chip, stack, class, data type)."""
        return self.chip, self.stack, self.work.op_class, self.work.dtype

    @property
    def quantised(self) -> bool:
        """Whether the times contain a separate quantisation."""
        return bool(np.any(self.work.quantise_memory_s > 0))

    def take(self, rows: npt.NDArray[np.bool_]) -> Group:
        """The chosen rows."""
        return replace(self, work=self.work.take(rows), measured_s=self.measured_s[rows], families=self.families[rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassFit:
    """Parameters of one class and data type.

    Args:
        everywhere: parameters of all chips.
        by_generation: parameters of each generation.
        by_group: parameters of each (chip, stack).
    """

    everywhere: Values
    by_generation: Mapping[str, Values]
    by_group: Mapping[tuple[str, str], Values]

    def parent(self, generation: str) -> Values:
        """Parameters that a chip of this generation falls back to."""
        return self.by_generation.get(generation, self.everywhere)


def fit_line(
    terms: Sequence[Parameter],
    work: Amounts,
    measured_s: Array,
    parent: Mapping[str, float],
    pull: float,
    fixed: Mapping[str, float] | None = None,
) -> Values:
    """Fit the parameters of one line.

    Equation:
        min sum soft_l1(log(t / measured) / 0.1) + pull (p - parent)²

    Args:
        terms: parameters.
        work: amounts of the rows.
        measured_s: times [s], shape (rows,).
        parent: values to shrink towards.
        pull: strength of the shrinkage.
        fixed: parameters that are known and not fitted.

    Returns:
        Values by name, the fixed ones included.
    """
    known = dict(fixed or {})
    free = drawn_to(parent, pull, [term for term in terms if term.name not in known])
    log_measured = np.log(measured_s)
    found = fit(
        free,
        lambda values: np.log(seconds({**known, **values}, work)) - log_measured,
        slopes=lambda values: slopes({**known, **values}, work),
        max_nfev=MOST_STEPS,
    )
    return {**known, **found.values}


def drawn_to(parent: Mapping[str, float], pull: float, terms: Sequence[Parameter]) -> list[Parameter]:
    """Parameters that begin at a parent's values and are drawn to them, with the weight of `pull` rows."""
    spread = SOFT_L1_SCALE / np.sqrt(pull)
    return [replace(term, start=parent.get(term.name, term.start), spread=spread) for term in terms]


def fit_class(
    groups: Sequence[Group],
    *,
    excluded: frozenset[tuple[str, str]] = frozenset(),
    overheads: ClassFit | None = None,
) -> ClassFit:
    """Fit all groups of one class and data type.

    Args:
        groups: of one class and data type.
        excluded: (chip, stack) groups that are not used for parents.
        overheads: fit whose overheads are taken over (products in fp8 and fp4: the launch is that of bf16, what is
            more is quantisation).

    Returns:
        Parents and the fit of every group.
    """
    first = groups[0]
    pull = pull_of(first.work)
    terms = terms_of(first.work)
    start = {term.name: term.start for term in terms}
    pool = [g for g in groups if (g.chip, g.stack) not in excluded] or list(groups)

    def fixed(values: Values | None) -> Values | None:
        return None if values is None else {"overhead_s": values["overhead_s"]}

    everywhere = _pooled(terms, pool, start, fixed(overheads.everywhere if overheads else None))
    by_generation: dict[str, Values] = {}
    for generation in sorted({g.generation for g in pool}):
        members = [g for g in pool if g.generation == generation]
        known = fixed(overheads.parent(generation)) if overheads else None
        by_generation[generation] = _pooled(terms, members, everywhere, known)
    by_group: dict[tuple[str, str], Values] = {}
    for group in groups:
        parent = by_generation.get(group.generation, everywhere)
        own = None
        if overheads:
            own = fixed(overheads.by_group.get((group.chip, group.stack), overheads.parent(group.generation)))
        by_group[group.chip, group.stack] = fit_line(terms, group.work, group.measured_s, parent, pull, own)
    return ClassFit(everywhere=everywhere, by_generation=by_generation, by_group=by_group)


def _pooled(terms: Sequence[Parameter], groups: Sequence[Group], parent: Values, fixed: Values | None) -> Values:
    """One fit over several groups; each has the same number of rows at most, so that none dominates."""
    most = max(_MOST_POOLED // len(groups), 40)
    works: list[Amounts] = []
    times: list[Array] = []
    for group in groups:
        rows = np.arange(len(group.measured_s))
        if len(rows) > most:
            rows = rows[np.linspace(0, len(rows) - 1, most).astype(np.int64)]
        works.append(group.work.take(rows))
        times.append(group.measured_s[rows])
    return fit_line(terms, joined(works), np.concatenate(times), parent, _PARENT_PULL, fixed)


def evaluate(groups: Sequence[Group], predictor: Callable[[list[Group]], Callable[[Group], Array]]) -> list[Errors]:
    """Refit on halves and test on the rest; the parents of a fit are refitted too, so that nothing leaks.

    Args:
        groups: whole groups of one class.
        predictor: fits a list of (halved) groups, returns a function from group to seconds.

    Returns:
        One entry per group.
    """
    seen: dict[str, Callable[[Group, int], Mask]] = {
        "random": lambda group, seed: random_half(len(group.measured_s), seed),
        "family": lambda group, seed: half_of_families(group.families, seed),
    }

    def fitted(masks: list[Mask]) -> Callable[[Group], Array]:
        return predictor([group.take(mask) if mask.any() else group for group, mask in zip(groups, masks, strict=True)])

    def scored(predict: Callable[[Group], Array], masks: list[Mask]) -> list[tuple[float, float] | None]:
        unseen = [group.take(~mask) for group, mask in zip(groups, masks, strict=True)]
        return [
            median_and_p90(predict(own), own.measured_s) if min(np.sum(mask), np.sum(~mask)) >= _FEWEST_TESTED else None
            for own, mask in zip(unseen, masks, strict=True)
        ]

    errors: dict[str, list[list[tuple[float, float] | None]]] = {}
    for kind, half in seen.items():
        halves = {str(seed): [half(group, seed) for group in groups] for seed in SEEDS}
        errors[kind] = [fold.scored for fold in leave_out(halves, fitted, scored)]
    out: list[Errors] = []
    for place, group in enumerate(groups):
        random, family = (_mean([fold[place] for fold in errors[kind]]) for kind in seen)
        ideal = median_and_p90(group.work.ideal_s(), group.measured_s)
        out.append(
            Errors(
                rows=len(group.measured_s),
                median_error=random[0],
                p90_error=random[1],
                family_median_error=family[0],
                family_p90_error=family[1],
                ideal_median_error=ideal[0],
                ideal_p90_error=ideal[1],
            )
        )
    return out


def _mean(found: list[tuple[float, float] | None]) -> tuple[float | None, float | None]:
    known = [one for one in found if one is not None]
    if not known:
        return None, None
    median, p90 = np.mean(np.array(known), axis=0)
    return float(median), float(p90)


_FEWEST_TESTED = 4
LAUNCH_TYPE = "bf16"  # data type whose launch overhead quantised products share


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFit:
    """Fit of one group with its errors.

    Args:
        group: the rows.
        values: parameters.
        errors: errors on held-out data.
        outlier: why it was not used for parents; empty if it was.
        oldest_version: oldest version of the stack that it describes.
        older: numbers of versions before that.
    """

    group: Group
    values: Values
    errors: Errors
    outlier: str = ""
    oldest_version: str = ""
    older: tuple[OlderFit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassResult:
    """All fits of one operation class.

    Args:
        op_class: name.
        fits: one per group.
        parents: data type → parents.
    """

    op_class: str
    fits: tuple[KernelFit, ...]
    parents: dict[str, ClassFit]


def groups_of(tables: Iterable[Measurements], chips: dict[str, Chip]) -> list[Group]:
    """Groups of the kernel tables that have enough rows to fit; a kernel that was timed alone is not taken from the
    module that it is part of."""
    found: dict[tuple[str, str, str, str], Group] = {}
    for table in tables:
        if _is_enough(table):
            group = _group(table, chips[table.chip])
            found.setdefault(group.key, group)
    return list(found.values())


def _is_enough(table: Measurements) -> bool:
    """Whether a table has enough rows to fit; products of one shape say nothing of the launch, which those of other
    data types take over."""
    return len(table.seconds) >= FEWEST_ROWS and (table.table != "gemm" or len(np.unique(table.families)) > 1)


def _group(table: Measurements, chip: Chip) -> Group:
    return Group(
        chip=table.chip,
        generation=chip.generation,
        stack=table.stack,
        stack_version=table.stack_version,
        work=(modules.amounts if table.table in modules.LAYERS else amounts)(table, chip),
        measured_s=table.seconds,
        families=table.families,
        older=tuple(_group(older, chip) for older in table.older if _is_enough(older)),
        newest_s=table.newest_s,
    )


def fit_types(groups: Sequence[Group], outliers: frozenset[tuple[str, str, str, str]]) -> dict[str, ClassFit]:
    """Fit each data type; bf16 first, whose launch overhead the quantised products share."""
    by_type = grouped(groups, lambda group: group.work.dtype)
    fits: dict[str, ClassFit] = {}
    for dtype in sorted(by_type, key=lambda name: (name != LAUNCH_TYPE, name)):
        members = by_type[dtype]
        excluded = frozenset((g.chip, g.stack) for g in members if g.key in outliers)
        launch = fits.get(LAUNCH_TYPE) if members[0].quantised else None
        fits[dtype] = fit_class(members, excluded=excluded, overheads=launch)
    return fits


def older_of(group: Group, newest: Values) -> Older:
    """An older version's table. Where it shares no shapes with the newest, its times are as they were measured."""
    ratio = 1.0 if group.newest_s is None else seconds(newest, group.work) / group.newest_s
    return version_of(group, newest, group.measured_s * ratio)


def version_of(group: Group, known: Values, target_s: Array) -> Older:
    """A version's table with its model; what only the benchmark has is as in known numbers, and so is the launch of
    quantised products.

    Args:
        target_s: times that it is fitted to [s], shape (rows,).
    """
    terms = terms_of(group.work)
    kept = ("cached", "quantise_s", *(("overhead_s",) if group.quantised else ()))
    fixed = {name: known[name] for name in kept if name in known}

    def fit(rows: npt.NDArray[np.bool_], towards: Values) -> Values:
        return fit_line(terms, group.work.take(rows), target_s[rows], towards, pull_of(group.work), fixed)

    return Older(
        stack_version=group.stack_version,
        target_s=target_s,
        predict=lambda values: seconds(values, group.work),
        fit=fit,
    )

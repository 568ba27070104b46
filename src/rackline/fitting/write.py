"""Fitted calibrations as catalogue files, with errors and sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rackline.errors import InputError
from rackline.files import rounded, toml_text, write_text
from rackline.fitting.collectives import CUSTOM, ONE_SHOT, TWO_SHOT, CollectiveFit, two_shot_values
from rackline.fitting.fit import KernelFit, of_class
from rackline.fitting.kernel_tables import VERSION as ROCM
from rackline.fitting.run import CalibrationResult, host_bound_chips
from rackline.fitting.solver import Errors, OlderFit, Values
from rackline.passes.calibration import PARENT_CLASS, STAGED
from rackline.serving.stack import known_stack

GENERIC = "generic"
OF_NVIDIA = frozenset(PARENT_CLASS) - {"mla_decode", "mla_prefill"}
_SOURCE = (
    "kernel and collective times published with aiconfigurator (github.com/ai-dynamo/aiconfigurator); the numbers here "
    "are fits to them, message sizes as nccl-tests prints them; attention modules, recurrent states, encoders and "
    "hyper-connections from the kernel tables of aisimulate 0.13.0.dev202610270000000085"
)
_URL = "https://github.com/ai-dynamo/aiconfigurator"
_ACCESSED = "2026-11-21"
_ROCM_SOURCE = (
    "kernel times that AITER keeps of its tuning (github.com/ROCm/aiter, aiter/configs), hipBLASLt's of AMD's MLPerf "
    "Inference submissions 4.1 and 5.1, HipKittens' benchmarks; the numbers here are fits to them"
)

# Small kernels have no table of their own.
_ASSUMED = (
    {"chip": "*", "class": "elementwise", "dtype": "*", "overhead_s": 2e-6, "eta_compute": 0.75, "eta_memory": 0.75},
    {"chip": "*", "class": "embedding", "dtype": "*", "overhead_s": 2e-6, "eta_compute": 0.75, "eta_memory": 0.75},
)

_SHARED_BY = 4  # ranks that take all that a host passes on
_ALWAYS = ("host_s_per_step", "separate_quantise")

Entry = dict[str, str | float | int]


def stacks_of(result: CalibrationResult) -> list[str]:
    """Stacks that have a kernel or a custom all-reduce, sorted."""
    kernels = {fit.group.stack for fit in result.kernels}
    return sorted(kernels | {fit.stack for fit in result.collectives if fit.of_stack})


def stack_file(result: CalibrationResult, stack: str) -> str:
    """TOML of the accepted fits of one stack."""
    kernels = [fit for fit in result.kernels if fit.group.stack == stack]
    custom = [fit for fit in held_collectives(result.collectives)[0] if fit.stack == stack and fit.of_stack]
    full = record.full_name if (record := known_stack(stack)) else stack
    return _file(
        name=stack,
        full_name=f"{full}, fitted",
        stack=stack,
        description=(
            f"Numbers of {full} on each chip that was measured under it, fitted to tables of single kernels. What is "
            "missing here falls back to the same chip under another stack, to its generation, to all chips."
        ),
        evidence="measured",
        operations=[entry for fit in kernels if fit.group.key not in result.rejected for entry in kernel_entries(fit)],
        collectives=[entry for fit in custom for entry in collective_entries(fit)],
        older_operations=[
            entry
            for fit in kernels
            if fit.group.key not in result.rejected
            for one in fit.older
            for entry in _entries(
                fit.group.chip, fit.group.work.op_class, fit.group.work.dtype, one.values, _of_older(one)
            )
        ],
        older_collectives=[
            {"chip": fit.chip, "class": name, "group_size": fit.group_size, **values, **_of_older(one)}
            for fit in custom
            for one in fit.older
            for name, values in _parts(fit.op_class, one.values).items()
        ],
        rejected=[
            f"{fit.group.chip} {fit.group.work.op_class} {fit.group.work.dtype}: {result.rejected[fit.group.key]}"
            for fit in kernels
            if fit.group.key in result.rejected
        ],
        citation=_ROCM_SOURCE if any(fit.group.stack_version == ROCM for fit in kernels) else _SOURCE,
    )


def generic_file(result: CalibrationResult, name: str = GENERIC) -> str:
    """TOML of the parents: each generation and all chips over all stacks, and the library collectives of each chip;
    those that the host limited are of chips without access to each other's memory."""
    operations: list[Entry] = [dict(entry) for entry in _ASSUMED]
    for op_class, types in result.parents.items():
        for dtype, parents in types.items():
            members = [f for f in result.kernels if (f.group.work.op_class, f.group.work.dtype) == (op_class, dtype)]
            # what only NVIDIA's chips were measured with says less of others than their own numbers of the parent class
            levels = {} if op_class in OF_NVIDIA else {"*": parents.everywhere}
            for chip, values in sorted({**levels, **parents.by_generation}.items()):
                rows = sum(f.errors.rows for f in members if chip in ("*", f.group.generation))
                operations += _entries(chip, op_class, dtype, values, {"rows": rows, "evidence": "derived"})
    held, bound = held_collectives(result.collectives)
    collectives = [entry for fit in held if not fit.of_stack for entry in collective_entries(fit)]
    return _file(
        name=name,
        full_name="All stacks, fitted",
        stack="any",
        description=(
            "Numbers of each chip generation and of all chips, fitted to the tables of all stacks together, and "
            "collectives of NCCL by chip: what is used where a stack was not measured on a chip."
        ),
        evidence="derived",
        operations=operations,
        collectives=[*collectives, *_collective_parents(held)],
        rejected=bound,
        assumed=len(_ASSUMED),
    )


def held_collectives(fits: Iterable[CollectiveFit]) -> tuple[list[CollectiveFit], list[str]]:
    """Collectives as files hold them, and why not as they were measured, one line a chip.

    What the host limited is of chips without access to each other's memory, and no measurement of a stack's own.
    """
    every = list(fits)
    bound = host_bound_chips(every)
    staged = [
        replace(fit, op_class=f"{fit.op_class}{STAGED}") for fit in every if fit.chip in bound and not fit.of_stack
    ]
    reasons = [f"{chip}: {reason}; of chips without peer access" for chip, reason in sorted(bound.items())]
    return [*(fit for fit in every if fit.chip not in bound), *staged], reasons


def merged_file(result: CalibrationResult, name: str) -> str:
    """TOML of one set of numbers over all stacks: of each chip the stack with the most accepted fits, then the rest."""
    accepted = [fit for fit in result.kernels if fit.group.key not in result.rejected]
    counts = Counter((fit.group.chip, fit.group.stack) for fit in accepted)
    entries: dict[tuple[str, str, str], list[Entry]] = {}
    for fit in sorted(accepted, key=lambda f: (-counts[f.group.chip, f.group.stack], f.group.stack)):
        key = (fit.group.chip, fit.group.work.op_class, fit.group.work.dtype)
        entries.setdefault(key, kernel_entries(fit, note=fit.group.stack))
    operations: list[Entry] = [dict(entry) for entry in _ASSUMED]
    operations += [entry for key in sorted(entries) for entry in entries[key]]
    for op_class, types in result.parents.items():
        for dtype, parents in types.items():
            for chip, values in sorted({"*": parents.everywhere, **parents.by_generation}.items()):
                operations += _entries(chip, op_class, dtype, values, {"evidence": "derived"})
    collectives: dict[tuple[object, ...], Entry] = {}
    held, bound = held_collectives(result.collectives)
    ranked = sorted(held, key=lambda f: (-counts[f.chip, f.stack], f.stack))
    for fit in ranked:
        for entry in collective_entries(fit):
            collectives.setdefault((entry["chip"], entry["class"], entry["group_size"]), entry)
    stacks = stacks_of(result)
    return _file(
        name=name,
        full_name=f"Fitted to {', '.join(stacks) or 'collectives'}",
        stack=stacks[0] if len(stacks) == 1 else "any",
        description="Numbers fitted by rackline calibrate; the note of an entry is the stack it was measured under.",
        evidence="measured",
        operations=operations,
        collectives=[*collectives.values(), *_collective_parents(held)],
        rejected=[f"{' '.join(key)}: {reason}" for key, reason in sorted(result.rejected.items())] + bound,
        assumed=len(_ASSUMED),
        citation="operation tables given to rackline calibrate",
    )


def write_files(contents: Mapping[Path, str]) -> None:
    """Write all files, each whole or not at all, and all that can be.

    Raises:
        InputError: the last file that cannot be written.
    """
    failed: InputError | None = None
    for path, text in contents.items():
        try:
            write_text(path, text, what="--output")
        except InputError as error:
            failed = error
    if failed is not None:
        raise failed


def kernel_entries(fit: KernelFit, note: str = "") -> list[Entry]:
    more: Entry = {
        **_statistics(fit.errors),
        **_versions(fit.group.stack_version, fit.oldest_version),
        "evidence": "measured",
    }
    if note:
        more["note"] = note
    return _entries(fit.group.chip, fit.group.work.op_class, fit.group.work.dtype, fit.values, more)


def _entries(chip: str, op_class: str, dtype: str, values: Values, more: Entry) -> list[Entry]:
    """The entry of a class, and those of the classes that were fitted with it."""
    others = dict.fromkeys(name.partition(".")[0] for name in values if "." in name)
    return [
        {"chip": chip, "class": name or op_class, "dtype": dtype, **of_class(values, name), **more}
        for name in ("", *others)
    ]


def _statistics(errors: Errors) -> Entry:
    found: dict[str, float | int | None] = {
        "rows": errors.rows,
        "median_error": errors.median_error,
        "p90_error": errors.p90_error,
        "family_median_error": errors.family_median_error,
        "family_p90_error": errors.family_p90_error,
        "ideal_median_error": errors.ideal_median_error,
    }
    return {name: value for name, value in found.items() if value is not None}


def collective_entries(fit: CollectiveFit) -> list[Entry]:
    more: Entry = {
        **_statistics(fit.errors),
        **_versions(fit.stack_version, fit.oldest_version),
        "evidence": "measured",
    }
    return [
        {"chip": fit.chip, "class": name, "group_size": fit.group_size, **values, **more}
        for name, values in _parts(fit.op_class, fit.values).items()
    ]


def _parts(op_class: str, values: Values) -> dict[str, Values]:
    """Numbers of each kernel of a collective."""
    if op_class != CUSTOM:
        return {op_class: values}
    one = {"overhead_s": values["overhead_s"], "eta_link": values["eta_link"]}
    return {ONE_SHOT: one, TWO_SHOT: two_shot_values(values)}


def _versions(newest: str, oldest: str) -> Entry:
    """Versions that an entry describes."""
    return {"stack_version": newest, **({"oldest_version": oldest} if oldest and oldest != newest else {})}


def _of_older(fit: OlderFit) -> Entry:
    return {
        "rows": fit.rows,
        "median_error": fit.median_error,
        **_versions(fit.stack_version, fit.oldest_version),
        "evidence": "measured",
    }


def _collective_parents(fits: Iterable[CollectiveFit]) -> list[Entry]:
    """Medians over chips of each collective and group size; exchanges say nothing of other chips.

    Assumes: through the host all ranks together get what four get; that eight get less in one box is its own (its two
        sockets).
    """
    found: dict[tuple[str, int], dict[str, Values]] = {}
    for fit in (one for one in fits if not one.is_exchange):
        for name, values in _parts(fit.op_class, fit.values).items():
            found.setdefault((name, fit.group_size), {})[fit.chip] = values
    for (name, size), chips in found.items():
        if name.endswith(STAGED) and size > _SHARED_BY:
            for chip, four in found.get((name, _SHARED_BY), {}).items():
                if chip in chips:
                    chips[chip] = {**chips[chip], "eta_link": four["eta_link"] * _SHARED_BY / size}
    return [
        {
            "chip": "*",
            "class": name,
            "group_size": size,
            **{key: float(np.median([one[key] for one in chips.values()])) for key in next(iter(chips.values()))},
            "evidence": "derived",
        }
        for (name, size), chips in sorted(found.items())
    ]


def _file(
    *,
    name: str,
    full_name: str,
    stack: str,
    description: str,
    evidence: str,
    operations: list[Entry],
    collectives: list[Entry],
    rejected: list[str],
    older_operations: list[Entry] | None = None,
    older_collectives: list[Entry] | None = None,
    assumed: int = 0,
    citation: str = _SOURCE,
) -> str:
    comments = ["Written by `rackline calibrate`; change the tables or the fit, not this file."]
    if rejected:
        comments += ["Rejected fits, which fall back:", *(f"  {reason}" for reason in rejected)]
    source = {"fields": ["*"], "kind": evidence, "citation": citation}
    if citation == _SOURCE:
        source |= {"url": _URL, "accessed": _ACCESSED}
    elif citation == _ROCM_SOURCE:
        source |= {"url": "https://github.com/ROCm/aiter", "accessed": "2026-11-22"}
    sources: list[dict[str, Any]] = [source]
    if assumed:
        fields = [f"operation.{place}.*" for place in range(assumed)]
        words = "small kernels have no table: typical launch time and share of the bandwidth"
        sources.append({"fields": fields, "kind": "assumed", "citation": words})
    data: dict[str, Any] = {
        "name": name,
        "full_name": full_name,
        "stack": stack,
        "description": description,
        "evidence": evidence,
        "step_policy": "serial",
        "host_s_per_step": 0.0,
        "separate_quantise": record.kernels.separate_quantise if (record := known_stack(stack)) else (),
        "operation": operations,
        "collective": collectives,
        "older_operation": older_operations or [],
        "older_collective": older_collectives or [],
        "sources": sources,
    }
    return toml_text({key: rounded(value) for key, value in data.items() if value or key in _ALWAYS}, comments)

"""A file with the numbers that were fitted to observed runs: a calibration and the serving stack around it.

It is read wherever a calibration is asked for; by its name where the file is in the working folder.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from rackline.catalog.objects import schema_of
from rackline.files import rounded, toml_text
from rackline.serving.stack import Stack
from rackline.validation.observed_fit import ObservedFit

_DIGITS = 6  # of numbers: shares of peaks are products of several


def calibration_text(fit: ObservedFit, name: str) -> str:
    """The file.

    Args:
        fit: numbers with their errors.
        name: of the calibration and its stack.
    """
    date = datetime.now(UTC).date().isoformat()
    held = {one.metric: one for one in fit.errors}
    errors = ", ".join(
        f"{metric.removesuffix('_s')} {one.held_out_median:.1%} (shipped {one.shipped_median:.1%})"
        for metric, one in held.items()
    )
    said = f"fitted to {fit.requests} requests of {fit.runs} observed runs; held-out median errors: {errors}"
    source = {"fields": ["*"], "kind": "derived", "citation": f"{said}, rackline calibrate {date}", "accessed": date}
    numbers, stack = fit.calibration, fit.stack
    calibration: dict[str, Any] = {
        "name": name,
        "full_name": f"{stack.name} on {fit.chip}, observed",
        "stack": stack.name,
        "description": f"Numbers of {numbers.name} on {fit.chip}, {said}.",
        "evidence": "derived",
        "step_policy": numbers.step_policy,
        "host_s_per_step": numbers.host_s_per_step,
        "context_block": numbers.context_block,
        "separate_quantise": list(numbers.separate_quantise),
        "operation": [
            {
                "chip": fit.chip, "class": kind, "dtype": dtype, "overhead_s": one.overhead_s,
                "eta_compute": one.eta_compute, "eta_memory": one.eta_memory, "exposed": one.exposed,
                "depth_s": one.depth_s, "tile_s": one.tile_s, "cached": one.cached, "quantise_s": one.quantise_s,
                "permute": one.permute, "evidence": "derived", "note": one.origin,
            }
            for (kind, dtype), one in sorted(numbers.operations.items())
        ],
        "collective": [
            {
                "chip": fit.chip, "class": kind, "group_size": size, "overhead_s": overhead_s,
                "alpha_s": one.alpha_s, "eta_link": eta_link, "ramp": ramp, "evidence": "derived", "note": one.origin,
            }
            for kind, one in sorted(numbers.collectives.items())
            for size, overhead_s, eta_link, ramp in zip(
                one.group_sizes, one.overheads_s, one.eta_links, one.ramps, strict=True
            )
        ],
        "sources": [source],
    }  # fmt: skip
    comments = ["Written by rackline calibrate --from; works wherever a calibration is asked for."]
    return toml_text(rounded({"calibration": calibration, "stack": _stack(stack, name, source)}, _DIGITS), comments)


def _stack(stack: Stack, name: str, source: dict[str, Any]) -> dict[str, Any]:
    """The stack; what its version does to steps and experts stands in the calibration already."""
    done: dict[str, Any] = {
        "host_s_per_step": 0.0,
        "gap_s_per_layer": 0.0,
        "untuned_experts": [],
        "untuned_slowdown": 1.0,
    }
    known = set(schema_of(Stack).model_fields) - {"name", "full_name", "aliases", "sources", "defaults"}
    values: dict[str, Any] = {key: done.get(key, getattr(stack, key)) for key in sorted(known)}
    return {
        "name": name,
        "full_name": f"{stack.name}, observed",
        **{key: value for key, value in values.items() if value is not None},
        "sources": [source],
    }

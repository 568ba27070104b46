"""A calibration fitted to a few passes of an engine, near to what the device reached without it.

The pass table of the engine's model is timed by the library's line; its numbers are moved until the passes agree, by
the squares of relative errors. Each number is drawn to where it starts, as strongly as that is known: a few passes do
not determine all of them.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rackline.fitting.solver import Parameter, Values, fit
from rackline.lab.measurement.engine import Work, batch_of
from rackline.passes import Calibration, OperationCalibration, PassTable
from rackline.passes.features import Array

_NOISE = 0.05  # relative error of a timing, which weighs the passes against the start
_FACTOR = 1e3  # by which a number may leave its start


def _n(name: str, start: float, known: float) -> Parameter:
    return Parameter(name=name, start=start, spread=known, low=start / _FACTOR, high=start * _FACTOR)


def starts(launch_s: float) -> list[Parameter]:
    """The numbers, where they start, and the factor within which that is known.

    Args:
        launch_s: time of a call that does nothing [s].
    """
    return [
        _n("launch_s", launch_s, 2.0),
        _n("product_compute", 0.7, 1.0),
        _n("product_memory", 0.8, 0.7),
        _n("product_exposed", 0.5, 1.0),
        _n("cache_memory", 0.5, 1.0),
        _n("sequence_s", launch_s, 2.0),
        _n("context_s", launch_s / 100.0, 2.0),
        _n("prompt_compute", 0.5, 1.0),
        _n("token_memory", 0.3, 1.5),
    ]


def calibration_of(values: Mapping[str, float], name: str, engine: str, context_block: int = 1) -> Calibration:
    """The calibration with some numbers: launches, products, both kinds of attention, and the small operations.

    Args:
        values: by the names of `starts`.
        name: of the calibration.
        engine: whose passes it describes.
        context_block: cached tokens that its attention reads at once [tokens].
    """
    launch: dict[str, Any] = {
        "overhead_s": values["launch_s"],
        "evidence": "measured",
        "origin": f"{engine}, this machine",
    }
    memory = min(values["token_memory"], 1.0)
    operations = {
        "gemm": OperationCalibration(
            eta_compute=values["product_compute"],
            eta_memory=values["product_memory"],
            exposed=min(values["product_exposed"], 1.0),
            **launch,
        ),
        "attention_decode": OperationCalibration(
            eta_compute=max(values["product_compute"], 1.0),
            eta_memory=values["cache_memory"],
            tile_s=values["sequence_s"],
            depth_s=values["context_s"],
            **launch,
        ),
        "attention_prefill": OperationCalibration(
            eta_compute=values["prompt_compute"], eta_memory=values["product_memory"], **launch
        ),
        "elementwise": OperationCalibration(eta_memory=memory, **launch),
        "embedding": OperationCalibration(eta_memory=memory, **launch),
    }
    return Calibration(
        name=name,
        stack=engine,
        step_policy="serial",
        evidence="measured",
        description=f"fitted to passes of {engine} on this machine",
        context_block=context_block,
        operations={(one, "*"): numbers for one, numbers in operations.items()},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A fitted calibration.

    Args:
        calibration: its numbers; shares of the chip's peaks may be above 1.
        values: of the numbers.
        determined: share of each number's uncertainty that the passes removed; near 0, it is where it started [1].
        errors: relative error of each fitted pass [1].
    """

    calibration: Calibration
    values: dict[str, float]
    determined: dict[str, float]
    errors: Array


def fitted(
    table: PassTable,
    works: Sequence[Work],
    seconds: Sequence[float],
    launch_s: float,
    name: str,
    context_block: int = 1,
) -> Fit:
    """The calibration nearest to measured passes and to the start.

    Args:
        table: of the engine's model, with the chip's peaks.
        works: the passes.
        seconds: that each took [s].
        launch_s: of a call that does nothing [s].
        name: of the calibration, and of its engine.
        context_block: cached tokens that the engine's attention reads at once [tokens].
    """
    numbers = starts(launch_s)
    batch = batch_of(list(works))
    wanted = np.asarray(seconds, dtype=float)

    def predicted(values: Values) -> Array:
        return table.with_calibration(calibration_of(values, name, name, context_block)).seconds(batch)

    known = np.array([one.spread for one in numbers], dtype=float)
    found = fit(numbers, lambda values: np.log(predicted(values) / wanted), noise=_NOISE, loss="squares", x_scale=known)
    after = found.spreads()
    calibration = calibration_of(found.values, name, name, context_block)
    errors = predicted(found.values) / wanted - 1.0
    spread = float(np.median(np.abs(errors)))
    operations = {key: replace(one, median_error=spread) for key, one in calibration.operations.items()}
    return Fit(
        calibration=replace(calibration, operations=operations),
        values=found.values,
        determined=dict(zip(found.values, (1.0 - np.minimum(after / known, 1.0)).tolist(), strict=True)),
        errors=errors,
    )

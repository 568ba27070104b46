"""Grids of answers between which the sliders of a page without a server interpolate.

A grid has axes (values of sliders, in equal ratios) and, for each of their combinations, numbers that the library
answered. The page interpolates their logarithms linearly. What is cheap and exact by formula is traced instead (see
`rackline.passes.trace`), so that no formula stands twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rackline.passes.trace import function

if TYPE_CHECKING:
    from rackline.pricing import Reading, Unknowns

WITHIN: Mapping[str, float] = {"tiers": 0.01, "prices": 1e-6, "over-training": 0.002}
"""By view: the share by which an interpolated number differs from the library's at most; tests hold it."""

_DIGITS = 9
_SIZES = 91  # of a curve of budgets
_PRICE_OVER_COST = (1.0, 128.0)
_LINE = ("once_usd", "hold_usd_per_s", "retrieve_usd")


def axis_of(slider: Mapping[str, Any]) -> list[float]:
    """The values of a slider at which the library is asked, in equal ratios."""
    values = np.geomspace(float(slider["low"]), float(slider["high"]), int(slider["points"]))
    return [_rounded(float(one)) for one in values]


def tiers_grid(view: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Cost lines of keeping a prompt by its length, and the formulas that turn them into costs.

    Args:
        view: with the fields that are asked at first and its sliders.

    Returns:
        The data, and functions in JavaScript by name.
    """
    from rackline.api.answer import answer
    from rackline.api.selling import rent_of
    from rackline.api.tiers import TiersQuestion
    from rackline.pricing import KeepingCost, keeping_lines
    from rackline.pricing.cache import drain_distance

    found: Any = answer(TiersQuestion.from_params(_asked(view))).result
    costs, rent = found.costs, rent_of(found.costs.deployment.cluster)
    lengths = axis_of(view["sliders"]["prompt"])
    by_length = [{one.name: one for one in keeping_lines(costs, rent, length)} for length in lengths]
    tiers = {
        name: {key: [_rounded(getattr(lines[name], key)) for lines in by_length] for key in (*_LINE, "fetch_s")}
        for name in by_length[0]
    }

    def usd(once_usd: float, hold_usd_per_s: float, retrieve_usd: float, kept_s: float, reuses: float) -> Any:
        line = KeepingCost(
            name="", tier="", once_usd=once_usd, hold_usd_per_s=hold_usd_per_s, retrieve_usd=retrieve_usd
        )
        return line.usd(kept_s, reuses)

    data = {
        "axes": {"prompt": lengths},
        "tiers": tiers,
        "drains": {name: line.drain_s for name, line in by_length[0].items()},
        "entry_bytes": [_rounded(float(costs.kv_bytes(length))) for length in lengths],
        "title": found.title,
    }
    functions = {
        "usd": function([*_LINE, "kept_s", "reuses"], usd),
        "drainDistance": function(["drain_s", "kept_s"], drain_distance),
    }
    return data, functions


def prices_grid(view: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """What each sheet reveals by price over cost, and what it reveals where that is not known; see `tiers_grid`."""
    from rackline.pricing import Range, default_unknowns, find_sheets, read_prices
    from rackline.pricing.forms import price_over_cost

    unknowns = default_unknowns()
    ratios = [_rounded(one) for one in np.geomspace(*_PRICE_OVER_COST, 8).tolist()]

    def known(ratio: float) -> Unknowns:
        return replace(unknowns, margin=(ratio - 1.0, ratio - 1.0), utilisation=Range(low=1.0, high=1.0))

    sheets: dict[str, Any] = {}
    for name in view["stops"]:
        (sheet,) = find_sheets(name)
        readings = [read_prices(sheet, known(ratio)) for ratio in ratios]
        sheets[name] = {
            "unknown": _ends([read_prices(sheet, unknowns)]),
            "asSet": _ends(readings),
            "date": sheet.date,
            "known": _known(sheet.model),
        }
    data = {"axes": {"price_over_cost": ratios}, "sheets": sheets}
    return data, {"priceOverCost": function(["margin", "utilisation"], price_over_cost)}


def _known(name: str | None) -> list[dict[str, Any]]:
    """What is known of an open model, where a byte or two of each element are kept."""
    from rackline.arch import model
    from rackline.pricing.compare import Truth

    if name is None:
        return []
    truth = Truth.of(model(name))
    ends = truth.kv_bytes_per_token
    return [
        {"model": name, "active_params": truth.active_params, "kv_bytes_per_token": one}
        for one in (ends.low, ends.high)
    ]


def _ends(readings: list[Reading]) -> list[dict[str, Any]]:
    """Quantities of the first reading, each with its ends in all of them."""
    return [
        {
            "quantity": one.quantity,
            "unit": one.unit,
            "method": one.method,
            "note": one.note,
            **{
                key: [_rounded(getattr(reading.find(one.quantity, one.method), key)) for reading in readings]
                for key in ("low", "high", "likely_low", "likely_high")
            },
        }
        for one in readings[0].inferences
        if all(reading.find(one.quantity, one.method) for reading in readings)
    ]


def over_training_grid(view: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Optima over life by FLOP of use per parameter, and that by traffic and months; see `tiers_grid`."""
    from rackline.api.answer import answer
    from rackline.api.budget import BudgetQuestion
    from rackline.scaling import flop_over_life, tokens_for_loss, trained

    traffic, months = view["sliders"]["traffic"], view["sliders"]["months"]

    def asked(rate: float, span: float) -> Any:
        texts = {**_asked(view), "traffic": repr(rate), "months": repr(span)}
        return answer(BudgetQuestion.from_params(texts)).result.budget

    ends = [[float(one[end]) for end in ("low", "high")] for one in (traffic, months)]
    corners = [asked(rate, span).lifetime_flop_per_param for rate in ends[0] for span in ends[1]]
    # all else depends on that number alone, which the longest life and the most traffic make largest
    most = {**traffic, "high": traffic["high"] * months["high"] / months["low"]}
    budgets = [asked(rate, months["low"]) for rate in axis_of(most)]
    first, within = budgets[0], max(budgets[0].flat)
    optima = [float(one.optimum.params) for one in budgets]
    sizes = np.geomspace(min(optima) / 8.0, 3.0 * float(first.compute_optimal.params), _SIZES)
    tokens = np.asarray(tokens_for_loss(first.law, sizes, first.loss))
    sizes, tokens = sizes[np.isfinite(tokens)], tokens[np.isfinite(tokens)]
    data = {
        "uses": {"traffic": ends[0], "months": ends[1]},
        "used": corners,
        "axes": {"used": [one.lifetime_flop_per_param for one in budgets]},
        "sizes": _row(sizes),
        "tokens": _row(tokens),
        "optimum": {
            "active_params": _row(optima),
            "tokens": [_rounded(float(one.optimum.tokens)) for one in budgets],
            "flop": [_rounded(float(one.optimum.lifetime_flop)) for one in budgets],
            "usd": [_rounded(one.usd) for one in budgets],
            "overtraining_factor": [_rounded(one.overtraining_factor) for one in budgets],
            "compute_optimal_over_optimum": [_rounded(one.compute_optimal_over_optimum) for one in budgets],
            "flat_low": [_rounded(one.flat[within][0]) for one in budgets],
            "flat_high": [_rounded(one.flat[within][1]) for one in budgets],
        },
        "computeOptimal": {
            "active_params": _rounded(float(first.compute_optimal.params)),
            "tokens": _rounded(float(first.compute_optimal.tokens)),
        },
        "flat": within,
        "loss": first.loss,
        "law": first.law.name,
        "trained": [
            {"text": one.full_name, "active_params": one.active_params, "tokens": one.tokens} for one in trained()
        ],
    }
    return data, {"flop": function(["active_params", "tokens", "lifetime_flop_per_param"], flop_over_life)}


def _asked(view: Mapping[str, Any]) -> dict[str, str]:
    return {name: value for name, value in view["fields"].items() if value}


def _row(values: Any) -> list[float | None]:
    return [_rounded(float(one)) for one in values]


def _rounded(value: float) -> Any:
    """To the digits that interpolation deserves; None where there is no number."""
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


GRIDS: Mapping[str, Callable[[Mapping[str, Any]], tuple[dict[str, Any], dict[str, str]]]] = {
    "tiers": tiers_grid,
    "prices": prices_grid,
    "over-training": over_training_grid,
}
"""By view: what makes its grid."""

"""The figure of a plan: what was found, its Pareto front, its limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rackline.report.figures import BLUE, GREEN, GREY, ORANGE, Figure
from rackline.report.wording import money, money_name
from rackline.search import Candidate, Plan, PoolPair
from rackline.units import format_seconds


def pareto_figure(plan: Plan) -> Figure:
    """Speed for one user against cost: the front, what breaks a limit, the best, and the limit itself."""
    limits = plan.constraints
    kept = [c for c in plan.pareto if _keeps(c, limits.tpot_s, limits.ttft_s)]
    broken = [c for c in plan.pareto if not _keeps(c, limits.tpot_s, limits.ttft_s)]
    data = [
        _trace(plan, list(plan.pareto), name="Pareto front", mode="lines", color=BLUE),
        _trace(plan, kept, name="keeps the limits", mode="markers", color=BLUE),
    ]
    if broken:
        data.append(_trace(plan, broken, name="breaks a limit", mode="markers", color=GREY))
    alone = plan.aggregated
    if alone is not None:
        data.append(
            _trace(plan, [alone.steady], name="best engine", mode="markers", color=ORANGE, symbol="diamond", size=13)
        )
    apart = plan.disaggregated
    if apart is not None and apart.pareto:
        data.append(_trace(plan, list(apart.pareto), name="separate pools", mode="lines", color=GREEN))
        if apart.best is not None:
            data.append(
                _trace(
                    plan, [apart.best.steady], name="best pools", mode="markers", color=GREEN, symbol="diamond", size=13
                )
            )
    shapes: list[dict[str, Any]] = []
    if limits.tpot_s is not None:
        shapes.append(
            {
                "type": "line",
                "x0": 1.0 / limits.tpot_s,
                "x1": 1.0 / limits.tpot_s,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "line": {"color": GREEN, "dash": "dash"},
                "label": {"text": f"tpot limit {format_seconds(limits.tpot_s)}"},
            }
        )
    return {
        "data": data,
        "layout": {
            "title": {"text": f"{plan.model.name} on {plan.cluster.name} ({plan.calibration.name} calibration)"},
            "xaxis": {"type": "log", "title": {"text": "tokens/s per user"}},
            "yaxis": {
                "type": "log",
                "title": {"text": f"{money_name(plan.priced)} per million output tokens, all-in"},
            },
            "shapes": shapes,
        },
    }


def _keeps(candidate: Candidate, tpot_s: float | None, ttft_s: float | None) -> bool:
    return (tpot_s is None or candidate.tpot_s <= tpot_s) and (ttft_s is None or candidate.ttft_s <= ttft_s)


def _trace(
    plan: Plan,
    candidates: Sequence[Candidate | PoolPair],
    *,
    name: str,
    mode: str,
    color: str,
    symbol: str = "circle",
    size: int = 7,
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "name": name,
        "mode": mode,
        "x": [c.tokens_per_s_per_user for c in candidates],
        "y": [c.usd_per_mtok_output_all_in for c in candidates],
        "text": [_hover(plan, c) for c in candidates],
        "marker": {"color": color, "symbol": symbol, "size": size},
        "line": {"color": color},
    }


def _hover(plan: Plan, candidate: Candidate | PoolPair) -> str:
    cost = money(candidate.usd_per_mtok_output_all_in, plan.priced)
    head = f"{candidate.tokens_per_s_per_user:.3g} tokens/s/user, {cost}/Mtok"
    if isinstance(candidate, PoolPair):
        return (
            f"{head}\ndecode {candidate.decode.layout.label()}, batch {candidate.decode.batch_size}\n"
            f"prefill {candidate.prefill.layout.label()}, {candidate.decode.precision.short()}\n"
            f"tpot {format_seconds(candidate.tpot_s)}, ttft {format_seconds(candidate.ttft_s)}"
        )
    return (
        f"{head}\n{candidate.layout.label()}, batch {candidate.batch_size}\n"
        f"{candidate.precision.short()}, {candidate.mode.label()}\n"
        f"tpot {format_seconds(candidate.tpot_s)}, ttft {format_seconds(candidate.ttft_s)}"
    )

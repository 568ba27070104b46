"""What a run of few requests shows of a planned server: intervals of its mean and percentiles.

A plan's numbers are those of thousands of requests, in which rare crowds count; a short run sees few of them, and
random arrivals are seldom at the mean rate. The interval holds what nine of ten such runs would show, and the error
that a calibration of the user's own states.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rackline.search.choice import Choice
from rackline.search.plan import Plan
from rackline.search.served import Group, Service, group_of
from rackline.simulation import Requests, simulate
from rackline.simulation.workloads import with_chosen_adapters

RUNS = 40
STATISTICS: Mapping[str, float | None] = {"mean": None, "p50": 50.0, "p90": 90.0, "p99": 99.0}
_ENDS = (0.05, 0.95)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A statistic of the requests of one run.

    Args:
        metric: tpot_s or ttft_s.
        statistic: mean, p50, p90 or p99.
        median_s: of the runs [s].
        low_s, high_s: between them it lies in nine of ten runs [s].
    """

    metric: str
    statistic: str
    median_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FewRequests:
    """What runs of few requests show.

    Args:
        requests: of a run [count].
        runs: that were simulated, each with arrivals of its own [count].
        error: of single requests that nine of ten stay below, as the calibration states, by metric; empty where it
            states none [1].
        low_requests_per_s, high_requests_per_s: between them the rate of nine of ten runs lies [requests/s].
        shown: the statistics.
    """

    requests: int
    runs: int
    error: Mapping[str, float]
    low_requests_per_s: float
    high_requests_per_s: float
    shown: tuple[Shown, ...]


def few_requests(plan: Plan, best: Choice, requests: int, error: Mapping[str, float]) -> FewRequests | None:
    """What runs show of a plan's answer; None where it was not simulated.

    Args:
        best: of the plan.
        requests: of each run [count].
        error: the calibration's own, of single requests, by metric [1].
    """
    if best.sustained is None:
        return None
    service = Service(system=plan.system, prefill_system=plan.system, demand=plan.demand)
    return of_group(group_of(best.estimate, service, best.max_num_seqs), best.requests_per_s, requests, error)


def of_group(group: Group, requests_per_s: float, requests: int, error: Mapping[str, float]) -> FewRequests:
    """Simulate runs that begin on an idle server.

    Equation:
        ln(high / median) = sqrt(ln(q95 / median)² + ln(1 + error)²): arrivals and the calibration's error are
        independent; the low end likewise.

    Args:
        group: of replicas.
        requests_per_s: mean arrival rate at the whole deployment [requests/s].
        requests: of each run [count].
        error: the calibration's own, of single requests, by metric [1].
    """
    runs = [_run(group, requests_per_s, requests, seed) for seed in range(1, RUNS + 1)]
    shown: list[Shown] = []
    for metric in ("ttft_s", "tpot_s"):
        for statistic, place in STATISTICS.items():
            if place is not None and requests < 1.0 / (1.0 - place / 100.0):
                continue  # no request lies beyond it
            values = [float(np.mean(one[metric]) if place is None else np.percentile(one[metric], place))
                      for one in runs]  # fmt: skip
            low, median, high = np.quantile(values, (_ENDS[0], 0.5, _ENDS[1])).tolist()
            wide = math.log1p(error.get(metric, 0.0))
            shown.append(
                Shown(
                    metric=metric,
                    statistic=statistic,
                    median_s=median,
                    low_s=median * math.exp(-math.hypot(math.log(median / low), wide)),
                    high_s=median * math.exp(math.hypot(math.log(high / median), wide)),
                )
            )
    rates = np.quantile([requests / float(one["arrival_s"][-1]) for one in runs], _ENDS)
    return FewRequests(
        requests=requests,
        runs=RUNS,
        error=dict(error),
        low_requests_per_s=float(rates[0]),
        high_requests_per_s=float(rates[1]),
        shown=tuple(shown),
    )


def _run(group: Group, rate: float, requests: int, seed: int) -> dict[str, NDArray[Any]]:
    """Times of the requests of one run over all copies, which they reach in turn."""
    rng = np.random.default_rng(seed)
    arrival_s, work = np.cumsum(rng.exponential(1.0 / rate, requests)), group.workload
    prompts, answers = np.full(requests, round(work.input_len)), np.full(requests, round(work.output_len))
    if work.mixture is not None:
        prompts, answers = work.mixture.draw(rng, requests)
    cached = prompts * round(work.cached_tokens) // max(round(work.input_len), 1)
    found: dict[str, list[NDArray[Any]]] = {"ttft_s": [], "tpot_s": []}
    for copy in range(min(group.copies, requests)):
        mine = slice(copy, None, group.copies)
        sent = Requests(
            arrival_s=arrival_s[mine],
            input_len=prompts[mine],
            output_len=answers[mine],
            computed=cached[mine] if work.cached_tokens else None,
            name="a few requests",
        )
        sent = with_chosen_adapters(sent, group.adapter, seed)
        done = simulate(sent, group.pool, router="round-robin", prefill=group.prefill, beyond_s=group.beyond_s)
        found["ttft_s"].append(done.ttft_s)
        found["tpot_s"].append(done.tpot_s)
    return {"arrival_s": arrival_s, **{name: np.concatenate(parts) for name, parts in found.items()}}

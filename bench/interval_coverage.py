"""How often the 95 % intervals of `rackline simulate` hold the truth of a ten times longer run.

    python bench/interval_coverage.py [--runs 100] [--capacities 100] [--only WORKLOAD]

Each case is one random seed: a run that ends by itself, whose intervals of p50, p90 and p99 of three latencies are held
against a run of ten times the longest of them with another seed. Capacities are found with a fixed number of requests,
as are the ten times longer ones that they are held against.
"""

from __future__ import annotations

import argparse
from typing import Any

import rackline as rl

SERVER: dict[str, Any] = {"on": "dgx-h100", "chips": 1, "layout": "tp=1", "calibration": "trtllm"}
WORKLOADS: dict[str, dict[str, Any]] = {  # without `requests`, a run ends by itself
    "open": {"rate": 16, "input": "1k", "output": 40},
    "open, long tails": {"rate": 10, "input": "1k", "output": 40, "lengths": "lognormal"},
    "closed": {"users": 24, "think_time": "500ms", "input": "1k", "output": 40, "lengths": "exponential",
               "requests": 4000},
    "conversations": {"rate": 2, "turns": 4, "think_time": "5s", "input": 300, "output": 40, "prefix_caching": True,
                      "requests": 4000},
}  # fmt: skip
CAPACITY: dict[str, Any] = {
    "rate": 16, "input": "1k", "output": 40, "lengths": "uniform", "capacity": "ttft=200ms,tpot=30ms@p95",
}  # fmt: skip
CAPACITY_REQUESTS = 2000
LATENCIES, PERCENTILES = ("ttft_s", "tpot_s", "e2e_s"), ("p50", "p90", "p99")
TRUTH_SEED = 1_000_000


def ask(**asked: Any) -> dict[str, Any]:
    """The answer of one simulation as data."""
    return rl.simulate("llama-3.1-8b", **SERVER, **asked).to_dict()


def holds(interval: dict[str, float | None], truth: float) -> bool:
    """Whether an interval, which may be open at an end, holds a value."""
    low, high = interval["low"], interval["high"]
    return (low is None or low <= truth) and (high is None or truth <= high)


def percentiles(name: str, runs: int) -> None:
    """Print the coverage of one workload."""
    workload = WORKLOADS[name]
    found = [ask(**workload, seed=seed) for seed in range(runs)]
    longest = max(data["requests"] for data in found)
    truth = ask(**{**workload, "seed": TRUTH_SEED, "requests": 10 * longest})
    for latency in LATENCIES:
        for percentile in PERCENTILES:
            exact = truth[latency][percentile]
            inside = sum(holds(data[latency][f"{percentile}_interval"], exact) for data in found)
            ends = [data[latency][f"{percentile}_interval"] for data in found]
            bounded = [end["high"] - end["low"] for end in ends if None not in end.values()]
            width = 50.0 * sum(bounded) / len(bounded) / exact if bounded else float("nan")
            print(
                f"{name:18} {latency:6} {percentile}: {100 * inside / runs:5.1f} % of {runs}, "
                f"±{width:.1f} % ({len(bounded)} bounded)"
            )
    sizes = sorted(data["requests"] for data in found)
    print(f"{name:18} requests: {sizes[0]} to {sizes[-1]}, median {sizes[len(sizes) // 2]}", flush=True)


def capacities(runs: int) -> None:
    """Print the coverage of the interval of a capacity, and how often twice the length stays within it."""
    truth = ask(**CAPACITY, seed=TRUTH_SEED, requests=10 * CAPACITY_REQUESTS)["rate_per_s"]
    found = [ask(**CAPACITY, seed=seed, requests=CAPACITY_REQUESTS) for seed in range(runs)]
    inside = sum(holds(data["rate_interval"], truth) for data in found)
    bounded = sum(None not in data["rate_interval"].values() for data in found)
    rates = sorted(data["rate_per_s"] for data in found)
    print(
        f"capacity {truth:.3g} requests/s: {100 * inside / runs:.1f} % of {runs} ({bounded} bounded), "
        f"rates {rates[0]:.3g} to {rates[-1]:.3g}",
        flush=True,
    )


def main() -> None:
    """Print coverages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--capacities", type=int, default=100)
    parser.add_argument("--only", choices=[*WORKLOADS, "capacity"])
    asked = parser.parse_args()
    for name in WORKLOADS:
        if asked.only in (None, name) and asked.runs:
            percentiles(name, asked.runs)
    if asked.only in (None, "capacity") and asked.capacities:
        capacities(asked.capacities)


if __name__ == "__main__":
    main()

"""Time of simulations: of the command with start-up, and of ranks in lockstep against one, beside their bars.

CPU seconds of this process and its children, which a busy machine changes less than wall time.

uv run python bench/simulate.py [FOLDER_OF_TRACES]
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

PEERS = {"DynoSim (Rust)": 6880.0, "Vidur": 1151.0}  # requests/s on two cores, 20,000 requests 2048/256 at 10/s


BARS = {20_000: None, 200_000: 200_000 / (10 * PEERS["DynoSim (Rust)"]), 1_000_000: 5.0}  # by requests [s]
README = "plan deepseek-v3 --on gb200-nvl72 --input 4k --output 1k --tpot 30ms --ttft 2s"


def cpu_s(of: int) -> float:
    """User and system time of this process or its children so far [s]."""
    used = resource.getrusage(of)
    return used.ru_utime + used.ru_stime


def served(*words: str) -> tuple[float, float, int]:
    """(CPU seconds of the command, wall seconds of the simulation alone, requests)."""
    start = cpu_s(resource.RUSAGE_CHILDREN)
    done = subprocess.run(["rackline", "simulate", *words, "--json"], capture_output=True, text=True, check=True)
    data = json.loads(done.stdout)
    return cpu_s(resource.RUSAGE_CHILDREN) - start, data["elapsed_s"], data["requests"]


def commands(traces: Path) -> None:
    """Print a line per workload."""
    small = ("llama-3.1-8b", "--on", "dgx-h100", "--chips", "1", "--rate", "10", "--input", "2048", "--output", "256")
    cases: dict[str, tuple[str, ...]] = {
        f"{count:,} × 2048/256 at 10/s": (*small, "--requests", str(count)) for count in BARS
    }
    mooncake = traces / "mooncake_conversation_trace.jsonl"
    if mooncake.is_file():
        deepseek = ("deepseek-v3", "--on", "dgx-h200", "--layout", "tp=8,ep=8", "--trace", str(mooncake))
        cases["Mooncake conversation, DeepSeek V3"] = deepseek
    for name, words in cases.items():
        seconds, elapsed_s, count = served(*words)
        bar = BARS.get(count)
        print(
            f"{name:36} {seconds:6.2f} CPU s with start-up, {elapsed_s:6.2f} s simulated, "
            f"{count / seconds:10,.0f} requests/s{f', bar {bar:.2f} s' if bar else ''}"
        )
        if count == 20_000:
            for peer, rate in PEERS.items():
                with_start, without = count / seconds / rate, count / elapsed_s / rate
                print(f"{'':36} {with_start:6.1f} times {peer}, {without:.1f} without start-up")


def ranks() -> None:
    """Print what 4,000 requests cost on one rank and on 24, at the load of a replica and of each rank."""
    from rackline.arch import model
    from rackline.hardware import cluster
    from rackline.parallel import Deployment, parse_layout, precision
    from rackline.passes import calibration
    from rackline.serving.stack import stack
    from rackline.simulation import Lengths, Pool, open_arrivals, pool_of, simulate

    deepseek = model("deepseek-v3")

    def pool(layout: str, chips: int) -> Pool:
        rack = cluster("gb200-nvl72").with_num_chips(chips)
        deployment = Deployment(
            model=deepseek,
            cluster=rack,
            layout=parse_layout(layout, deepseek),
            precision=precision("native", deepseek, rack.chip),
            calibration=calibration("vllm", rack.chip),
        )
        return pool_of(deployment, stack("vllm"))

    def seconds(pool: Pool, rate: float) -> float:
        lengths = Lengths(input_len=2000, output_len=300, spread="lognormal")
        requests = open_arrivals(np.random.default_rng(1), 4000, rate, lengths)
        times: list[float] = []
        for _ in range(4):
            start = time.process_time()
            simulate(requests, pool)
            times.append(time.process_time() - start)
        return min(times)

    alone, many = pool("tp=8,ep=8", 8), pool("attention_dp=24,ep=24", 24)
    for rate, rate_many in ((10.0, 10.0), (20.0, 100.0)):
        one, all_ranks = seconds(alone, rate), seconds(many, rate_many)
        print(
            f"4,000 requests: one rank at {rate:g}/s {one:.3f} CPU s, 24 ranks at {rate_many:g}/s {all_ranks:.3f}: "
            f"{all_ranks / one:.2f} times, bar 3"
        )


def readme() -> None:
    """Print what the simulations of README's plan cost together."""
    from rackline.cli.main import run
    from rackline.search import served as search
    from rackline.simulation import Pool, Requests, Result, simulate

    times: list[float] = []

    def timed(requests: Requests, pool: Pool, **options: Any) -> Result:
        start = time.process_time()
        result = simulate(requests, pool, **options)
        times.append(time.process_time() - start)
        return result

    words = ["rackline", *README.split(), "--json"]
    with patch.object(search, "simulate", timed), patch.object(sys, "argv", words), redirect_stdout(StringIO()):
        run()
    print(f"README's plan: {len(times)} simulations, {sum(times):.2f} CPU s together, bar 0.6")


if __name__ == "__main__":
    readme()
    ranks()
    commands(Path(sys.argv[1] if len(sys.argv) > 1 else "../shared/traces"))

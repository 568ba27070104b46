"""Bars of `rackline sweep`: rates, memory and bytes of runs, fronts of many rows, Ray against processes.

    python bench/sweep.py [POINTS] [--ray] [--tables] [--front ROWS]

POINTS (10^7 by default) are batch × context of one table. `--tables` sweeps all layouts of DeepSeek-V3 on GB200, those
of the README's plan. `--front` reads the front of a sweep of that many rows. CPU seconds are those of all processes;
wall-clock seconds mean something on a quiet machine only, so the load is printed beside them.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import rackline as rl
from rackline.sweeps.read import Results


def one_table(points: int) -> dict[str, Any]:
    """Batch × context of Llama 3.1 70B on eight H100."""
    batches = 1000
    return {
        "options": {
            "model": "llama-3.1-70b",
            "on": "dgx-h100",
            "layout": "tp=8",
            "batch": {"linear": [1, batches], "num": batches},
            "context": {"linear": [1000, 1000 + points // batches], "num": points // batches},
        },
        "objectives": {"usd_per_mtok_output": "min", "server_s": "min"},
        "output": {"results": ["server_s", "usd_per_mtok_output"]},
    }


def many_layouts(points: int) -> dict[str, Any]:
    """All layouts that the engine launches of DeepSeek-V3 on a GB200 NVL72."""
    space = one_table(points // 400)
    space["options"] |= {
        "model": "deepseek-v3",
        "on": "gb200-nvl72",
        "layout": "all",
        "batch": {"log": [1, 8192], "num": 64},
        "context": {"linear": [1000, 9000], "num": max(points // 400 // 64, 2)},
    }
    return space


@contextmanager
def measured(what: str) -> Iterator[dict[str, float]]:
    """Print CPU and wall-clock seconds of a block, and the load."""
    told: dict[str, float] = {}
    cpu, wall = _cpu(), time.perf_counter()
    yield told
    wall, cpu = time.perf_counter() - wall, _cpu() - cpu
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 2**20
    rows = told.get("rows", 0.0)
    rate = f", {rows / cpu / 1e6:.2f} M rows a CPU second, {rows / wall / 1e6:.2f} M/s" if rows else ""
    size = f", {told['bytes'] / rows:.1f} bytes a row" if rows and "bytes" in told else ""
    load = os.getloadavg()[0]
    print(f"{what}: {cpu:.2f} s of CPU, {wall:.2f} s at load {load:.1f}{rate}{size}, largest process {peak:.2f} GiB")


def _cpu() -> float:
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in both)


def run(what: str, space: dict[str, Any], out: Path, **more: Any) -> None:
    """Run a sweep and print what it took."""
    with measured(what) as told:
        found = rl.sweep(space, out=str(out), **more).result
        told["rows"], told["bytes"] = found.new_rows, found.bytes


def main() -> None:
    """Measure what is asked for."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("points", nargs="?", type=float, default=1e7)
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--ray", action="store_true")
    arguments.add_argument("--tables", action="store_true")
    arguments.add_argument("--front", type=float)
    asked = arguments.parse_args()
    points = int(asked.points)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        space = many_layouts(points) if asked.tables else one_table(points)
        run("in this process", space, folder / "one", workers=1)
        run(f"{asked.workers} processes", space, folder / "pool", workers=asked.workers)
        if asked.ray:
            import ray

            ray.init(num_cpus=asked.workers, log_to_driver=False, include_dashboard=False)
            run(
                f"Ray, {asked.workers} tasks, started before", space, folder / "ray", workers=asked.workers, ray="local"
            )
            ray.shutdown()
        if asked.front:
            results = Results.of(str(folder / "pool"))
            many = int(asked.front / points) or 1
            wide = Results(store=results.store, index=results.index, names=results.names * many)
            with measured(f"front of {points * many:,} rows") as told:
                told["rows"] = points * many
                found = wide.front({"usd_per_mtok_output": "min", "server_s": "min"})
            print(f"  {found.height} on the front")


if __name__ == "__main__":
    main()

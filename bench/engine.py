"""How fast the engine is, against the bars that it must clear.

    uv run python bench/engine.py [--json] [--points-dense N] [--points-moe N]

Prints a table on standard error and one JSON object on standard output; exits 1 when a bar is missed.

- full pass evaluations a second, every row of the table, over layouts × batch × context with two threads, the
  features of the batch included: Llama-3.1-70B on a DGX H100 (dense) and DeepSeek-V3 on a GB200 NVL72 (mixture of
  experts), on all layouts of the cluster. Best of three after a warm-up, in a process of its own, whose peak memory
  is taken.
- breakdowns of one pass a second, `PassTable.time` with its totals by resource, once the table stands and with a
  new batch each time; and the same with every row read.
- `rackline plan` on the main job and `rackline --help`, each a fresh process, best of three.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

THREADS = 2
REPEATS = 3
PLAN_COMMAND = [
    *("plan", "deepseek-v3", "--on", "gb200-nvl72"),
    *("--input", "4k", "--output", "1k", "--tpot", "30ms", "--ttft", "2s"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One measurement and what it must be: `at_least` or `below`."""

    name: str
    value: float
    unit: str
    at_least: float | None = None
    below: float | None = None

    @property
    def cleared(self) -> bool:
        if self.at_least is not None and self.value < self.at_least:
            return False
        return self.below is None or self.value < self.below

    def text(self) -> str:
        bar = f">= {self.at_least:g}" if self.at_least is not None else f"< {self.below:g}"
        mark = "ok" if self.cleared else "MISSED"
        return f"{self.name:<44} {self.value:>12.4g} {self.unit:<14} {bar:<10} {mark}"


def grid(model_name: str, cluster_name: str, label: str, points: int) -> dict[str, Any]:
    """Evaluate about `points` passes in this process and return the rate and the peak memory."""
    import resource

    import numpy as np

    from rackline import arch, hardware
    from rackline.parallel import LayoutGrid, build_table, enumerate_layouts, precision
    from rackline.passes import Batch, calibration

    model, cluster = arch.model(model_name), hardware.cluster(cluster_name)
    layouts = LayoutGrid.of(enumerate_layouts(model, cluster.num_chips))
    types = precision(label, model, cluster.chip)
    table = build_table(model, cluster, layouts, types, calibration("auto", cluster.chip))
    times = table.time_table()
    each = max(1, points // len(layouts))
    num_batches = min(48, each)
    num_contexts = max(1, each // num_batches)
    batch_size = np.geomspace(1.0, 4096.0, num_batches)[None, :, None]
    context_len = np.geomspace(128.0, 131072.0, num_contexts)[None, None, :]
    group = batch_size * layouts.attention_dp[:, None, None] if model.is_moe else None

    def run() -> tuple[float, int]:
        start = time.perf_counter()
        batch = Batch(decode_sequences=batch_size, context_len=context_len, group_tokens=group)
        seconds = times.seconds(table.features(batch), threads=THREADS)
        return time.perf_counter() - start, seconds.size

    run()
    best, evaluated = min(run() for _ in range(REPEATS))
    scale = 1 if sys.platform == "darwin" else 1024  # macOS reports bytes, Linux KiB
    return {
        "evaluations": evaluated,
        "layouts": len(layouts),
        "rows": len(table.rows),
        "seconds": best,
        "evaluations_per_s": evaluated / best,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale,
    }


def one_pass(model_name: str, cluster_name: str, label: str, layout_text: str, points: int = 4000) -> dict[str, Any]:
    """Break `points` decode steps down one at a time in this process and return the rates."""
    from rackline import arch, hardware
    from rackline.parallel import build_table, precision
    from rackline.parallel.layout import parse_layout
    from rackline.passes import Batch, calibration

    model, cluster = arch.model(model_name), hardware.cluster(cluster_name)
    layout = parse_layout(layout_text, model)
    types = precision(label, model, cluster.chip)
    table = build_table(model, cluster, layout, types, calibration("auto", cluster.chip))
    best = {"totals": float("inf"), "rows": float("inf")}
    for _ in range(REPEATS):
        for part in best:
            start = time.perf_counter()
            for index in range(points):
                each = 1.0 + index % 512
                group = each * layout.attention_dp if model.is_moe else None
                found = table.time(Batch(decode_sequences=each, context_len=4096.0, group_tokens=group))
                if part == "rows":
                    sum(row.seconds for row in found.rows)
            best[part] = min(best[part], (time.perf_counter() - start) / points)
    return {"rows": len(table.rows), "passes_per_s": 1.0 / best["totals"], "with_rows_per_s": 1.0 / best["rows"]}


def in_a_process(arguments: list[str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, "--worker", *arguments], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


def wall(command: list[str]) -> tuple[float, str]:
    """Best wall time of a command in a fresh process, and what it printed."""
    best, printed = float("inf"), ""
    for _ in range(REPEATS):
        start = time.perf_counter()
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        best = min(best, time.perf_counter() - start)
        printed = done.stdout
    return best, printed


def plan_in_process(cluster_name: str, chips: int) -> float:
    """Best time of DeepSeek-V3's plan, one engine and separate pools, in this process after its imports."""
    from rackline import arch, hardware
    from rackline.passes import calibration
    from rackline.search import plan
    from rackline.serving.workload import Workload
    from rackline.system import Constraints, Demand, System

    model, cluster = arch.model("deepseek-v3"), hardware.cluster(cluster_name).with_num_chips(chips)
    system = System.of(model, cluster, calibration=calibration("auto", cluster.chip), memory_fraction=0.9)
    demand = Demand(workload=Workload(input_len=4000, output_len=1000), limits=Constraints(tpot_s=0.05, ttft_s=2.0))
    best = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        plan(system, demand)
        best = min(best, time.perf_counter() - start)
    return best


def measure(points_dense: int, points_moe: int) -> tuple[list[Bar], dict[str, Any]]:
    dense = in_a_process(["llama-3.1-70b", "dgx-h100", "bf16", str(points_dense)])
    moe = in_a_process(["deepseek-v3", "gb200-nvl72", "fp8", str(points_moe)])
    dense_one = one_pass("llama-3.1-70b", "dgx-h100", "bf16", "tp=8")
    moe_one = one_pass("deepseek-v3", "gb200-nvl72", "fp8", "attention_dp=32,ep=32")
    rackline = [sys.executable, "-m", "rackline"]
    plan_s, printed = wall([*rackline, *PLAN_COMMAND, "--json"])
    help_s, _ = wall([*rackline, "--help"])
    looked_at = json.loads(printed)
    pools = looked_at["disaggregated"]
    both = looked_at["candidates_evaluated"] + pools["candidates_evaluated"]
    rack_s = plan_in_process("gb200-nvl72", 72)
    small_s = plan_in_process("h100-96", 32)
    bars = [
        Bar(name="dense, full passes", value=dense["evaluations_per_s"], unit="passes/s", at_least=5e6),
        Bar(name="dense, peak memory", value=dense["peak_bytes"], unit="bytes", below=1e9),
        Bar(name="mixture of experts, full passes", value=moe["evaluations_per_s"], unit="passes/s", at_least=2e6),
        Bar(name="mixture of experts, peak memory", value=moe["peak_bytes"], unit="bytes", below=1e9),
        Bar(name="dense, one pass broken down", value=dense_one["passes_per_s"], unit="passes/s", at_least=15e3),
        Bar(name="mixture, one pass broken down", value=moe_one["passes_per_s"], unit="passes/s", at_least=15e3),
        Bar(name="plan, wall with start-up", value=plan_s, unit="s", below=3.0),
        Bar(name="plan, candidates", value=looked_at["candidates_evaluated"], unit="candidates", at_least=1e5),
        Bar(name="plan, combinations", value=looked_at["combinations"], unit="combinations", at_least=2e3),
        Bar(name="plan, both ways of serving, candidates", value=both, unit="candidates", at_least=3e5),
        Bar(name="plan, both ways, rack of 72, without start-up", value=rack_s, unit="s", below=4.0),
        Bar(name="plan, both ways, 32 chips, without start-up", value=small_s, unit="s", below=1.0),
        Bar(name="rackline --help, wall", value=help_s, unit="s", below=0.5),
    ]
    return bars, {"dense": dense, "moe": moe, "one_pass": {"dense": dense_one, "moe": moe_one}}


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the engine against its bars.")
    parser.add_argument("--json", action="store_true", help="no table, JSON only")
    parser.add_argument("--points-dense", type=int, default=10_000_000)
    parser.add_argument("--points-moe", type=int, default=4_000_000)
    parser.add_argument("--worker", nargs=4, metavar=("MODEL", "CLUSTER", "PRECISION", "POINTS"))
    given = parser.parse_args()
    if given.worker:
        model, cluster, label, points = given.worker
        print(json.dumps(grid(model, cluster, label, int(points))))
        return 0
    bars, grids = measure(given.points_dense, given.points_moe)
    if not given.json:
        print("\n".join(bar.text() for bar in bars), file=sys.stderr)
    cleared = all(bar.cleared for bar in bars)
    data = {"bars": [{**asdict(bar), "cleared": bar.cleared} for bar in bars], **grids, "cleared": cleared}
    print(json.dumps(data, indent=None if given.json else 2))
    return 0 if cleared else 1


if __name__ == "__main__":
    sys.exit(main())

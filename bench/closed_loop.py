"""The loop of a plan on this machine: planned, started with the plan's own flags, observed at its rate; stored.

    uv run --group dev python bench/closed_loop.py docs/measured/machine-llama-cpp-fp32.toml [--runs 10] [--requests 60]
    uv run --group dev python bench/closed_loop.py docs/measured/machine-llama-cpp-fp32.toml --again

The engine is llama.cpp with random weights (88 million parameters), its server that of xllamacpp
(`llama_server`), the machine file that of `rackline measure`. Three loads at 30, 50 and 70 % of what the simulator
expects at most calibrate what the server adds to its passes. Then one plan with limits on the 90th percentiles, and its
server, observed at the planned rate in runs with random seeds of their own, started anew for each.
docs/measured/closed-loop.json holds the plan, every run's percentiles, what a run of so many requests should show
(`plan --sample`), and in how many runs it did. `--again` works the last two out anew for the runs that are stored.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from random_llama import main as write_random_llama
from served_engines import BACKLOG, LOADS, running

import rackline as rl
from rackline.arch import model
from rackline.files import rounded
from rackline.hardware import cluster
from rackline.parallel import Layout, precision
from rackline.plain import plain
from rackline.search.served import FewRequests, few_requests, group_of_one
from rackline.serving.workload import Mode, Workload
from rackline.system import System
from rackline.validation.observed_fit import scaled

ROOT = Path(__file__).resolve().parents[1]
SERVER = ROOT / "bench" / "llama_server.py"
LENGTHS = {"input": 128, "output": 16}
LIMITS = {"tpot": "100ms@p90", "ttft": "2s@p90"}
TIMES = ("ttft_s", "tpot_s")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def observed(words: Sequence[str], config: str, machine: str, rate: float, seed: int, requests: int, file: Path) -> Any:
    """The answer of `observe` on a server that is started with these words."""
    port = free_port()
    flags = dict(zip(words[1::2], words[2::2], strict=True))
    command = [sys.executable, str(SERVER), *words[1:], "--host", "127.0.0.1", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with running(subprocess.list2cmdline(command), url):
        return rl.observe(
            url, model=config, on=machine, precision="fp32", rate=rate, requests=requests, seed=seed, yes=True,
            max_num_seqs=int(flags["--parallel"]), max_batched_tokens=int(flags["--batch-size"]), save=str(file),
            stack="llama-cpp", **LENGTHS,
        ).to_dict()  # fmt: skip


def planned(config: str, machine: str, calibration: str, requests: int) -> tuple[list[str], dict[str, Any], Any]:
    """Words of the plan's only replica, the plan, and what so many requests show of it."""
    answer = rl.plan(
        config, on=machine, calibration=calibration, precision="fp32", engine="llama-cpp", launch=True, sample=requests,
        **LENGTHS, **LIMITS,
    )  # fmt: skip
    (command,) = answer.result.launch
    assert command.lacks == ()
    return list(command.words), answer.to_dict(), answer.result.sample


def inside(sample: FewRequests, runs: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Runs in which each statistic lies in its interval [count]."""
    return {
        f"{one.metric} {one.statistic}": sum(one.low_s <= run[one.metric][one.statistic] <= one.high_s for run in runs)
        for one in sample.shown
    }


def again(machine: str, path: Path) -> None:
    """Intervals for the stored runs, by the numbers that were fitted before them."""
    data = json.loads(path.read_text(encoding="utf-8"))
    values = {one["name"]: one["value"] for one in data["calibrated"]["estimates"]}
    flags = dict(zip(data["flags"][1::2], data["flags"][2::2], strict=True))
    with tempfile.TemporaryDirectory() as text:
        write_random_llama(Path(text), "fp32")
        shape = model(str(Path(text) / "config.json"))
    on = cluster(machine)
    numbers = scaled(rl.calibration(machine, on.chip), *(values[key] for key in ("memory", "compute", "launches")))
    system = System.of(shape, on, calibration=numbers, precisions=[precision("fp32", shape, on.chip)])
    stack = system.stack.with_values(
        {
            "scheduler.max_num_seqs": int(flags["--parallel"]),
            "graphs.prefill_slowdown": values["prefill_slowdown"],
            "host.s_per_sequence": values["host_s_per_sequence"],
            "arrivals.first_token_s": values["first_token_s"],
        }
    )
    work = Workload(input_len=LENGTHS["input"], output_len=LENGTHS["output"])
    mode = Mode(admission="chunked", max_batched_tokens=int(flags["--batch-size"]))
    group = group_of_one(system.deployment(Layout(), system.precisions[0]), stack, mode, work)
    errors = {one["metric"]: one["held_out_p90"] for one in data["calibrated"]["errors"]}
    sample = few_requests(group, data["requests_per_s"], data["runs"][0]["finished"], errors)
    data |= {"sample": plain(sample), "inside": inside(sample, data["runs"])}
    path.write_text(json.dumps(rounded(data), indent=1) + "\n", encoding="utf-8")
    print(json.dumps(data["inside"], indent=1))


def main() -> None:
    """Run the loop and store it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("machine")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--again", action="store_true", help="only what the stored runs should show")
    given = parser.parse_args()
    path = ROOT / "docs" / "measured" / "closed-loop.json"
    if given.again:
        again(given.machine, path)
        return
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        write_random_llama(folder, "fp32")
        config, mine = str(folder / "config.json"), str(folder / "mine.toml")
        words, _, _ = planned(config, given.machine, given.machine, given.requests)
        slots = int(words[words.index("--parallel") + 1])
        most = rl.simulate(
            config, on=given.machine, precision="fp32", calibration=given.machine, max_num_seqs=slots, rate="inf",
            requests=BACKLOG, **LENGTHS,
        ).to_dict()  # fmt: skip
        files = [folder / f"load-{number}.jsonl" for number in range(len(LOADS))]
        for number, (load, file) in enumerate(zip(LOADS, files, strict=True)):
            rate = load * BACKLOG / most["makespan_s"]
            observed(words, config, given.machine, rate, 100 + number, given.requests // 2, file)
        fit = rl.calibrate(observed=[str(file) for file in files], calibration=given.machine, output=mine).to_dict()
        words, plan, sample = planned(config, given.machine, mine, given.requests)
        rate = plan["best"]["requests_per_s"]
        runs: list[dict[str, Any]] = []
        for seed in range(1, given.runs + 1):
            found = observed(words, config, given.machine, rate, seed, given.requests, folder / f"run-{seed}.jsonl")
            runs.append({"seed": seed, **{key: found[key] for key in ("finished", "requests_per_s", *TIMES)}})
            print(json.dumps(rounded(runs[-1])), flush=True)
    data = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": Path(given.machine).name,
        "flags": [word if str(folder) not in word else Path(word).name for word in words],
        "limits": LIMITS,
        "lengths": LENGTHS,
        "requests_per_s": rate,
        "planned": {key: plan["best"]["simulated"][key] for key in TIMES},
        "calibrated": fit,
        "runs": runs,
        "sample": plain(sample),
        "inside": inside(sample, runs),
    }
    path.write_text(json.dumps(rounded(data), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

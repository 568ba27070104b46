"""Requests of a running engine's server against the simulator, before and after calibrating to them; stored.

    llama/bin/python bench/random_llama.py MODEL
    vllm/bin/python -m vllm.entrypoints.openai.api_server --model MODEL --load-format dummy --dtype float32 \
        --enforce-eager --max-model-len 1024 --max-num-seqs 8 --max-num-batched-tokens 272 \
        --no-enable-prefix-caching --host 127.0.0.1 --port 8765
    uv run python bench/served_engines.py NAME URL MODEL docs/measured/machine-NAME.toml VERSION [--seed 1] \
        [--server "llama-server -m MODEL/model.gguf -t 2 -c 8192 -np 8 -b 272 -ub 272 -ctk f32 -ctv f32 \
        --cache-ram 0 --port 8766"]
    uv run python bench/served_engines.py NAME URL MODEL docs/measured/machine-NAME.toml VERSION --again

The first call sends, the second predicts. One of the two servers runs at a time; --server starts it anew for each run,
so that slots are taken from the first on, as they are simulated. NAME is the engine's; the machine file comes from
`rackline measure`, which measures passes in the engine's process and knows nothing of the server. Three
traces with random arrivals, at 30, 50 and 70 % of the rate that the simulator expects at most; then requests that are
all there at once; then a later trace. `calibrate --from` fits the stack's numbers to the first three, and the later one
is predicted with and without them. docs/measured/observed-NAME.jsonl holds every request, served-NAME.json the errors.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import rackline as rl
from rackline.files import rounded

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "measured"
LOADS = (0.3, 0.5, 0.7)
LATER = 0.6
LENGTHS = {"input": 128, "output": 16}
BUDGET = 272
START_S = 120.0
BACKLOG = 24


def errors(files: list[str], calibration: str) -> dict[str, dict[str, float]]:
    """Errors of each request's times, by metric."""
    found = rl.validate(files=files, calibration=calibration).result.board.metrics
    return {
        name: {
            "n": score.n,
            "median_abs_error": score.median_abs_error,
            "p90_abs_error": score.p90_abs_error,
            "bias": score.bias,
        }
        for name, score in found.items()
        if name in ("ttft_s", "tpot_s", "e2e_s") and score.n
    }


def highest_of(config: str, served: dict[str, Any], machine: str) -> float:
    """Requests a second that the simulator expects when all are there at once."""
    expected = rl.simulate(config, rate="inf", requests=BACKLOG, calibration=machine, **served).to_dict()
    return BACKLOG / expected["makespan_s"]


@contextmanager
def running(command: str, url: str) -> Iterator[None]:
    """A server that answers, ended afterwards; without a command, one that runs already."""
    if not command:
        yield
        return
    started = subprocess.Popen(shlex.split(command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + START_S
        while True:
            try:
                with urllib.request.urlopen(f"{url}/health", timeout=1.0):
                    break
            except OSError:
                if started.poll() is not None or time.monotonic() > until:
                    raise
                time.sleep(0.1)
        yield
    finally:
        started.terminate()
        started.wait()


def observe_all(
    url: str, server: str, config: str, served: dict[str, Any], highest: float, seed: int, requests: int, runs: Path
) -> None:
    """Send all loads; `runs` gets a line of each."""
    runs.unlink(missing_ok=True)
    for number, load in enumerate((*LOADS, None, LATER)):
        with tempfile.TemporaryDirectory() as folder, running(server, url):
            file = Path(folder) / "run.jsonl"
            rl.observe(
                url,
                model=config,
                rate=load * highest if load else "inf",
                requests=requests if load else BACKLOG,
                seed=seed + number,
                max_batched_tokens=BUDGET,
                yes=True,
                save=str(file),
                **served,
            )
            with runs.open("a", encoding="utf-8") as lines:
                lines.write(file.read_text(encoding="utf-8"))


def predicted(text: str, highest: float, machine: str) -> dict[str, Any]:
    """Errors of the traces with the machine's numbers alone, and of the later one with those of the first traces."""
    with tempfile.TemporaryDirectory() as folder:
        files: list[str] = []
        for number, line in enumerate(text.splitlines(keepends=True)):
            files.append(str(Path(folder) / f"{number}.jsonl"))
            Path(files[-1]).write_text(line, encoding="utf-8")
        traces, later = files[: len(LOADS)], files[-1]
        runs = [json.loads(line) for line in text.splitlines()]
        backlog = [one["end_s"] for one in runs[len(LOADS)]["requests"] if one["outcome"] == "finished"]
        rate = len(backlog) / max(backlog)
        mine = str(Path(folder) / "mine.toml")
        fit = rl.calibrate(observed=traces, calibration=machine, output=mine).result.observed
        return {
            "finished": [sum(one["outcome"] == "finished" for one in run["requests"]) for run in runs],
            "generator_binds": [run["generator"]["binds"] for run in runs],
            "saturation_requests_per_s": {"predicted": highest, "measured": rate, "error": highest / rate - 1.0},
            "traces": {f"{load:.0%}": errors([file], machine) for load, file in zip(LOADS, traces, strict=True)},
            "all_traces": errors(traces, machine),
            "calibrated": [
                {"name": one.name, "value": one.value, "low": one.low, "high": one.high, "determined": one.determined}
                for one in fit.estimates
            ],
            "later": errors([later], machine),
            "later_calibrated": errors([later], mine),
        }


def main() -> None:
    """Observe, predict, calibrate, predict again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("name", "url", "model", "machine", "version"):
        parser.add_argument(name)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--slots", type=int, default=8, help="requests in progress at the server")
    parser.add_argument("--server", default="", help="command that starts the server, anew for each run")
    parser.add_argument("--again", action="store_true", help="predict the stored runs, send nothing")
    given = parser.parse_args()
    served = {"on": given.machine, "precision": "fp32", "max_num_seqs": given.slots, **LENGTHS}
    config = str(Path(given.model) / "config.json")
    highest = highest_of(config, served, given.machine)
    runs = FOLDER / f"observed-{given.name}.jsonl"
    if not given.again:
        observe_all(given.url, given.server, config, served, highest, given.seed, given.requests, runs)
        return
    data = {
        "engine": given.name,
        "version": given.version,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": Path(given.machine).name,
        "lengths": LENGTHS,
        "slots": given.slots,
        "loads": [*LOADS, "all at once", LATER],
        **predicted(runs.read_text(encoding="utf-8"), highest, given.machine),
    }
    text = json.dumps(rounded(data), indent=1) + "\n"
    (FOLDER / f"served-{given.name}.json").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()

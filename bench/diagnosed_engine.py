"""Causes planted in a real engine on this machine, and what `diagnose` says of each; stored.

    uv run --group dev python bench/diagnosed_engine.py docs/measured/machine-llama-cpp-fp32.toml [--priority]

The engine is llama.cpp with random weights (88 million parameters), its server that of xllamacpp
(`llama_server`), the machine file that of `rackline measure`. Three loads on the server as it should be calibrate it;
then it is started anew for each fault, and once without any, and gets a load of another random seed, the same for all:

- one thread of two;
- one slot of eight;
- its prompt cache off, where all prompts share a beginning (seldom several at once: each slot has a cache of its own);
- a core that another process computes on all the time, so that half of it is left;
- processes that use both cores in bursts, a seventh of the time.

A client cannot tell a core that is taken from a thread that was never started: both are the cause `cores`. With
--priority the server and its load run with real-time priority, as on a machine that nobody else uses; processes that
are in its way on purpose then take their share of the time of a core themselves, in turns of 3 ms, as a fair scheduler
gives it to them. docs/measured/diagnosed-engine.json holds the load of the machine, each run's times and what was said.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from closed_loop import SERVER, free_port
from random_llama import main as write_random_llama
from served_engines import running

import rackline as rl
from rackline.files import rounded

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "docs" / "measured" / "diagnosed-engine.json"
PLAIN: dict[str, Any] = {"input": 128, "output": 16, "lengths": "uniform"}
SHARED: dict[str, Any] = {"turns": 1, "session_lengths": "fixed", "system_prompt": 256, "input": 64, "output": 16}
USUAL = {"threads": 2, "parallel": 8, "batch-size": 272}
HEALTHY = (0.3, 0.5, 0.7)
RATE, SHARED_RATE = 0.6, 0.3  # of the highest, in diagnosed runs
PRIORITY = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that is wrong with the server.

    Args:
        name: in words.
        causes: keys of `causes.toml` that are right; empty for none.
        flags: of the server, in place of the usual ones.
        switches: further flags.
        load: that it is seen under.
        taken: cores of which other processes take `share`, `on_s` of every `every_s`.
    """

    name: str
    causes: tuple[str, ...]
    flags: dict[str, int]
    switches: tuple[str, ...] = ()
    load: Mapping[str, Any] = field(default_factory=lambda: PLAIN)
    taken: tuple[int, ...] = ()
    share: float = 0.5
    on_s: float = 1.0
    every_s: float = 1.0


FAULTS = (
    Fault(name="none", causes=(), flags={}),
    Fault(name="none, prompts share a beginning", causes=(), flags={}, load=SHARED),
    Fault(name="one thread of two", causes=("cores",), flags={"threads": 1}),
    Fault(name="one slot of eight", causes=("sequences",), flags={"parallel": 1}),
    Fault(name="prompt cache off", causes=("prefix-cache",), flags={}, switches=("--no-cache-prompt",), load=SHARED),
    Fault(name="a core that is busy", causes=("cores",), flags={}, taken=(0,)),
    Fault(name="busy in bursts", causes=("neighbour",), flags={}, taken=(0, 1), share=0.75, on_s=0.4, every_s=2.8),
)

_BUSY = """
import os, sys, time
core, priority, share, on_s, every_s = int(sys.argv[1]), int(sys.argv[2]), *map(float, sys.argv[3:])
os.sched_setaffinity(0, {core})
turn_s = 3e-3
if priority:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
while True:
    begun = time.monotonic()
    while time.monotonic() - begun < on_s:
        until = time.monotonic() + turn_s
        while time.monotonic() < until:
            pass
        if priority:
            time.sleep(turn_s * (1.0 - share) / share)
    time.sleep(max(every_s - on_s, 0.0))
"""


@contextlib.contextmanager
def in_the_way(fault: Fault, priority: int) -> Iterator[None]:
    """Processes that compute on some cores."""
    with contextlib.ExitStack() as stack:
        for core in fault.taken:
            words = [core, priority and priority + 5, fault.share, fault.on_s, fault.every_s]
            one = stack.enter_context(subprocess.Popen([sys.executable, "-c", _BUSY, *map(str, words)]))
            stack.callback(one.kill)
        yield


@contextlib.contextmanager
def prioritised(priority: int) -> Iterator[None]:
    """This process, which sends the load, ahead of the server, and both of all others; 0 leaves it as it is."""
    if priority:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(priority + 1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def observed(
    fault: Fault, model: Path, machine: str, rate: float | str, seed: int, requests: int, file: Path, priority: int
) -> dict[str, Any]:
    """A load on a server that is started for it."""
    port = free_port()
    flags = {**USUAL, **fault.flags}
    ahead = ["chrt", "-r", str(priority)] if priority else []
    words = [*ahead, sys.executable, str(SERVER), "--model", str(model / "model.gguf"), "--ctx-size", "4096"]
    for name, value in (*flags.items(), ("ubatch-size", flags["batch-size"]), ("cache-ram", 0), ("port", port)):
        words += [f"--{name}", str(value)]
    words += ["--cache-type-k", "f32", "--cache-type-v", "f32", *fault.switches]
    url = f"http://127.0.0.1:{port}"
    begun = os.getloadavg()[0]
    with prioritised(priority), running(subprocess.list2cmdline(words), url), in_the_way(fault, priority):
        found = rl.observe(
            url, model=str(model / "config.json"), on=machine, precision="fp32", rate=rate, requests=requests,
            seed=seed, yes=True, max_num_seqs=USUAL["parallel"], max_batched_tokens=USUAL["batch-size"],
            stack="llama-cpp", save=str(file), **fault.load,
        ).to_dict()  # fmt: skip
    return {**{key: found[key] for key in ("finished", "ttft_s", "tpot_s")}, "load_average": begun}


def told(file: Path, calibration: str, well: Sequence[Path]) -> dict[str, Any]:
    """What `diagnose` says of a run, with the runs of the server when it was well."""
    (run,) = rl.diagnose(str(file), calibration=calibration, well=[str(one) for one in well]).to_dict()["runs"]
    return {
        "nothing": run["nothing"],
        "measured_s": run["measured_s"],
        "expected_s": run["expected_s"],
        "suspects": [
            {key: one[key] for key in ("cause", "probability", "size", "share_of_gap")} for one in run["suspects"][:3]
        ],
    }


def main() -> None:
    """Calibrate, plant, observe, diagnose and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("machine")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=2.2, help="requests a second that the server takes at most")
    parser.add_argument("--priority", action="store_true", help="ahead of all other processes; needs root")
    parser.add_argument("--keep", type=Path, help="folder for the runs")
    given = parser.parse_args()
    priority = PRIORITY if given.priority else 0
    with contextlib.ExitStack() as stack:
        folder = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(exist_ok=True)
        if not (folder / "model.gguf").exists():
            write_random_llama(folder, "fp32")

        def seen(fault: Fault, rate: float, seed: int, requests: int, file: Path) -> dict[str, Any]:
            """A run, or what is kept of it."""
            kept = file.with_suffix(".json")
            if not kept.exists():
                found = observed(fault, folder, given.machine, rate * given.rate, seed, requests, file, priority)
                kept.write_text(json.dumps(rounded(found)), encoding="utf-8")
                print(fault.name, kept.read_text(encoding="utf-8"), flush=True)
                time.sleep(5.0)  # for others who use the machine
            return json.loads(kept.read_text(encoding="utf-8"))

        well = [folder / f"load-{number}.jsonl" for number in range(len(HEALTHY))]
        for number, (load, file) in enumerate(zip(HEALTHY, well, strict=True)):
            seen(FAULTS[0], load, 100 + given.seed + number, 24, file)
        files = [folder / f"fault-{number}.jsonl" for number in range(len(FAULTS))]
        runs = [
            seen(fault, RATE if fault.load is PLAIN else SHARED_RATE, 1000 * given.seed, given.requests, file)
            for number, (fault, file) in enumerate(zip(FAULTS, files, strict=True))
        ]
        mine = folder / "mine.toml"
        if not mine.exists():
            rl.calibrate(observed=[str(file) for file in well], calibration=given.machine, output=str(mine))
        for fault, file, run in zip(FAULTS, files, runs, strict=True):
            said = told(file, str(mine), well)
            first = said["suspects"][0]["cause"] if said["suspects"][0]["probability"] > said["nothing"] else ""
            run |= {"fault": fault.name, "causes": fault.causes, **said}
            run["right"] = first in fault.causes or (not fault.causes and not first)
            print(json.dumps(rounded(run)), flush=True)
    stored = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else []
    stored.append(
        {
            "date": datetime.now(UTC).isoformat(timespec="minutes"), "machine": Path(given.machine).name,
            "seed": given.seed, "priority": given.priority, "loads": [PLAIN, SHARED], "server": USUAL,
            "requests_per_s": [RATE * given.rate, SHARED_RATE * given.rate],
            "right": sum(one["right"] for one in runs if one["causes"]), "of": sum(bool(one["causes"]) for one in runs),
            "runs": runs,
        }
    )  # fmt: skip
    OUT.write_text(json.dumps(rounded(stored), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

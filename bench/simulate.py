"""Wall time of `rackline simulate` with start-up: Mooncake's conversation trace, a million requests, 20,000 requests.

uv run python bench/simulate.py [FOLDER_OF_TRACES]
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

PEERS = {"DynoSim (Rust)": 6880.0, "Vidur": 1151.0}  # requests/s on two cores, 20,000 requests 2048/256 at 10/s


def served(*words: str) -> tuple[float, float, int]:
    """(wall seconds of the command, seconds of the simulation alone, requests)."""
    start = time.perf_counter()
    done = subprocess.run(["rackline", "simulate", *words, "--json"], capture_output=True, text=True, check=True)
    data = json.loads(done.stdout)
    return time.perf_counter() - start, data["elapsed_s"], data["requests"]


def main(traces: Path) -> None:
    """Print a line per workload."""
    small = ("llama-3.1-8b", "--on", "dgx-h100", "--chips", "1", "--rate", "10", "--input", "2048", "--output", "256")
    cases = {"20,000 × 2048/256 at 10/s": (*small, "--requests", "20000")}
    cases["1,000,000 × 2048/256 at 10/s"] = (*small, "--requests", "1000000")
    mooncake = traces / "mooncake_conversation_trace.jsonl"
    if mooncake.is_file():
        deepseek = ("deepseek-v3", "--on", "dgx-h200", "--layout", "tp=8,ep=8", "--trace", str(mooncake))
        cases["Mooncake conversation, DeepSeek V3"] = deepseek
    for name, words in cases.items():
        wall_s, elapsed_s, count = served(*words)
        print(f"{name:36} {wall_s:6.2f} s wall, {elapsed_s:6.2f} s simulated, {count / wall_s:10,.0f} requests/s")
        if count == 20_000:
            for peer, rate in PEERS.items():
                with_start, without = count / wall_s / rate, count / elapsed_s / rate
                print(f"{'':36} {with_start:6.1f} times {peer}, {without:.1f} without start-up")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "../shared/traces"))

"""Kill a sweep at random moments, again and again, and compare what it leaves with an undisturbed run.

    python bench/sweep_kills.py [KILLS] [--seed SEED] [--ray]

Each kill takes the driver (with all that it has started) or one of its workers, by kill -9. After the last one the
sweep runs to its end. It must have every shard once, none of them half, byte for byte those of the undisturbed run.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import polars as pl

SPACE = """
[options]
model = "llama-3.1-8b"
on = ["l40s-8", "dgx-h100"]
layout = "tp=1"
batch = { linear = [1, 1000], num = 1000 }
context = { linear = [1000, 9000], num = 4000 }
[objectives]
usd_per_mtok_output = "min"
[output]
rows_per_shard = 20000
"""


def shards(folder: Path) -> dict[str, bytes]:
    """All files of a sweep by name, half ones among them."""
    return {path.name: path.read_bytes() for path in (folder / "shards").glob("*")} if folder.is_dir() else {}


def whole(folder: Path) -> int:
    """Shards that are there [count]."""
    return len([path for path in (folder / "shards").glob("*.parquet") if not path.name.startswith(".")])


def children(pid: int) -> list[int]:
    """Processes that a process has started, and those that they have."""
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()
    return [one for word in found for one in (int(word), *children(int(word)))]


def main() -> None:
    """Kill, resume, compare."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("kills", nargs="?", type=int, default=20)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--ray", action="store_true")
    asked = arguments.parse_args()
    rng = random.Random(asked.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        space, out = folder / "space.toml", folder / "killed"
        space.write_text(SPACE)
        words = [sys.executable, "-m", "rackline", "sweep", str(space), "--workers", "2"]
        killed = [*words, "--out", str(out), *(["--ray", "local"] if asked.ray else [])]
        drivers = workers = at_the_end = 0
        number = 0
        while number < asked.kills:
            run = subprocess.Popen(killed, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
            before = whole(out)
            wanted = before + rng.randint(1, 12)
            while run.poll() is None and whole(out) < wanted:
                time.sleep(0.01)
            time.sleep(rng.random() * 0.1)
            if run.poll() is not None:
                at_the_end += 1
                for path in (out / "shards").glob("*.parquet"):  # all was done: begin again
                    path.unlink()
                continue
            started = children(run.pid)
            if rng.random() < 0.5 and started:
                os.kill(rng.choice(started), signal.SIGKILL)
                workers += 1
                number += 1
                time.sleep(rng.random())
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
            drivers += 1
            number += 1
            print(f"{number} kills: {whole(out)} shards", flush=True)
        subprocess.run(killed, check=True, stdout=subprocess.DEVNULL)
        subprocess.run([*words[:-1], "1", "--out", str(folder / "calm")], check=True, stdout=subprocess.DEVNULL)
        a, b = shards(out), shards(folder / "calm")
        same = a == b
        print(f"{drivers} drivers and {workers} workers killed; {at_the_end} runs had ended before")
        print(f"{len(a)} shards, {len(set(a) ^ set(b))} missing or too many; byte for byte the same: {same}")
        rows = pl.scan_parquet(str(out / "shards" / "*.parquet"))
        keys = ["on", "batch", "context"]
        count = rows.select(pl.len()).collect().item()
        distinct = rows.select(keys).unique().select(pl.len()).collect().item()
        print(f"{count:,} rows, {count - distinct} of them twice, {8_000_000 - distinct} missing")
        sys.exit(0 if same and count == distinct == 8_000_000 else 1)


if __name__ == "__main__":
    main()

"""200 clients at once for a minute: how long answers take, what is refused, how memory grows.

    uv run python bench/web_load.py [--seconds 60] [--clients 200]

Each client asks one question after the other: mostly one pass of a random batch and context, now and then a plan's
little sister (fit, tiers, models) and a simulation. A refusal with 429 is waited out as it asks. Prints one JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from web_started import started

MODELS = ("llama-3.1-8b", "llama-3.1-70b", "qwen3-32b", "gpt-oss-120b")


def question(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """A question of a client."""
    model, kind = rng.choice(MODELS), rng.random()
    if kind < 0.9:
        batch, context = rng.randint(1, 256), rng.randint(1, 64) * 512
        return "explain", {"model": model, "on": "dgx-h200", "batch": batch, "context": context, "layout": "tp=8"}
    if kind < 0.94:
        return "models", {"name": model}
    if kind < 0.97:
        return "fit", {"model": model, "on": "dgx-h200", "context": rng.randint(1, 128) * 1000, "layout": "tp=8"}
    served = {"rate": "5", "input": "1k", "output": "100", "requests": rng.randint(200, 400)}
    return "simulate", {"model": "llama-3.1-8b", "on": "dgx-h100", "chips": 1, **served}


def memory_bytes(pid: int) -> int:
    """Resident memory of a process and all below it, what is shared counted each time [bytes]."""
    table: dict[int, tuple[int, int]] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
                pages = int((place / "statm").read_text().split()[1])
            except (OSError, IndexError):
                continue
            table[int(place.name)] = parent, pages
    found, left = 0, [pid]
    while left:
        one = left.pop()
        found += table.get(one, (0, 0))[1] * resource.getpagesize()
        left += [child for child, (parent, _) in table.items() if parent == one]
    return found


async def client(address: str, seed: int, end: float, took: dict[str, list[float]], seen: Counter[str]) -> None:
    """Ask until the end."""
    rng = random.Random(seed)
    async with httpx.AsyncClient(base_url=address, timeout=60) as http:
        while time.monotonic() < end:
            name, body = question(rng)
            start = time.monotonic()
            try:
                found = await http.post(f"/api/v1/{name}", json=body)
            except httpx.HTTPError as error:
                seen[f"{name} {type(error).__name__}"] += 1
                continue
            seen[f"{name} {found.status_code}"] += 1
            if found.status_code == 200:
                took[name].append(time.monotonic() - start)
            elif found.status_code == 429:
                await asyncio.sleep(float(found.headers["retry-after"]) * rng.uniform(0.5, 1.5))


async def load(address: str, pid: int, clients: int, seconds: float) -> dict[str, Any]:
    """The clients and a watch on memory."""
    took: dict[str, list[float]] = {"explain": [], "models": [], "fit": [], "simulate": []}
    seen: Counter[str] = Counter()
    end = time.monotonic() + seconds
    before = memory_bytes(pid)
    running = [asyncio.create_task(client(address, seed, end, took, seen)) for seed in range(clients)]
    highest = before
    while time.monotonic() < end:
        await asyncio.sleep(1.0)
        highest = max(highest, memory_bytes(pid))
    await asyncio.gather(*running)
    return {
        "clients": clients,
        "seconds": seconds,
        "answers": dict(sorted(seen.items())),
        "took_s": {name: _percentiles(times) for name, times in took.items() if times},
        "memory_bytes": {"before": before, "highest": highest, "after": memory_bytes(pid)},
    }


def _percentiles(times: list[float]) -> dict[str, float]:
    ranked = sorted(times)
    places = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {
        "n": len(ranked),
        **{key: round(ranked[int(share * (len(ranked) - 1))], 4) for key, share in places.items()},
    }


def main() -> int:
    """Start a server, load it, stop it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    with started(given.workers) as (address, pid):
        first = {"model": MODELS[0], "on": "dgx-h200", "batch": 1, "context": 1000}
        for _ in range(4):
            httpx.post(f"{address}api/v1/explain", json=first, timeout=120).raise_for_status()
            first["batch"] += 1
        found = asyncio.run(load(address, pid, given.clients, given.seconds))
        usage = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        found["server_cpu_s"] = round((int(usage[11]) + int(usage[12])) / 100, 2)
    print(json.dumps(found, indent=2))
    errors = {key for key in found["answers"] if not key.endswith((" 200", " 429"))}
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())

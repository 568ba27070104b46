"""Large inputs: CPU seconds and peak memory of `validate`, `plan` and `simulate`, each in a process of its own.

    python bench/scale.py CASES.jsonl [CASES] [CHIPS] [ROWS]

CASES.jsonl are served cases or static batches; they are repeated with other concurrencies or batch sizes, and prompts,
until there are CASES of them.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MEASURED = "import sys; from rackline.__main__ import run; sys.argv[0] = 'rackline'; run()"


def measure(name: str, *arguments: str) -> float:
    """Run a command, print what it took and return its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", MEASURED, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    # of the largest process so far: the commands are run in rising order of memory
    print(f"{name}: {seconds:.2f} s of CPU, at most {after.ru_maxrss / 1024:.0f} MiB")
    return seconds


def varied(case: dict[str, Any], name: int, by: int) -> dict[str, Any]:
    """A case like another with other requests."""
    counted = {key: case[key] + by for key in ("concurrency", "batch_size", "input_len") if case.get(key)}
    return {**case, **counted, "id": str(name)}


def main(cases: str, num_cases: int = 10_000, num_chips: int = 32_768, num_rows: int = 1_000_000) -> None:
    """Measure all three."""
    known = [json.loads(line) for line in Path(cases).read_text(encoding="utf-8").splitlines() if line.strip()]
    with tempfile.TemporaryDirectory() as folder:
        many, one, trace = (Path(folder) / name for name in ("many.jsonl", "one.jsonl", "trace.csv"))
        rows = [varied(known[i % len(known)], i, i // len(known)) for i in range(num_cases)]
        many.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        one.write_text(json.dumps(rows[0]) + "\n", encoding="utf-8")
        start = measure("validate, 1 case", "validate", str(one), "--json")
        whole = measure(f"validate, {num_cases:,} cases", "validate", str(many), "--json")
        print(f"  {num_cases / (whole - start):,.0f} cases a CPU second beyond the start")
        lines = (f"{i * 0.2:.1f},{500 + i % 1000},{8 + i % 16}\n" for i in range(num_rows))
        with trace.open("w", encoding="utf-8") as file:
            file.write("arrived_at,num_prefill_tokens,num_decode_tokens\n")
            file.writelines(lines)
        deployed = (
            "llama-3.1-8b",
            "--on",
            "dgx-h100",
            "--chips",
            "1",
            "--layout",
            "tp=1",
            "--trace",
            str(trace),
            "--json",
        )
        measure(f"simulate, {num_rows:,} rows", "simulate", *deployed)
        asked = ("--input", "4k", "--output", "1k", "--tpot", "30ms", "--ttft", "2s", "--json")
        measure(
            f"plan, {num_chips:,} chips",
            "plan",
            "deepseek-v3",
            "--on",
            "gb200-nvl72",
            "--chips",
            str(num_chips),
            *asked,
        )


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))

"""Somebody's results: tables for `audit`, observed runs for `validate`, `audit` and `diagnose`."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from mutate import ROOT, changed, changed_cell, json_text, write

_TABLE = (ROOT / "docs/how-to/results.csv").read_text(encoding="utf-8")
_CASE: dict[str, Any] = json.loads((ROOT / "docs/how-to/servings.jsonl").read_text(encoding="utf-8").splitlines()[0])
_OPTIONS = (
    [], ["--json"], ["--concurrency", "4"], ["--map", "TPOT (ms)=tpot_s:s"], ["--map", "TTFT (ms)="],
    ["--num-chips", "8"],
    ["--map", "GPU=nothing"], ["--chip", "h100"], ["--precision", "fp8"], ["--layout", "tp=2"], ["--form", "vllm"],
)  # fmt: skip


def _run() -> dict[str, Any]:
    """A short observed run, with six of its requests."""
    with (ROOT / "docs/measured/observed-llama-cpp.jsonl").open(encoding="utf-8") as lines:
        found = json.loads(next(lines))
    return {**found, "requests": found["requests"][:6]}


_RUN = _run()


def result(rng: Random, folder: Path) -> list[str]:
    """A command that judges results."""
    kind = rng.randrange(6)
    if kind == 0:
        return ["audit", write(rng, folder / "t.csv", changed_cell(rng, _TABLE), share=0.3), *rng.choice(_OPTIONS)]
    if kind == 1:
        rows = [line.split(",") for line in changed_cell(rng, _TABLE).splitlines()]
        lines = [f"| {' | '.join(row)} |" for row in rows]
        lines.insert(1, "|" + "---|" * len(rows[0]))
        return ["audit", write(rng, folder / "t.md", "\n".join(lines), share=0.3), *rng.choice(_OPTIONS)]
    if kind == 2:
        rows = [line.split(",") for line in changed_cell(rng, _TABLE).splitlines()]
        cells = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
        return ["audit", write(rng, folder / "t.html", f"<table>{cells}</table>", share=0.5), *rng.choice(_OPTIONS)]
    if kind == 3:
        return ["audit", write(rng, folder / "c.jsonl", json_text(changed(rng, _CASE, 3)), share=0.2)]
    file = write(rng, folder / "run.jsonl", json_text(changed(rng, _RUN, 3)), share=0.2)
    return [rng.choice(["validate", "validate", "audit", "diagnose"]), file]

"""Traces for `simulate --trace`: CSV, JSON lines and results of vLLM's benchmark."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from mutate import ODD_TEXTS, changed, json_text, write

_NAMES = (
    ("arrival_s", "input_len", "output_len"),
    ("timestamp", "input_length", "output_length", "hash_ids"),
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    ("arrived_at", "num_prefill_tokens", "num_decode_tokens", "priority"),
)
_MORE = (["--skip-bad"], ["--time-unit", "ms"], ["--time-unit", "s"], ["--json"], ["--requests", "2"])


def trace(rng: Random, folder: Path) -> list[str]:
    """A command that reads a trace."""
    rows = [_row(rng, number) for number in range(rng.randint(1, 4))]
    match rng.randrange(3):
        case 0:
            file = write(rng, folder / "t.csv", _csv(rng, rows))
        case 1:
            lines = [json_text(changed(rng, row) if rng.random() < 0.5 else row) for row in rows]
            file = write(rng, folder / "t.jsonl", "\n".join(lines))
        case _:
            whole: Any = {
                "input_lens": [100] * len(rows),
                "output_lens": [3] * len(rows),
                "start_times": [0.1 * number for number in range(len(rows))],
            }
            file = write(rng, folder / "t.json", json_text(changed(rng, whole)))
    more = rng.choice(_MORE) if rng.random() < 0.4 else []
    return ["simulate", "llama-3.1-8b", "--on", "dgx-h100", "--chips", "1", "--trace", file, *more]


def _row(rng: Random, number: int) -> dict[str, Any]:
    names = _NAMES[rng.randrange(4) if rng.random() < 0.1 else 0]
    values = (number * rng.choice([0.1, 1, 1000]), rng.randint(1, 900), rng.randint(1, 5), [number, number + 1])
    return dict(zip(names, values, strict=False))


def _csv(rng: Random, rows: list[dict[str, Any]]) -> str:
    names = list(rng.choice(_NAMES))
    if rng.random() < 0.2:
        names[rng.randrange(len(names))] = rng.choice([*ODD_TEXTS, names[0]])
    cells = [[str(value) for value in row.values()] for row in rows]
    if rng.random() < 0.4:
        line = rng.choice(cells)
        line[rng.randrange(len(line))] = rng.choice([*ODD_TEXTS, "x" * 140_000])
    return "\n".join(",".join(line) for line in [names, *cells]) + "\n"

"""Bodies of requests to the HTTP API: questions, files beside them, and what is no JSON at all."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from mutate import ODD, ODD_TEXTS, ROOT, changed, changed_line, json_text, write

from rackline.api.question import options
from rackline.web.asked import RESERVED, offered, offered_names

_CHIP = (ROOT / "src/rackline/catalog/data/chips/h100-sxm.toml").read_text(encoding="utf-8")
_QUESTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("explain", {"model": "llama-3.1-8b", "on": "dgx-h100", "batch": 8, "context": 1024, "layout": "tp=8"}),
    ("fit", {"model": "llama-3.1-8b", "on": ["l40s-8"], "context": "8k", "layout": "tp=8"}),
    ("models", {"name": "llama-3.1-8b"}),
    ("chips", {"name": "h100-sxm"}),
    ("compare", {"models": ["llama-3.1-8b", "qwen3-8b"]}),
    ("chips", {"name": "mine.toml", "uploads": {"mine.toml": _CHIP}}),
)


def body(rng: Random, folder: Path) -> list[str]:
    """A request: POST, its path and the file of its body."""
    name, question = rng.choice(_QUESTIONS)
    given = dict(question)
    match rng.randrange(5):
        case 0:
            known = [key for key in options(offered(name).question) if key not in given]
            given[rng.choice([*known, *RESERVED, "ask", "x" * 300])] = rng.choice([*ODD, *ODD_TEXTS])
        case 1 | 2:
            given = changed(rng, given)
        case 3 if "uploads" in given:
            given["uploads"] = {rng.choice(["mine.toml", *ODD_TEXTS]): changed_line(rng, _CHIP)}
        case _:
            pass
    if rng.random() < 0.1:
        name = rng.choice([*offered_names(), "web", "observe", "no-such"])
    return ["POST", f"/api/v1/{name}", write(rng, folder / "body.json", json_text(given), share=0.4)]

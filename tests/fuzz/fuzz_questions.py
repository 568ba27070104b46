"""Files of questions for `ask`, TOML and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from mutate import ODD_TEXTS, changed, json_text, write

from rackline.api.answer import find_verb
from rackline.api.question import options

_QUESTIONS: tuple[dict[str, Any], ...] = (
    {"ask": "fit", "model": "llama-3.1-8b", "on": ["dgx-h100", "l40s-8"], "layout": "tp=8", "context": "8k"},
    {"ask": "explain", "model": "llama-3.1-8b", "on": "dgx-h100", "batch": 8, "context": 1024, "layout": "tp=8"},
    {"ask": "models", "name": "llama-3.1-8b"},
    {"ask": "compare", "models": ["llama-3.1-8b", "qwen3-8b"]},
    {"ask": "chips", "name": "h100-sxm", "set": ["usd_per_hour=2"]},
    {"ask": "price", "model": "llama-3.1-8b", "on": "dgx-h100", "layout": "tp=1"},
)


def question_file(rng: Random, folder: Path) -> list[str]:
    """A command that reads questions."""
    asked = [dict(rng.choice(_QUESTIONS)) for _ in range(rng.randint(1, 2))]
    one = rng.choice(asked)
    known = [name for name in options(find_verb(one["ask"]).question) if name not in one]
    if known and rng.random() < 0.5:
        one[rng.choice(known)] = rng.choice(ODD_TEXTS)
    if rng.random() < 0.5:
        data: Any = changed(rng, rng.choice([asked, {"questions": asked}]))
        return ["ask", write(rng, folder / "q.json", json_text(data), share=0.3)]
    text = "".join(
        "[[questions]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in one.items()) for one in asked
    )
    return ["ask", write(rng, folder / "q.toml", text, share=0.7)]

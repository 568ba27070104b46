"""Files that describe a model, chip or cluster: config.json and TOML of the catalogue."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import hf_configs
from mutate import ROOT, changed, changed_line, json_text, write

_CONFIGS: list[dict[str, Any]] = [value for name, value in vars(hf_configs).items() if name.isupper()]
_DATA = ROOT / "src/rackline/catalog/data"
_FILES = {
    kind: sorted((_DATA / kind).glob("*.toml"))[:: max(1, len(list((_DATA / kind).glob("*.toml"))) // 12)]
    for kind in ("models", "chips", "clusters", "memory")
}


def description(rng: Random, folder: Path) -> list[str]:
    """A command that reads a description."""
    if rng.random() < 0.5:
        file = write(rng, folder / "config.json", json_text(changed(rng, rng.choice(_CONFIGS))), share=0.3)
        if rng.random() < 0.5:
            return ["models", file]
        return [
            "explain",
            file,
            "--on",
            "dgx-h100",
            "--chips",
            "1",
            "--batch",
            "8",
            "--context",
            "1k",
            "--layout",
            "tp=1",
        ]
    kind = rng.choice(list(_FILES))
    text = changed_line(rng, rng.choice(_FILES[kind]).read_text(encoding="utf-8"))
    file = write(rng, folder / "described.toml", text, share=0.4)
    if kind == "models" and rng.random() < 0.3:
        return ["fit", file, "--on", "l40s-8", "--context", "1k", "--layout", "tp=8"]
    return [kind, file]

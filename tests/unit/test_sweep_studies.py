"""The studies of docs/sweeps.md are sweeps that compile; what they found is looked at again in small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rackline as rl
from rackline.sweeps.file import read_file
from rackline.sweeps.run import prepare

STUDIES = sorted((Path(__file__).parents[2] / "docs" / "studies").glob("*.toml"))


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_study_compiles(path: Path) -> None:
    file = read_file(path)
    assert file.title
    assert file.objectives
    assert prepare(file).tasks


def test_a_domain_of_36_pays_for_deepseek_v3_at_32k_and_72_does_not(tmp_path: Path) -> None:
    space: dict[str, Any] = {
        "options": {
            "model": "deepseek-v3",
            "on": "gb200-nvl72",
            "precision": "fp8",
            "batch": {"linear": [300, 4200], "num": 400},
            "context": "32k",
            "layout": ["attention_dp=16,ep=16", "attention_dp=32,ep=32", "attention_dp=64,ep=64"],
        },
        "set": {"levels.scale_up.size": [8, 36, 72], "num_chips": 1024},
        "constraints": {"fast_enough": "server_s <= 0.05"},
        "objectives": {"usd_per_mtok_output": "min"},
    }
    rl.sweep(space, out=str(tmp_path / "a"))
    best = rl.sweep_show(str(tmp_path / "a"), by="levels.scale_up.size").result.best
    small, usual, large = (row["usd_per_mtok_output"] for row in best)
    assert usual < 0.9 * small
    assert large == pytest.approx(usual, rel=0.01)

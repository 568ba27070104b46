"""Parameters of public checkpoints that follow from their config.json, against those of their tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rackline.arch import Model, build_model
from rackline.arch.hf import read_config

FILE = Path(__file__).parents[1] / "fixtures" / "published_checkpoints.jsonl"
ROWS: list[dict[str, Any]] = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


def counted(row: dict[str, Any]) -> int:
    """With the layers for multi-token prediction where these are among the tensors, as `check_counts` does it."""
    model = build_model(read_config(row["config"], row["id"], row["id"]).record)
    assert isinstance(model, Model)
    return model.total_params + (model.mtp_params if row.get("holds_mtp") else 0)


def test_at_least_95_percent_are_within_1_percent() -> None:
    off = {row["id"]: counted(row) / row["total_params"] - 1 for row in ROWS}
    assert len(off) >= 60
    wrong = {name for name, value in off.items() if abs(value) > 0.01}
    assert not wrong


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_to_the_last_parameter(row: dict[str, Any]) -> None:
    assert counted(row) == pytest.approx(row["total_params"], rel=1e-4)
    assert row["source"]
    assert row["evidence"]

"""Parameters of public checkpoints that follow from their config.json, against those of their tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rackline.arch import Model, build_model, model as load_model
from rackline.arch.hf import read_config

FILE = Path(__file__).parents[1] / "fixtures" / "published_checkpoints.jsonl"
TOTALS: list[dict[str, Any]] = [
    json.loads(line) for line in FILE.with_name("catalogue_totals.jsonl").read_text(encoding="utf-8").splitlines()
]
KNOWN = {
    # its layer for multi-token prediction holds an embedding and a head of its own, the same weights once more
    "deepseek-ai/DeepSeek-V3": 0.003,
    "deepseek-ai/DeepSeek-V3.2": 0.003,
    # its layers for multi-token prediction are not of the kind of its last layer
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16": 0.025,
    "stepfun-ai/Step-3.5-Flash": 0.02,
}
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
    assert all(address.startswith("https://") for address in row.get("addresses", ()))


def test_counts_that_were_looked_up_have_an_address() -> None:
    addressed = {row["id"] for row in ROWS if row.get("addresses")} | {row["id"] for row in TOTALS}
    assert len(addressed) >= 60


@pytest.mark.parametrize("row", TOTALS, ids=lambda row: row["id"])
def test_the_catalogue_counts_what_the_hub_counts(row: dict[str, Any]) -> None:
    """With what a checkpoint may hold beside the model: layers for multi-token prediction, a tied head once more."""
    model = load_model(row["id"], offline=True)
    assert isinstance(model, Model)
    head = model.vocab_size * model.d_model if model.tied_embeddings else 0
    options = [model.total_params + mtp + extra for mtp in (0, model.mtp_params) for extra in (0, head)]
    off = min(abs(option / row["total_params"] - 1.0) for option in options)
    assert off <= KNOWN.get(row["id"], 1e-4)

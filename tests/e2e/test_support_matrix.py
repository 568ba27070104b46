"""The support matrix of the documentation: models, machines and limits in one table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rackline.cli.main import run

_FILE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "support-matrix.toml"


def test_the_support_matrix_is_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ask", str(_FILE), "--json"]) == 0
    answers = json.loads(capsys.readouterr().out)["answers"]
    plans = [one for one in answers if one["question"]["ask"] == "plan"]
    fits = {(one["question"]["model"], one["question"]["on"]): one["answer"]["fits"] for one in answers[len(plans) :]}
    assert len(plans) == 8
    for one in plans:
        assert one["answer"]["best"] is not None or one["answer"]["reason"]
        assert one["answer"]["use"]["name"] == one["question"]["use"]
    # bytes decide: 671 GB of fp8 weights beside 640 GB, 810 GB of bf16 beside 1,128 GB
    assert not fits["deepseek-v3", "dgx-h100"]
    assert fits["deepseek-v3", "dgx-h200"]
    assert not fits["llama-3.1-405b", "dgx-h100"]
    assert fits["llama-3.1-405b", "dgx-h200"]

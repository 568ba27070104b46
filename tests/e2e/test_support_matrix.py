"""The support matrix of the documentation: models, machines and limits in one table."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from rackline.cli.main import run

_FILE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "support-matrix.toml"


def asked(capsys: pytest.CaptureFixture[str], file: Path) -> list[dict[str, Any]]:
    """Return the answers to a file of questions."""
    assert run(["ask", str(file), "--json"]) == 0
    return json.loads(capsys.readouterr().out)["answers"]


@pytest.mark.nightly
def test_plans_of_the_support_matrix_are_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    plans = [row for row in asked(capsys, _FILE) if row["question"]["ask"] == "plan"]
    assert len(plans) == 8
    for row in plans:
        assert row["answer"]["best"] is not None or row["answer"]["reason"]
        assert row["answer"]["use"]["name"] == row["question"]["use"]


def test_bytes_decide_what_fits_in_the_support_matrix(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    questions = tomllib.loads(_FILE.read_text(encoding="utf-8"))["questions"]
    file = tmp_path / "fits.toml"
    file.write_text(tomli_w.dumps({"questions": [one for one in questions if one["ask"] == "fit"]}))
    fits = {(row["question"]["model"], row["question"]["on"]): row["answer"]["fits"] for row in asked(capsys, file)}
    # 671 GB of fp8 weights beside 640 GB, 810 GB of bf16 beside 1,128 GB
    assert not fits["deepseek-v3", "dgx-h100"]
    assert fits["deepseek-v3", "dgx-h200"]
    assert not fits["llama-3.1-405b", "dgx-h100"]
    assert fits["llama-3.1-405b", "dgx-h200"]

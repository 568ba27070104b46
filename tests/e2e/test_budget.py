"""`rackline budget`: its table, its JSON, its figure, its refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rackline.cli.main import run

ASK = ["budget", "--quality-of", "70b@15T", "--traffic", "50M", "--months", "2"]


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, quality_of: str = "70b@15T") -> dict[str, Any]:
    assert run([ASK[0], "--quality-of", quality_of, *ASK[3:], *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_table_says_size_phases_and_flatness(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ASK) == 0
    out = " ".join(capsys.readouterr().out.split())
    for words in ("44.8B parameters", "pre-training", "use: tokens", "within 5.0 % of the least cost", "besiroglu"):
        assert words in out


def test_json_has_the_phases(capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, "--rl", "10T", "--price", "3")
    assert [phase["name"] for phase in data["phases"]] == ["pretrain", "rl", "inference"]
    assert data["usd"] == pytest.approx(3.0 * data["chip_hours"])
    assert data["overtraining_factor"] == pytest.approx(data["tokens"] / data["active_params"] / 20)
    assert min(value for value in data["curve"]["lifetime_over_optimum"] if value is not None) == pytest.approx(
        1.0, rel=1e-6
    )


def test_mixtures_are_cheaper(capsys: pytest.CaptureFixture[str]) -> None:
    dense, routed = answer(capsys, "--moe", "1"), answer(capsys, "--moe", "32")
    assert routed["chip_hours"] < dense["chip_hours"]
    assert routed["total_params"] > 10 * routed["active_params"]
    again = answer(capsys, "--moe", "27", quality_of="671b-a37b@14.8T")
    assert again["law_evidence"] == "assumed"


def test_names_of_models_work(capsys: pytest.CaptureFixture[str]) -> None:
    named = answer(capsys, quality_of="llama-3.1-70b@15T")
    assert named["loss"] == pytest.approx(answer(capsys)["loss"], rel=1e-3)


def test_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "budget.svg"
    assert run([*ASK, "--plot", str(file)]) == 0
    assert "<svg" in file.read_text(encoding="utf-8")
    capsys.readouterr()


def test_known_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["budget", "--runs", "--json"]) == 0
    runs = {row["name"]: row for row in json.loads(capsys.readouterr().out)["runs"]}
    assert runs["deepseek-v3"]["overtraining_factor"] == pytest.approx(20.0)
    assert runs["palm-540b"]["optimal_lifetime_tokens"] is None
    assert run(["budget", "--runs"]) == 0
    assert "goodput" in capsys.readouterr().out


def test_too_few_different_tokens_is_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*ASK, "--unique-tokens", "10B"]) == 0
    assert "No size does it" in capsys.readouterr().out
    data = answer(capsys, "--unique-tokens", "10B")
    assert data["feasible"] is False
    assert data["active_params"] is None


def test_without_use_it_is_compute_optimal(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["budget", "--loss", "1.95", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["tokens_over_compute_optimal"] == pytest.approx(1.0)
    assert data["compute_optimal"]["lifetime_over_optimum"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["budget"], ("--quality-of or --loss", "neither")),
        ([*ASK, "--loss", "2"], ("both",)),
        (["budget", "--loss", "1.8"], ("above 1.817, the irreducible loss", "besiroglu")),
        (["budget", "--loss", "-1"], ("--loss",)),
        (["budget", "--quality-of", "70b"], ("nearest: 70b@15T",)),
        (["budget", "--quality-of", "70b@-15T"], ("tokens of --quality-of",)),
        (["budget", "--quality-of", "37b-a671b@15T"], ("not smaller than its active part", "nearest: 671b-a37b@15T")),
        (["budget", "--quality-of", "lama-3.1-70b@15T"], ("nearest: llama-3.1-70b",)),
        ([*ASK, "--mfu", "1.2"], ("--mfu", "nearest: 100 %")),
        ([*ASK, "--serve-mfu", "0"], ("--serve-mfu",)),
        ([*ASK, "--rl", "-5T"], ("--rl", "nearest: 5T")),
        ([*ASK, "--rl-flop", "7"], ("--rl-flop", "nearest: 6")),
        ([*ASK, "--moe", "0"], ("--moe",)),
        ([*ASK, "--months", "0"], ("--months",)),
        ([*ASK, "--ship-probability", "2"], ("--ship-probability",)),
        ([*ASK, "--law", "besirogl"], ("--law", "nearest: besiroglu")),
        ([*ASK, "--law", "no/such.csv"], ("readable CSV",)),
        ([*ASK, "--law", "no/such.csv", "--moe", "8"], ("are of dense models",)),
        ([*ASK, "--law", "clark"], ("joint law", "nearest: ludziejewski")),
        ([*ASK, "--precision", "fp7"], ("data type of h100-sxm", "nearest: fp")),
        ([*ASK, "--on", "dgx-h10"], ("nearest: dgx-h100",)),
        ([*ASK, "--plot", "no.gif"], ("--plot",)),
        ([*ASK, "--plot", "no.json", "--plot-kind", "qualty"], ("--plot-kind", "nearest: quality")),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    arguments: list[str], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("error: ")
    for word in words:
        assert word in line

"""A file of questions: every combination is asked, a bad one is a row, and the exit status says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rackline as rl
from helpers import call_json
from rackline.cli.main import run

MANY = 55  # more than fit on a screen or into a batch
GOOD = """
[[questions]]
ask = "fit"
model = ["llama-3.1-8b", "llama-3.1-70b"]
on = ["dgx-h100", "dgx-h200"]
context = "32k"

[[questions]]
ask = "chips"
name = "h100"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_lists_ask_for_every_combination(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "good.toml").write_text(GOOD)
    found = call_json(capsys, "ask", "good.toml")["answers"]
    assert [(one["question"]["model"], one["question"]["on"]) for one in found[:4]] == [
        ("llama-3.1-8b", "dgx-h100"),
        ("llama-3.1-8b", "dgx-h200"),
        ("llama-3.1-70b", "dgx-h100"),
        ("llama-3.1-70b", "dgx-h200"),
    ]
    alone = call_json(capsys, "fit", "llama-3.1-70b", "--on", "dgx-h200", "--context", "32k")
    assert found[3]["answer"]["rows"] == alone["rows"]
    assert found[4]["answer"]["name"] == "h100-sxm"


def test_every_question_of_a_long_file_is_answered(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["h100-sxm", "b200-sxm"]
    long = [{"ask": "chips", "name": names[number % 2]} for number in range(MANY)]
    (folder / "long.json").write_text(json.dumps(long))
    found = call_json(capsys, "ask", "long.json")["answers"]
    assert len(found) == MANY
    assert [one["question"] for one in found] == long
    assert [one["answer"]["name"] for one in found] == [one["name"] for one in long]
    assert rl.ask(str(folder / "long.json")).to_dict()["answers"] == found


def test_a_bad_question_is_a_row_and_exit_2(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    questions = [
        {"ask": "fit", "model": "llama-3.1-8b", "on": "dgx-h100"},
        {"ask": "fit", "model": "llama-3.1-8b", "on": "dgx-h10"},
        {"ask": "fit", "model": "llama-3.1-8b", "on": "dgx-h100", "contxt": "8k"},
        {"ask": "fits"},
        {"ask": "ask", "file": "mixed.json"},
    ]
    (folder / "mixed.json").write_text(json.dumps(questions))
    assert run(["ask", "mixed.json"]) == 2
    shown = capsys.readouterr().out
    assert "1 of 5 questions answered" in shown
    assert run(["ask", "mixed.json", "--json"]) == 2
    found = json.loads(capsys.readouterr().out)["answers"]
    assert ["answer" in one for one in found] == [True, False, False, False, False]
    for one, words in zip(found[1:], ("dgx-h100", "nearest: context", "nearest: fit", "not a file"), strict=True):
        assert words in one["error"]


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("questions = 3", "a.toml", "a JSON list of the same"),
        ("[[question]]\nask = 'fit'", "a.toml", "got 'question'"),
        ("[", "a.json", "a JSON list"),
        ("[1]", "a.json", "a JSON list"),
        ("", "no.toml", "TOML or JSON"),
    ],
)
def test_files_of_other_forms_are_refused(
    text: str, name: str, words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if text:
        (folder / name).write_text(text)
    assert run(["ask", name]) == 2
    assert words in capsys.readouterr().err


def test_endless_combinations_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    many = {"ask": "fit", "model": ["m"] * 200, "on": ["c"] * 200}
    (folder / "many.json").write_text(json.dumps([many]))
    assert run(["ask", "many.json"]) == 2
    assert "at most 10,000 questions" in capsys.readouterr().err


def test_schema_names_every_option_with_its_unit(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", "fit"]) == 0
    fit = json.loads(capsys.readouterr().out)["$defs"]["fit"]
    assert fit["required"] == ["ask", "model", "on"]
    assert fit["properties"]["context"]["unit"] == "token"
    assert fit["properties"]["context"]["default"] == 8000.0
    assert run(["schema", "fits"]) == 2
    assert "nearest: fit" in capsys.readouterr().err

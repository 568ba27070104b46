"""Nothing is lost: the answer is printed before the files beside it, each of which is written whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from rackline.cli import command
from rackline.cli.main import run
from rackline.errors import InputError
from rackline.validation.cases import published
from rackline.validation.page import fill_block, marks

EXPLAIN = ["explain", "llama-3.1-8b", "--on", "dgx-h100", "--batch", "8", "--context", "1k", "--layout", "tp=8"]
CASES = published()
BEGIN, END = marks("scoreboard")


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """A file of a full disk."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    link = tmp_path / "full.json"
    link.symlink_to("/dev/full")
    return link


def test_a_file_that_fails_loses_neither_the_answer_nor_the_others(
    full: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "t.json"
    assert run([*EXPLAIN, "--plot", str(full), "--trace", str(other), "--json"]) == 2
    out, err = capsys.readouterr()
    assert json.loads(out)["question"]["model"] == "llama-3.1-8b"
    assert err == f"error: --plot: got '{full}', allowed: a file that can be written (No space left on device)\n"
    assert json.loads(other.read_text())["traceEvents"]


def test_each_file_that_fails_is_named_with_its_option(full: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["validate", str(CASES), "--plot", str(full), "--write-stored", str(full), "--write-bands", str(full)]
    assert run(words) == 2
    out, err = capsys.readouterr()
    assert "cases predicted" in out
    lines = err.splitlines()
    assert [line.partition(": got")[0] for line in lines] == [
        "error: --plot",
        "error: --write-stored",
        "error: --write-bands",
    ]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_disk_that_fills_half_way_leaves_the_old_file(
    ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    series = tmp_path / f"series.{ending}"
    series.write_text("old")

    def filled(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", filled)
    words = ["simulate", "llama-3.1-8b", "--on", "dgx-h100", "--chips", "1", "--rate", "5", "--requests", "5"]
    assert run([*words, "--input", "100", "--output", "5", "--series", str(series)]) == 2
    out, err = capsys.readouterr()
    assert "time to first token" in out
    assert err.startswith(f"error: --series: got '{series}'")
    assert "No space left" in err
    assert series.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == [series.name]


def test_the_files_are_written_when_nobody_reads_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: Any, **__: Any) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(command, "show", closed)
    monkeypatch.setattr("rackline.cli.main.drop_output", lambda: None)
    trace = tmp_path / "t.json"
    assert run([*EXPLAIN, "--trace", str(trace)]) == 0
    assert json.loads(trace.read_text())["traceEvents"]


def test_every_file_that_is_read_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    for file in (one, two):
        shutil.copy(CASES, file)
        for option in ("--write-stored", "--write-bands", "-o"):
            more = ["--import", "vllm"] if option == "-o" else []
            assert run(["validate", str(one), str(two), *more, option, str(file)]) == 2
    assert one.read_bytes() == two.read_bytes() == CASES.read_bytes()
    assert "which is read" in capsys.readouterr().err


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_page_keeps_its_line_ends(end: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_bytes(end.join(["# Title", BEGIN, "old", END, "after", ""]).encode())
    fill_block(page, BEGIN, END, "one\ntwo")
    assert page.read_bytes().decode() == end.join(["# Title", BEGIN, "one", "two", END, "after", ""])
    with pytest.raises(InputError, match="--write-docs"):
        fill_block(page, "<!-- no such mark -->", END, "text")


def test_the_page_of_a_folder_that_has_the_block_is_written(tmp_path: Path) -> None:
    (tmp_path / "one.md").write_text("# One\n")
    page = tmp_path / "two.md"
    page.write_text(f"# Two\n{BEGIN}\n{END}\n")
    fill_block(tmp_path, BEGIN, END, "new")
    assert page.read_text() == f"# Two\n{BEGIN}\nnew\n{END}\n"
    with pytest.raises(InputError, match="one page that has the lines"):
        fill_block(tmp_path, "<!-- no such mark -->", END, "text")
    page.with_name("three.md").write_text(page.read_text())
    with pytest.raises(InputError, match="one page that has the lines"):
        fill_block(tmp_path, BEGIN, END, "text")


def test_the_command_writes_the_page_of_a_folder(tmp_path: Path) -> None:
    page = tmp_path / "groups.md"
    page.write_text(f"# Groups\n\n{BEGIN}\n{END}\n")
    cases = tmp_path / "cases.jsonl"
    cases.write_text((Path(__file__).resolve().parents[2] / "docs" / "how-to" / "servings.jsonl").read_text())
    assert run(["validate", str(cases), "--write-docs", str(tmp_path), "--json"]) == 0
    assert "| tpot_s | 3 | 3 |" in page.read_text()


def test_a_calibration_that_cannot_be_written_is_still_shown(
    full: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rackline.fitting import run as fits, tables

    nothing: dict[str, Any] = {"kernels": (), "parents": {}, "collectives": (), "rejected": {}, "disagreements": ()}
    result = fits.CalibrationResult(**nothing, rows=7, older_rows=0, slower_rows=0)
    monkeypatch.setattr(tables, "read_tables", lambda *_, **__: [])
    monkeypatch.setattr(fits, "calibrate", lambda *_, **__: result)
    target = tmp_path / "fit.toml"
    target.symlink_to(full)
    assert run(["calibrate", "a.csv", "-o", str(target), "--json"]) == 2
    out, err = capsys.readouterr()
    assert json.loads(out)["files"] == []
    assert err == f"error: --output: got '{target}', allowed: a file that can be written (No space left on device)\n"


PLAN = ["plan", "llama-3.1-8b", "--on", "dgx-h100", "--chips", "1", "--input", "1k", "--output", "100",
        "--precision", "bf16", "--calibration", "vllm"]  # fmt: skip


def test_manifests_are_written_beside_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = tmp_path / "k.yaml", tmp_path / "d.yaml"
    assert run([*PLAN, "--launch-as", "kubernetes", str(one), "--json"]) == 0
    chips = json.loads(capsys.readouterr().out)["best"]["num_chips"]
    assert f"nvidia.com/gpu: '{chips}'" in one.read_text()
    assert run([*PLAN, "--launch-as", "dynamo", str(two), "--json"]) == 0
    assert "kind: DynamoGraphDeployment" in two.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--launch-as", "docker", "x.yaml"], "--launch-as: got 'docker', allowed: compose, kubernetes, dynamo, llm-d"),
        (["--launch-as", "dynamo", "none/x.yaml"], "--launch-as: got 'none/x.yaml', allowed: a folder that exists"),
        (["--launch-as", "dynamo", "x.yaml", "--what-if", "scale_up_size=4,8"], "without --what-if"),
        (["--launch-as", "dynamo"], "--launch-as"),
        (["--launch-as", "dynamo", "x.yaml", "--tpot", "1us"], "a plan that has an answer"),
        (["--launch-as", "dynamo", "x.yaml", "--engine", "vllm=0.12.0", "--launch"], "0.28.0"),
    ],
)
def test_manifests_that_cannot_be_written_are_refused(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([*PLAN, *words]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())

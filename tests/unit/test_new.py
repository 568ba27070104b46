"""`rackline new`: a file with the nearest entry's numbers that works at once, and all faults of a wrong one."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import rackline as rl
from helpers import call
from rackline.catalog import model_record, names, price_sheet_record
from rackline.errors import CatalogError, InputError
from rackline.hardware import chip_record, cluster_record, memory_record
from rackline.hardware.chip_check import KINDS, template

READ = {
    "chip": chip_record,
    "cluster": cluster_record,
    "model": model_record,
    "memory": memory_record,
    "prices": price_sheet_record,
}
ENTRIES = [(kind, like) for kind, (plural, _, _) in KINDS.items() for like in names(plural)]


@pytest.mark.parametrize(("kind", "like"), ENTRIES, ids=lambda value: value)
def test_every_entry_can_be_the_beginning_of_another(kind: str, like: str, tmp_path: Path) -> None:
    found = template(kind, "my-own", like)
    assert found.nearest == like
    (tmp_path / "my-own.toml").write_text(found.text, encoding="utf-8")
    mine, theirs = READ[kind](str(tmp_path / "my-own.toml")), READ[kind](like)
    assert mine.name == "my-own"
    kept = {key: value for key, value in theirs.numbers().items() if not key.startswith(("published", "checkpoints"))}
    assert mine.numbers() == kept
    assert {str(source.kind) for source in mine.sources} == {"assumed"}


def test_keys_have_comments() -> None:
    text = template("chip", "my-chip").text
    assert "# Peak memory bandwidth [bytes/s].\nhbm_bytes_per_s = 3.35e12" in text
    assert all(len(line) <= 120 for line in text.splitlines() if line.startswith("#"))


def test_the_nearest_name_gives_the_numbers() -> None:
    assert template("chip", "h100-custom").nearest == "h100-sxm"
    assert template("chip", "my-b200-board").nearest == "b200-sxm"
    assert template("model", "llama-3.1-70b-wide").nearest == "llama-3.1-70b"
    assert template("chip", "unheard-of").nearest == "h100-sxm"


def test_the_file_is_written_once(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    assert rl.new("chip", "a", output=str(file)).result.nearest
    assert tomllib.loads(file.read_text(encoding="utf-8"))["name"] == "a"
    with pytest.raises(InputError, match="a file that does not exist yet"):
        rl.new("chip", "a", output=str(file))
    with pytest.raises(InputError, match=r"a name that ends in \.toml"):
        rl.new("chip", "a", output=str(tmp_path / "a.txt"))
    with pytest.raises(InputError, match="a folder that exists"):
        rl.new("chip", "a", output=str(tmp_path / "none" / "a.toml"))


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("chp", "a", "kind: got 'chp', allowed: chip, cluster.*nearest: chip"),
        ("chip", "My Chip!", "nearest: my-chip"),
        ("chip", "h100-sxm", "a name that the catalogue does not have.*nearest: my-h100-sxm"),
    ],
)
def test_refusals(kind: str, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        rl.new(kind, name)


def test_a_file_in_this_folder_is_not_taken_for_an_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rl.new("chip", "c")
    with pytest.raises(InputError, match=r"c\.toml.*does not exist yet"):
        rl.new("chip", "c")


def test_an_own_chip_and_cluster_work_in_a_plan(tmp_path: Path) -> None:
    rl.new("chip", "fast", like="b200", output=str(tmp_path / "fast.toml"))
    rl.new("cluster", "rack", like="dgx-b200", output=str(tmp_path / "rack.toml"))
    rack = tmp_path / "rack.toml"
    rack.write_text(rack.read_text(encoding="utf-8").replace('chip = "b200"', 'chip = "fast.toml"'), encoding="utf-8")
    found = rl.fit("llama-3.1-8b", on=str(rack))
    assert found.result.capacity.fitting


def test_a_wrong_file_names_all_its_faults_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    text = template("chip", "bad").text
    changed = text.replace("hbm_bytes = 85520809984", 'hbm_bytes = "lots"').replace("cores = 132", "cors = 5")
    file.write_text(changed.replace("power_w = 700.0", "power_w = -3"), encoding="utf-8")
    with pytest.raises(CatalogError) as caught:
        chip_record(str(file))
    message = str(caught.value)
    for key in ("cors", "hbm_bytes", "power_w"):
        line = next(number for number, row in enumerate(file.read_text().splitlines(), 1) if row.startswith(f"{key} ="))
        assert f"line {line}: {key}: got" in message
    assert "nearest: cores" in message


def test_all_numbers_without_a_source_are_named(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(template("chip", "bad").text.replace('fields = ["*"]', 'fields = ["cores"]'), encoding="utf-8")
    with pytest.raises(CatalogError, match=r"covers the number peak_flop_per_s.bf16 \(nor peak_flop_per_s.fp16, .*"):
        chip_record(str(file))


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    out = call(capsys, "new", "memory", "shelf")
    assert out.startswith("shelf.toml: memory shelf with the numbers of")

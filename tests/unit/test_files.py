"""Files are read within bounds and written whole or not at all."""

from __future__ import annotations

import gzip
import os
import stat
from pathlib import Path

import pytest

from rackline import files
from rackline.cli.main import run
from rackline.errors import InputError
from rackline.files import check_outputs, is_file, read_lines, read_text, replacing, write_text


def test_a_file_is_replaced_and_keeps_its_permissions_and_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("old")
    path.chmod(0o640)
    write_text(path, "one\r\ntwo\n", what="--output")
    assert path.read_bytes() == b"one\r\ntwo\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [entry.name for entry in tmp_path.iterdir()] == ["page.md"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real = tmp_path / "real.txt"
    real.write_text("old")
    link = tmp_path / "link.txt"
    link.symlink_to(real)
    write_text(link, "new", what="--output")
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_what_fails_half_way_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("old")

    def interrupted() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half of the n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["page.md"]


def test_a_full_disk_is_named_with_option_and_file() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    with pytest.raises(InputError, match=r"--plot: got '/dev/full'.*No space left"):
        write_text("/dev/full", "text", what="--plot")


def test_a_compressed_file_is_read_like_a_plain_one(tmp_path: Path) -> None:
    packed = tmp_path / "cases.jsonl.gz"
    packed.write_bytes(gzip.compress("\ufeffone\nzwei ä\n".encode()))
    assert read_text(packed, what="cases", allowed="a file") == "one\nzwei ä\n"


@pytest.mark.parametrize("kind", ["plain", "cut", "changed", "large"])
def test_a_damaged_compressed_file_is_one_clear_line(tmp_path: Path, kind: str) -> None:
    """A small file that holds more than may be read is refused before all of it is in memory."""
    whole = gzip.compress(b"word " * 1000)
    contents = {
        "plain": b"word",
        "cut": whole[:-9],
        "changed": whole[:20] + bytes([whole[20] ^ 255]) + whole[21:],
        "large": gzip.compress(bytes(2**20)),
    }
    packed = tmp_path / "cases.jsonl.gz"
    packed.write_bytes(contents[kind])
    with pytest.raises(InputError, match=r"cases: got '.*cases\.jsonl\.gz', allowed: a file") as refused:
        read_text(packed, what="cases", allowed="a file", max_bytes=2**16)
    assert "\n" not in str(refused.value)
    assert ("MiB" if kind == "large" else "gzip") in str(refused.value)


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "device", "large", "binary", "nul"])
def test_what_cannot_be_read_is_one_clear_line(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    given: Path | str = path
    words = {
        "missing": "No such file",
        "folder": "this is a folder",
        "pipe": "this is a pipe",
        "device": "this is a device",
        "large": "at most 0 MiB",
        "binary": "byte 1 is not",
        "nul": "not a file name",
    }
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        given = "/dev/zero"
    elif kind == "large":
        path.write_bytes(b"x" * 101)
    elif kind == "binary":
        path.write_bytes(b"x\xff")
    elif kind == "nul":
        given = "a\0b"
    with pytest.raises(InputError, match=f"^trace: .*{words[kind]}"):
        read_text(given, what="trace", allowed="a trace", max_bytes=100)


def test_lines_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_text("short\n" + "x" * 100 + "\n")
    with pytest.raises(InputError, match=r"long\.csv:2: trace: got 'a line of more than 50"):
        list(read_lines(path, what="trace", allowed="a trace", max_characters=50))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("end", ["", "\n", "\r", "\r\n"])
def test_lines_are_those_of_the_file_however_it_is_cut(
    tmp_path: Path, size: int, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_CHUNK_CHARACTERS", size)
    path = tmp_path / "a.csv"
    path.write_bytes(("one\ntwo é\r\n\r\n\nthree\rfour\u2028still four" + end).encode())
    with path.open(encoding="utf-8", newline="") as stream:
        expected = list(stream)
    assert list(read_lines(path, what="trace", allowed="a trace")) == expected


def test_outputs_are_held_against_inputs_and_each_other(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("x")
    (tmp_path / "link.csv").symlink_to(trace)
    check_outputs({"--plot": tmp_path / "a.svg", "--series": tmp_path / "b.csv", "-o": None}, {"--trace": trace})
    for outputs, words in (
        ({"--series": trace}, "--series.*another file than --trace"),
        ({"--series": tmp_path / "link.csv"}, "--series.*another file than --trace"),
        ({"--plot": tmp_path / "a", "-o": tmp_path / "." / "a"}, "-o.*that of --plot"),
        ({"--plot": tmp_path}, "--plot.*this is a folder"),
        ({"--plot": tmp_path / "none" / "a.svg"}, "--plot.*folder that exists"),
    ):
        with pytest.raises(InputError, match=words):
            check_outputs(outputs, {"--trace": trace})


def test_text_that_is_no_name_is_no_file(tmp_path: Path) -> None:
    """Options that may hold a file or text are looked up as they are: long ones, and such with a NUL character."""
    (tmp_path / "a").write_text("")
    names = (tmp_path / "a", str(tmp_path / "a"), tmp_path, "a" * 300, "a/" * 4000, "a\0b", "")
    assert [is_file(name) for name in names] == [True, True, False, False, False, False, False]


def test_a_name_that_is_too_long_is_named_beside_a_file_to_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["explain", "a" * 300, "--on", "dgx-h100", "--batch", "1", "--context", "1k"]
    assert run([*words, "--plot", str(tmp_path / "a.svg")]) == 2
    assert "(300 characters), allowed: one of" in capsys.readouterr().err

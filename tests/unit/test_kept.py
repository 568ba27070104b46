"""Results kept in the user's cache folder: bounded, safe to delete, not trusted when damaged."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from rackline import files
from rackline.passes import ExpertLoad, routing

LAW = (48, 4, 8, "log_normal", 0.7, None, 4.0e3)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RACKLINE_CACHE", str(tmp_path / "results"))
    return tmp_path / "results"


def test_what_is_kept_is_found_again() -> None:
    assert files.load_kept("a-1") is None
    assert files.keep("a-1", b"content") is not None
    assert files.load_kept("a-1") == b"content"


def test_a_name_follows_from_all_that_a_result_depends_on() -> None:
    names = {
        files.kept_name("a", 1, "b"),
        files.kept_name("a", 1, "c"),
        files.kept_name("a", "1", "b"),
        files.kept_name("a", "1b"),
    }
    assert len(names) == 4
    assert files.kept_name("a", 1) == files.kept_name("a", 1)


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 500])
def test_a_damaged_file_is_none(folder: Path, damage: bytes) -> None:
    files.keep("a-1", b"content")
    (folder / "a-1").write_bytes(damage)
    assert files.load_kept("a-1") is None
    assert files.keep("a-1", b"content") is not None
    assert files.load_kept("a-1") == b"content"


def test_one_changed_bit_is_noticed(folder: Path) -> None:
    files.keep("a-1", b"content")
    data = bytearray((folder / "a-1").read_bytes())
    for place in range(len(data)):
        data[place] ^= 1
        (folder / "a-1").write_bytes(data)
        assert files.load_kept("a-1") is None
        data[place] ^= 1


def test_a_folder_that_cannot_be_written_keeps_nothing(folder: Path) -> None:
    folder.write_text("a file where the folder should be")
    assert files.keep("a-1", b"content") is None
    assert files.load_kept("a-1") is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_keeps_nothing(folder: Path) -> None:
    folder.mkdir(mode=0o500)
    assert files.keep("a-1", b"content") is None


def test_what_was_not_used_for_longest_goes_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_FILES", 3)
    for number in range(3):
        files.keep(f"a-{number}", b"x")
        os.utime(folder / f"a-{number}", (1000.0 + number, 1000.0 + number))
    files.load_kept("a-0")
    files.keep("a-3", b"x")
    assert {path.name for path in folder.iterdir()} == {"a-0", "a-2", "a-3"}
    monkeypatch.setattr(files, "MOST_BYTES", 100)
    files.keep("a-4", b"x" * 300)
    assert [path.name for path in folder.iterdir()] == ["a-4"]


def _write(number: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    for turn in range(30):
        files.keep("shared", bytes([number]) * 5000)
        files.keep(f"own-{number}-{turn}", b"x")
        found.append(files.load_kept("shared"))
    return found


def test_writers_at_the_same_time_leave_whole_files() -> None:
    context = get_context("spawn")  # a fork copies threads of what other tests have loaded, and JAX warns of it
    together = context.Barrier(3)
    with ProcessPoolExecutor(3, mp_context=context, initializer=together.wait, initargs=(120.0,)) as pool:
        found = [one for some in pool.map(_write, range(3)) for one in some]
    assert {content for content in found if content is not None} <= {bytes([number]) * 5000 for number in range(3)}
    assert files.load_kept("shared") is not None


def _tables() -> tuple[np.ndarray, np.ndarray]:
    vars(routing)["_tabulated"].cache_clear()
    law = ExpertLoad.tabulate(
        num_experts=LAW[0], experts_per_token=LAW[1], ep=LAW[2], law="log_normal", skew=LAW[4], max_tokens=LAW[6]
    )
    return law.tokens_per_token, law.touched


def test_a_routing_law_is_drawn_once_and_again_when_its_file_is_damaged(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = _tables()
    (path,) = folder.iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(routing, "_drawn_counts", None)  # drawing again would be an error
        for mine, its in zip(drawn, _tables(), strict=True):
            np.testing.assert_array_equal(mine, its)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    for mine, its in zip(drawn, _tables(), strict=True):
        np.testing.assert_array_equal(mine, its)
    assert files.load_kept(path.name) is not None
    monkeypatch.setattr(routing, "_code", lambda: b"another program")
    _tables()
    assert len(list(folder.iterdir())) == 2


def test_there_may_be_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's user without an entry in the list of users and without HOME."""

    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", unknown)
    assert not files.home_folder().exists()
    assert files.kept_folder({}).is_relative_to(files.home_folder())

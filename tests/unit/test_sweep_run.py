"""Runs of a sweep: nothing is lost, nothing runs twice, no half file, whatever ends them."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import rackline as rl
from rackline.api.answer import Watch
from rackline.cli.main import run as command
from rackline.errors import InputError
from rackline.sweeps import run as runs
from rackline.sweeps.chunk import run_chunk
from rackline.sweeps.file import read_file
from rackline.sweeps.read import Results
from rackline.sweeps.run import Prepared, prepare
from rackline.sweeps.store import SHARDS, LostStoreError, Store, store_of
from rackline.sweeps.workers import Pool

SPACE: dict[str, Any] = {
    "options": {
        "model": "llama-3.1-8b",
        "on": ["l40s-8", "dgx-h100"],
        "layout": "tp=1",
        "batch": {"linear": [1, 50], "num": 50},
        "context": {"linear": [1000, 3000], "num": 20},
    },
    "objectives": {"usd_per_mtok_output": "min"},
    "output": {"rows_per_shard": 100},
}
KEYS = ["on", "batch", "context"]


def shards(folder: str | Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (Path(folder) / SHARDS).iterdir()}


def sweep(space: Any, out: Path, **more: Any) -> Any:
    return rl.sweep(space, out=str(out), **more).result


def test_a_run_writes_every_point_once_and_a_second_one_nothing(tmp_path: Path) -> None:
    found = sweep(SPACE, tmp_path / "a")
    assert (found.new_rows, found.points, found.shards, found.new_shards) == (2000, 2000, 20, 20)
    table = Results.of(str(tmp_path / "a")).scan().collect()
    assert table.select(KEYS).unique().height == table.height == 2000
    before = shards(tmp_path / "a")
    again = sweep(SPACE, tmp_path / "a")
    assert (again.new_rows, again.new_shards, again.points) == (0, 0, 2000)
    assert shards(tmp_path / "a") == before


def test_runs_and_pools_write_the_same_bytes(tmp_path: Path) -> None:
    sweep(SPACE, tmp_path / "here", workers=1)
    sweep(SPACE, tmp_path / "pool", workers=2)
    assert shards(tmp_path / "here") == shards(tmp_path / "pool")


def test_a_changed_file_runs_only_what_is_new(tmp_path: Path) -> None:
    sweep(SPACE, tmp_path / "a")
    before = shards(tmp_path / "a")
    wider = {**SPACE, "options": {**SPACE["options"], "on": ["l40s-8", "dgx-h200", "dgx-h100"]}}
    found = sweep(wider, tmp_path / "a")
    assert (found.new_shards, found.shards) == (10, 30)
    assert before.items() <= shards(tmp_path / "a").items()
    assert Results.of(str(tmp_path / "a")).scan().collect().height == 3000
    longer = {**SPACE, "options": {**SPACE["options"], "batch": {"linear": [1, 60], "num": 60}}}
    assert sweep(longer, tmp_path / "a").new_shards == 4  # 10 more batch sizes on two clusters
    assert sweep(SPACE, tmp_path / "a").new_shards == 0  # what was there is there
    assert Results.of(str(tmp_path / "a")).scan().collect().height == 2000


@pytest.mark.parametrize(
    "change",
    [
        {"derived": {"twice": "server_s * 2"}},
        {"constraints": {"fast": "server_s < 0.1"}},
        {"output": {"rows_per_shard": 100, "float_bits": 64}},
        {"set": {"hbm_bytes_per_s": "2TB/s"}},
        {"inputs": {"x": 2.0}},
    ],
)
def test_what_changes_a_row_changes_the_name_of_its_shard(change: dict[str, Any]) -> None:
    names = {name for name, _ in prepare(SPACE).tasks}
    assert not names & {name for name, _ in prepare({**SPACE, **change}).tasks}


def test_a_file_that_an_option_names_counts_with_its_content(tmp_path: Path) -> None:
    rl.new("cluster", "mine", like="l40s-8", output=str(tmp_path / "mine.toml"))
    options = {**SPACE["options"], "on": str(tmp_path / "mine.toml")}
    first = prepare({**SPACE, "options": options}).tasks
    path = tmp_path / "mine.toml"
    path.write_text(path.read_text() + "\n# another\n")
    assert first != prepare({**SPACE, "options": options}).tasks


def test_shards_say_where_they_come_from(tmp_path: Path) -> None:
    space = {**SPACE, "inputs": {"x": {"uniform": [1, 2]}}, "sample": {"num": 2, "seed": 7}}
    sweep(space, tmp_path / "a")
    name = Results.of(str(tmp_path / "a")).names[0]
    told = json.loads(pl.read_parquet_metadata(tmp_path / "a" / SHARDS / f"{name}.parquet")["rackline"])
    assert told["rackline"]
    assert (told["seed"], told["sample"]) == (7, "sobol")
    assert re.fullmatch("[0-9a-f]{16}", next(iter(told["calibrations"].values())))
    assert re.fullmatch("[0-9a-f]{16}", told["build"])
    assert told["head"]["options"]["model"] == "llama-3.1-8b"


def some(prepared: Prepared, folder: Path, number: int) -> None:
    store = Store(str(folder))
    store.prepare()
    for name, chunk in prepared.tasks[:number]:
        run_chunk(prepared.job, chunk, store, name)


def test_a_run_goes_on_where_it_was_stopped_and_clears_what_was_half_written(tmp_path: Path) -> None:
    prepared = prepare(SPACE)
    some(prepared, tmp_path / "a", 7)
    litter = tmp_path / "a" / SHARDS / ".half.parquet.999999999.tmp"
    litter.write_bytes(b"half")
    mine = tmp_path / "a" / SHARDS / f".half.parquet.{os.getpid()}.tmp"
    mine.write_bytes(b"of a writer that runs")
    found = sweep(SPACE, tmp_path / "a")
    assert found.new_shards == 13
    assert not litter.exists()
    assert mine.exists()
    mine.unlink()
    sweep(SPACE, tmp_path / "b")
    assert shards(tmp_path / "a") == shards(tmp_path / "b")


class _Pressed(Watch):
    """Presses Ctrl-C after the first chunk."""

    def computing(self, what: str) -> Any:
        from contextlib import nullcontext

        def tell(done: int, total: int, failed: int) -> None:
            raise KeyboardInterrupt

        return nullcontext(tell)


def test_an_interruption_keeps_what_is_done_and_says_so(tmp_path: Path) -> None:
    prepared = prepare(SPACE)
    found = runs.run(prepared, str(tmp_path / "a"), workers=1, ray=None, watch=_Pressed())
    assert found.interrupted
    assert len(shards(tmp_path / "a")) == found.new_shards == 1
    again = runs.run(prepared, str(tmp_path / "a"), workers=1, ray=None, watch=_Pressed())
    assert (again.new_shards, again.left_shards) == (1, 18)  # of what was there nothing is left
    assert sweep(SPACE, tmp_path / "a").new_shards == 18


def test_a_full_disk_is_said_and_resumed_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    real = Store.write

    def write(self: Store, name: str, data: bytes) -> None:
        if len(written) >= 5 and name.startswith(SHARDS):
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(name)
        real(self, name, data)

    monkeypatch.setattr(Store, "write", write)
    with pytest.raises(LostStoreError, match=r"No space left on device.*goes on"):
        sweep(SPACE, tmp_path / "a")
    monkeypatch.setattr(Store, "write", real)
    assert len(shards(tmp_path / "a")) == 4
    assert sweep(SPACE, tmp_path / "a").new_shards == 16


def test_a_disk_that_is_full_leaves_no_half_file(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.prepare()
    (tmp_path / SHARDS / "a.parquet").mkdir()
    with pytest.raises(OSError, match="directory"):
        store.write("shards/a.parquet", b"data")
    assert [path.name for path in (tmp_path / SHARDS).iterdir()] == ["a.parquet"]


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="out: got"):
        sweep(SPACE, tmp_path / "file" / "below")
    with pytest.raises(InputError, match="folder"):
        Results.of(str(tmp_path / "none"))


def test_any_address_of_fsspec_is_a_store(tmp_path: Path) -> None:
    sweep(SPACE, tmp_path / "a")
    assert rl.sweep(SPACE, out="memory://sweeps/one").result.new_shards == 20
    remote = store_of("memory://sweeps/one")
    assert {f"{name}.parquet": remote.read(f"{SHARDS}/{name}.parquet") for name in remote.names()} == shards(
        tmp_path / "a"
    )
    assert rl.sweep(SPACE, out="memory://sweeps/one").result.new_shards == 0
    table = Results.of("memory://sweeps/one").scan().collect()
    assert table.sort(KEYS).equals(Results.of(str(tmp_path / "a")).scan().collect().sort(KEYS))
    with pytest.raises(InputError, match="an address that fsspec knows"):
        rl.sweep(SPACE, out="nowhere://x")


class _Killing(Pool):
    """A pool one of whose workers is killed while it works, some times."""

    def run(self, tasks: Iterable[Any]) -> Any:
        for number, one in enumerate(super().run(tasks)):
            if number in (2, 6) and (running := _children()):
                os.kill(running[-1], signal.SIGKILL)
                _killed.append(running[-1])
            yield one


_killed: list[int] = []


def _children() -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(os.getpid()), "-f", "spawn_main"], capture_output=True, text=True)
    return [int(word) for word in found.stdout.split()]


def test_killed_workers_cost_nothing_but_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep(SPACE, tmp_path / "a")
    monkeypatch.setattr(runs, "Pool", _Killing)
    found = sweep(SPACE, tmp_path / "b", workers=2)
    assert _killed
    assert found.shards == 20
    assert shards(tmp_path / "a") == shards(tmp_path / "b")


@pytest.mark.slow
def test_a_killed_driver_takes_its_workers_along_and_loses_nothing(tmp_path: Path) -> None:
    """Kill -9 at two moments; `bench/sweep_kills.py` does it 20 times."""
    path = tmp_path / "space.toml"
    path.write_text(
        '[options]\nmodel = "llama-3.1-8b"\non = "l40s-8"\nlayout = "tp=1"\n'
        "batch = { linear = [1, 400], num = 400 }\ncontext = { linear = [1000, 3000], num = 500 }\n"
        "[output]\nrows_per_shard = 10000\n"
    )
    words = [sys.executable, "-m", "rackline", "sweep", str(path), "--out", str(tmp_path / "a"), "--workers", "2"]
    for least in (1, 10):
        child = subprocess.Popen(words, stdout=subprocess.DEVNULL, start_new_session=True)
        deadline = time.monotonic() + 60
        while child.poll() is None and time.monotonic() < deadline and len(_done(tmp_path / "a")) < least:
            time.sleep(0.02)
        child.kill()
        child.wait()
    assert subprocess.run(words, stdout=subprocess.DEVNULL).returncode == 0
    rl.sweep(str(path), out=str(tmp_path / "b"), workers=1)
    assert {name: data for name, data in shards(tmp_path / "a").items() if not name.endswith(".tmp")} == shards(
        tmp_path / "b"
    )


def _done(folder: Path) -> list[Path]:
    return [one for one in (folder / SHARDS).glob("*.parquet") if not one.name.startswith(".")]


def test_questions_are_asked_once_a_combination_and_prices_come_after(tmp_path: Path) -> None:
    space = {
        "ask": "fit",
        "options": {"model": ["llama-3.1-8b", "deepseek-v3"], "on": "l40s-8", "context": ["2k", "8k"]},
        "inputs": {"x": [1.0, 2.0, 3.0]},
        "output": {"results": ["fits", "rows.0.max_concurrency", "rows.0.layout.tp"]},
        "derived": {"each": "rows[0].max_concurrency * x"},
        "objectives": {"each": "max"},
    }
    found = sweep(space, tmp_path / "a", workers=1)
    assert found.new_rows == 12
    table = Results.of(str(tmp_path / "a")).scan().collect()
    one = rl.fit("llama-3.1-8b", on="l40s-8", context="8k").to_dict()["rows"][0]["max_concurrency"]
    mine = table.filter((pl.col("model") == "llama-3.1-8b") & (pl.col("context") == 8000))
    assert mine["rows.0.max_concurrency"].to_list() == [one] * 3
    assert mine["each"].to_list() == [one * x for x in (1, 2, 3)]
    none = table.filter(pl.col("model") == "deepseek-v3")
    assert not none["feasible"].any()
    assert none["reason"].null_count() == 0


def test_a_question_that_is_refused_is_a_row(tmp_path: Path) -> None:
    space = {
        "ask": "encode",
        "options": {"model": ["llama-3.1-8b", "nobody/nothing"], "on": "l40s-8", "prompt": [10, 20], "offline": True},
    }
    found = sweep(space, tmp_path / "a", workers=1)
    assert (found.new_rows, found.failed) == (4, 4)
    said = Results.of(str(tmp_path / "a")).scan().collect()["reason"].unique().to_list()
    assert any("nobody/nothing" in str(one) for one in said)


def test_the_forecast_says_what_it_takes_and_runs_nothing(tmp_path: Path) -> None:
    found = rl.sweep(SPACE, out=str(tmp_path / "a"), dry_run=True).result
    assert (found.points, found.tables, found.shards, found.missing) == (2000, 2, 20, 20)
    assert found.bytes > 2000
    assert found.core_s > 0
    assert found.usd == pytest.approx(found.core_s / 3600 * 0.05)
    assert found.levels == {"on": "table", "batch": "point", "context": "point"}
    assert not (tmp_path / "a").exists()
    some(prepare(SPACE), tmp_path / "a", 5)
    assert rl.sweep(SPACE, out=str(tmp_path / "a"), dry_run=True).result.missing == 15
    asked = rl.sweep({"ask": "fit", "options": {"model": "llama-3.1-8b", "on": ["l40s-8"]}}, out="x", dry_run=True)
    assert asked.result.asks_each


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert command(["sweep", "--new", "mine.toml"]) == 0
    assert command(["sweep", "mine.toml", "--dry-run"]) == 0
    assert "3" in capsys.readouterr().out
    assert command(["sweep", "mine.toml"]) == 0
    assert "rackline sweep show mine" in capsys.readouterr().out
    assert (tmp_path / "mine" / SHARDS).is_dir()
    for words, refusal in {
        ("sweep",): "file: got 'nothing'",
        ("sweep", "none.toml"): "none.toml",
        ("sweep", "--new", "mine.toml"): "--new: got 'mine.toml'",
        ("sweep", "--new", "mine"): "nearest: mine.toml",
        ("sweep", "mine.toml", "--workers", "0"): "--workers",
    }.items():
        assert command([*words]) == 2
        assert refusal in capsys.readouterr().err
    with pytest.raises(InputError, match="out: got 'nothing'"):
        rl.sweep(SPACE)


def test_the_file_of_a_question_is_data() -> None:
    question = rl.sweep.verb.question
    one = question(SPACE, out="x")
    assert question.from_data(json.loads(json.dumps(one.to_data()))) == one
    assert read_file(json.loads(one.file)) == read_file(SPACE)

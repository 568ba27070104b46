"""Real servers' runs served again by the simulator."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rackline.errors import InputError
from rackline.plain import plain
from rackline.validation import read_cases, validate
from rackline.validation.page import block_of, fill_block, marks, stored_form
from rackline.validation.requests import chip_of

RUNS = Path(__file__).resolve().parents[3] / "shared" / "measured" / "vllm_runs" / "runs.json"
COLUMNS = "run,request_id,arrival_s,input_toks,output_toks,queue_ms,ttft_ms,tpot_ms,e2e_ms\n"
ENGINE = {"model": "meta-llama/Llama-3.1-8B", "tensor_parallel_size": 2, "max_num_seqs": 8}


def write(folder: Path, runs: dict[str, object], rows: str) -> Path:
    path = folder / "runs.json"
    path.write_text(json.dumps({"runs": runs}))
    (folder / "requests.csv").write_text(COLUMNS + rows)
    return path


def test_runs_are_scored_by_request_and_percentile(tmp_path: Path) -> None:
    rows = "".join(f"H100/x,r{i},{0.1 * i},500,20,0,50,8,200\n" for i in range(10))
    board = validate([write(tmp_path, {"H100/x": {"engine_kwargs": ENGINE, "vllm_version": "0.19.0"}}, rows)])
    assert board.num_cases == 1
    assert {name: stats.n for name, stats in board.metrics.items() if name in ("tpot_s", "ttft_p99_s")} == {
        "tpot_s": 10,
        "ttft_p99_s": 1,
    }
    assert board.scores[0].groups["chip"] == "h100-sxm"
    assert plain(board)["worst"]


def test_bad_runs_are_named(tmp_path: Path) -> None:
    settings = {"engine_kwargs": ENGINE}
    path = write(tmp_path, {"H100/x": settings, "H999/x": settings, "broken": {}}, "H100/x,r,0,x,20,0,50,8,200\n")
    board = validate([path])
    causes = [case.reason for case in board.unsupported]
    assert any("requests.csv, line 2" in cause for cause in causes)
    assert any("H999" in cause for cause in causes)
    assert any("engine_kwargs" in cause for cause in causes)
    (tmp_path / "requests.csv").unlink()
    with pytest.raises(InputError, match=r"requests\.csv"):
        read_cases([path])


def test_quantization_sets_the_data_types(tmp_path: Path) -> None:
    """As the engine was told, else as the checkpoint is named; the cache stays in bf16 unless it says otherwise."""
    runs = {
        "H100/a": {"engine_kwargs": {**ENGINE, "quantization": "fp8"}},
        "H100/b": {"engine_kwargs": {**ENGINE, "model": "x/Qwen3-8B-AWQ", "kv_cache_dtype": "fp8_e4m3"}},
        "H100/c": {"engine_kwargs": {**ENGINE, "quantization": "magic"}},
        "H100/d": {"engine_kwargs": {**ENGINE, "quantization": None}},
    }
    cases = read_cases([write(tmp_path, runs, "")])
    found = {case.case_id: f"{case.precision},{case.precision_detail}" for case in cases.cases}
    assert found == {"H100/a": "fp8,kv=bf16", "H100/b": "int4,kv=fp8", "H100/d": "native,"}
    assert "magic" in cases.unsupported[0].cause


def test_chips_are_found_by_their_drivers_name() -> None:
    assert chip_of("NVIDIA H100 80GB HBM3") == "h100-sxm"
    assert chip_of("no such chip") is None


@pytest.mark.skipif(not RUNS.is_file(), reason="no measured runs beside the project")
def test_real_servers() -> None:
    """The bars of each run alone: median tpot and e2e within 10 %, p99 of ttft within 25 %."""
    scores = validate([RUNS]).scores
    runs = {score.case_id.partition("#")[0] for score in scores}
    assert len(runs) == 2
    for run in runs:
        for metric, bar, count in (("tpot_s", 0.10, 300), ("e2e_s", 0.10, 300), ("ttft_p99_s", 0.25, 1)):
            found = [
                abs(score.error)
                for score in scores
                if score.metric == metric and score.case_id.partition("#")[0] == run
            ]
            assert len(found) == count
            assert np.median(found) <= bar, (run, metric)


def test_runs_have_a_block_of_their_own_in_a_page(tmp_path: Path) -> None:
    rows = "".join(f"H100/x,r{i},{0.1 * i},500,20,0,50,8,200\n" for i in range(4))
    runs = write(tmp_path, {"H100/x": {"engine_kwargs": ENGINE, "vllm_version": "0.19.0"}}, rows)
    page = tmp_path / "page.md"
    begin, end = marks("scoreboard")
    runs_begin, runs_end = marks("real servers")
    page.write_text(f"{begin}\nold\n{end}\n{runs_begin}\n{runs_end}\n")
    name, text = block_of(stored_form(validate([runs]), [str(runs)]))
    fill_block(page, *marks(name), text)
    before, after = page.read_text().split(runs_begin)
    assert "old" in before
    assert "tpot_p99_s" in after
    assert "By chip" in after
    assert "By model" not in after

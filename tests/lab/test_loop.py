"""The loop closes on this machine: planned on a measured machine file, started with the plan's flags, observed.

What the machine's speed decides is not judged here: it may be busy. `bench/closed_loop.py` judges it on quiet cores.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_composed_server import MACHINE, WORKERS, free_port, running

import rackline as rl

pytest.importorskip("xllamacpp", reason="the server of llama.cpp is not installed: uv sync --group dev")

REQUESTS, LENGTHS = 12, {"input": 32, "output": 4}
SHAPE = {
    "num_layers": 2, "d_model": 128, "num_q_heads": 4, "num_kv_heads": 2, "head_dim": 32, "d_ff": 256,
    "vocab_size": 1024,
}  # fmt: skip
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128, "intermediate_size": 256,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1024,
    "torch_dtype": "float32", "tie_word_embeddings": False, "max_position_embeddings": 1024,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights, as one file for llama.cpp beside its configuration."""
    made = tmp_path_factory.mktemp("model")
    (made / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    code = "import json, sys; from pathlib import Path; from run_llama_cpp import write_model; "
    code += "write_model(Path(sys.argv[1]), json.loads(sys.argv[2]), 'fp32', 1024, 0)"
    words = [sys.executable, "-c", code, str(made / "model.gguf"), json.dumps(SHAPE)]
    subprocess.run(words, cwd=WORKERS, check=True, timeout=120)
    return made


@pytest.fixture(scope="module")
def planned(folder: Path) -> Any:
    """The plan on the file of a measured machine, with the command that starts it."""
    return rl.plan(
        str(folder / "config.json"), on=str(MACHINE), calibration=str(MACHINE), precision="fp32",
        engine="llama-cpp", launch=True, mode="chunked=64", tpot="100ms@p90", ttft="2s@p90", sample=REQUESTS, **LENGTHS,
    ).result  # fmt: skip


@pytest.mark.slow
def test_the_plan_starts_and_is_observed_at_its_rate(folder: Path, planned: Any, tmp_path: Path) -> None:
    (command,) = planned.launch
    assert command.lacks == ()
    flags = dict(zip(command.words[1::2], command.words[2::2], strict=True))
    assert flags["--model"] == str(folder / "model.gguf")
    with running([*command.words[1:], "--host", "127.0.0.1", "--port", str(port := free_port())], port) as url:
        found = rl.observe(
            url, model=str(folder / "config.json"), on=str(MACHINE), precision="fp32", stack="llama-cpp",
            rate=planned.plan.best.requests_per_s, requests=REQUESTS, seed=1, yes=True,
            save=str(tmp_path / "run.jsonl"), max_num_seqs=int(flags["--parallel"]),
            max_batched_tokens=int(flags["--batch-size"]), **LENGTHS,
        ).to_dict()  # fmt: skip
    assert found["finished"] == REQUESTS
    (run,) = (tmp_path / "run.jsonl").read_text(encoding="utf-8").splitlines()
    counts = {(one["prompt_tokens"], one["output_tokens"]) for one in json.loads(run)["requests"]}
    assert counts == {(LENGTHS["input"], LENGTHS["output"])}
    for one in planned.sample.shown:  # the run has what the plan gave intervals of, in the same units
        assert 0.0 < one.low_s < one.median_s < one.high_s
        assert found[one.metric][one.statistic] > 0.0


def test_the_plan_says_what_so_few_requests_show(planned: Any) -> None:
    """An idle server is faster than the crowds of thousands of requests; the machine file states its errors."""
    sample, best = planned.sample, planned.plan.best
    assert sample.requests == REQUESTS
    shown = {(one.metric, one.statistic): one for one in sample.shown}
    assert shown["tpot_s", "mean"].median_s < best.tpot_s
    assert ("tpot_s", "p90") in shown
    assert ("tpot_s", "p99") not in shown  # of twelve requests none lies beyond it
    assert sample.low_requests_per_s < best.requests_per_s < sample.high_requests_per_s
    text = MACHINE.read_text(encoding="utf-8")
    served = text.partition("[measured.held_out.served]")[2].partition("p90_abs_error = ")[2].split()[0]
    assert sample.error == {"ttft_s": float(served), "tpot_s": float(served)}

"""`simulate --plan`: the answer of a plan served again, and the command that `plan` prints for it."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rackline as rl
from rackline.api.answer import Verbatim
from rackline.api.question import command_of
from rackline.api.simulate_options import SimulateQuestion
from rackline.errors import InputError

# limits that hold well below saturation, where a queue makes the mean of 30,000 requests known to about 1 %
ALONE = {"calibration": "vllm", "serving": "aggregated", "layout": "tp=1", "chips": 1, "on": "dgx-h100"}
DEPLOYMENTS: dict[str, dict[str, Any]] = {
    "dense": {"model": "llama-3.1-8b", **ALONE, "input": "1k", "output": 200, "tpot": "20ms@mean", "ttft": "75ms@mean"},
    "experts": {
        "model": "deepseek-v3", "on": "dgx-h200", "chips": 8, "layout": "attention_dp=8,ep=8", "calibration": "sglang",
        "serving": "aggregated", "mode": "prefill-first,prefill-delayer=10", "input": "1k", "output": 100,
        "tpot": "70ms@mean", "ttft": "600ms@p99",
    },
    "pools": {
        "model": "llama-3.1-70b", "on": "dgx-h100", "chips": 8, "layout": "tp=4", "prefill_layout": "tp=4",
        "calibration": "trtllm", "input": "2k", "output": 100, "tpot": "21ms@p99", "ttft": "700ms@mean",
    },
    "mixture": {
        "model": "llama-3.1-8b", **ALONE, "mode": "chunked=512", "cache_hit": 0.3,
        "tpot": "25ms@mean", "ttft": "65ms@mean",
    },
}  # fmt: skip
REQUESTS = 30_000
WITHIN = 0.03


def _mix(folder: Path) -> str:
    file = folder / "mix.csv"
    file.write_text("share,input,output\n60%,500,100\n40%,1500,200\n")
    return str(file)


def _asked(kind: str, folder: Path) -> dict[str, Any]:
    asked = DEPLOYMENTS[kind]
    return {**asked, "mix": _mix(folder)} if kind == "mixture" else asked


def _written(folder: Path, data: Any, name: str = "plan.json") -> str:
    file = folder / name
    file.write_text(data if isinstance(data, str) else json.dumps(data))
    return str(file)


@pytest.fixture(scope="module")
def dense() -> dict[str, Any]:
    return rl.plan(**DEPLOYMENTS["dense"]).to_dict()


@pytest.mark.parametrize("kind", DEPLOYMENTS)
def test_plan_and_simulation_agree(kind: str, tmp_path: Path) -> None:
    data = rl.plan(**_asked(kind, tmp_path)).to_dict()
    best = data["best"]
    assert best["basis"] == "simulated"
    assert best["serving"] == ("disaggregated" if kind == "pools" else "aggregated")
    assert (best["mode"]["alignment"] is not None) == (kind == "experts")
    assert (data["mix"] is not None) == (kind == "mixture")
    served = rl.simulate(plan=_written(tmp_path, data), requests=REQUESTS).to_dict()
    for metric in ("tpot_s", "ttft_s"):
        assert served[metric]["mean"] == pytest.approx(best[metric], rel=WITHIN), metric
    assert served["requests_per_s"] == pytest.approx(best["main"]["requests_per_s"], rel=WITHIN)
    assert served["deployment"]["max_num_seqs"] == best["max_num_seqs"]
    assert served["deployment"]["num_chips"] == best["main"]["num_chips"]
    assert served["overload"] is None


def test_replicas_share_the_rate_of_the_plan(tmp_path: Path) -> None:
    data = rl.plan(**{**DEPLOYMENTS["dense"], "chips": 4}).to_dict()
    served = rl.simulate(plan=_written(tmp_path, data), requests=REQUESTS).to_dict()
    assert served["deployment"]["replicas"] == data["best"]["layout"]["dp"] == 4
    assert served["ttft_s"]["mean"] == pytest.approx(data["best"]["ttft_s"], rel=WITHIN)


def test_the_printed_command_asks_the_same(tmp_path: Path) -> None:
    answer = rl.plan(**DEPLOYMENTS["dense"])
    (shown,) = [part.text for part in answer.text() if isinstance(part, Verbatim)]
    command = shown[shown.index("rackline simulate") :].replace("\\\n", "")
    more = ["--requests", "500", "--json"]
    found = []
    for words in (shlex.split(command)[1:], ["simulate", "--plan", _written(tmp_path, answer.to_dict())]):
        ran = subprocess.run(
            [sys.executable, "-m", "rackline", *words, *more], capture_output=True, text=True, check=True
        )
        found.append(json.loads(ran.stdout))
    for metric in ("ttft_s", "tpot_s", "e2e_s", "deployment", "requests_per_s", "usd_per_mtok_output_all_in"):
        assert found[0][metric] == found[1][metric]


def test_own_options_take_the_place_of_the_plan_and_are_named(dense: dict[str, Any], tmp_path: Path) -> None:
    path = _written(tmp_path, dense)
    answer = rl.simulate(plan=path, rate=2, max_num_seqs=7, requests=300)
    assert answer.to_dict()["deployment"]["max_num_seqs"] == 7
    assert answer.to_dict()["requests_per_s"] == pytest.approx(2.0, rel=0.2)
    said = "; ".join(answer.defaults)
    assert f"--max-num-seqs 7, where the plan has {dense['best']['max_num_seqs']}" in said
    assert "--rate 2, where the plan has" in said
    users = rl.simulate(plan=path, users=3, requests=100)
    assert any("--users 3 in place of the rate of the plan" in one for one in users.defaults)
    mixed = rl.simulate(plan=path, mix=_mix(tmp_path), requests=100)
    assert mixed.result.requests.input_len.max() == 1500


@pytest.mark.parametrize(
    ("own", "what"),
    [
        ({"model": "llama-3.1-70b"}, "model"),
        ({"on": "dgx-h200"}, "on"),
        ({"prefill_layout": "tp=1"}, "prefill_layout"),
        ({"kv_link": "1GB/s"}, "kv_link"),
        ({"trace": "t.csv"}, "trace"),
        ({"use": "chat"}, "use"),
        ({"users": 3, "rate": 2}, "rate"),
        ({"replicas": 2}, "replicas"),
    ],
)
def test_contradictions_are_refused(dense: dict[str, Any], tmp_path: Path, own: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError) as caught:
        rl.simulate(plan=_written(tmp_path, dense), **own)
    assert caught.value.what == what


def _changed(data: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    first, _, rest = path.partition(".")
    return {**data, first: _changed(data[first], rest, value) if rest else value}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("schema_version", 1),
        ("question.ask", "explain"),
        ("question.input", "many"),
        ("question.nonsense", 1),
        ("question.prefill_on", "h100-96"),
        ("best", None),
        ("best.simulated", None),
        ("best.mode", None),
        ("best.mode.admission", "unheard-of"),
        ("best.layout.tp", 0),
        ("best.layout.tp", "1"),
        ("best.layout.cp", 2),
        ("best.max_num_seqs", True),
        ("best.main.requests_per_s", float("nan")),
        ("best.precision.label", 8),
        ("usd_per_chip_hour", "x"),
        ("cache_hit", 2.0),
        ("best.precision", None),
    ],
)
def test_an_answer_with_a_defect_is_refused(dense: dict[str, Any], tmp_path: Path, path: str, value: Any) -> None:
    with pytest.raises(InputError) as caught:
        rl.simulate(plan=_written(tmp_path, _changed(dense, path, value)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[1]", "{}", "null", '"plan"', '{"question": {"ask": "plan"}}'])
def test_a_foreign_file_ends_in_one_line_and_status_2(tmp_path: Path, text: str) -> None:
    words = ["simulate", "--plan", _written(tmp_path, text), "--json"]
    ran = subprocess.run([sys.executable, "-m", "rackline", *words], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert len(ran.stderr.strip().splitlines()) == 1
    assert "rackline plan --json" in ran.stderr


def test_the_name_of_the_file_ends_in_json(dense: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.json"):
        rl.simulate(plan=_written(tmp_path, dense, "plan.txt"))


@pytest.mark.parametrize("missing", ["model", "on"])
def test_without_a_plan_model_and_cluster_are_needed(missing: str) -> None:
    asked = {"model": "llama-3.1-8b", "on": "dgx-h100", "rate": 1, "input": 10, "output": 10}
    with pytest.raises(InputError) as caught:
        rl.simulate(**{name: value for name, value in asked.items() if name != missing})
    assert caught.value.what == missing


def test_a_plan_of_a_trace_is_repeated_with_its_lengths(tmp_path: Path) -> None:
    rows = [f"{place},{300 + place},{20 + place % 7}" for place in range(200)]
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join(["arrival_s,input_len,output_len", *rows]) + "\n")
    data = rl.plan("llama-3.1-8b", **ALONE, trace=str(trace), tpot="20ms", ttft="60ms").to_dict()
    served = rl.simulate(plan=_written(tmp_path, data), requests=2000)
    lengths = served.result.requests.input_len
    assert (lengths.min(), lengths.max()) == (300, 499)


def test_the_command_of_a_scheduler_with_overlap_is_read_again() -> None:
    asked = SimulateQuestion(
        "deepseek-v3", on="dgx-h200", rate="1", input="1k", output=100, policy="prefill-delayer=10,overlap"
    )
    words = shlex.split(command_of(asked))
    assert words[words.index("--policy") + 1] == "prefill-delayer=10,overlap"


@pytest.mark.parametrize(
    "policy", ["chunked=3", "chunked,later", "prefill-delayer=1", "unheard-of", "chunked,overlap,overlap"]
)
def test_other_words_of_a_policy_are_refused(policy: str) -> None:
    with pytest.raises(InputError):
        rl.simulate("llama-3.1-8b", on="dgx-h100", chips=1, rate=1, input=100, output=10, requests=10, policy=policy)

"""Tables of measurements with empty and foreign cells, and cases that cannot be predicted: the file goes on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rackline.hardware import Cluster, cluster
from rackline.validation.cases import Case
from rackline.validation.run import read_cases, score_cases, validate

RL = {
    "framework": "NeMo RL v0.6", "model": "qwen3-32b", "algorithm": "GRPO", "mode": "1-step Off", "chip": "gb200",
    "num_chips": "32", "colocated": "no", "gen_chips": "16", "train_chips": "16", "gen_tp": "1", "gen_pp": "1",
    "recipe_train_tp_cp_ep_pp": '"[2, 1, 1, 1]"', "max_seq_len": "4096", "mean_seq_len": "3258.0",
    "samples_per_step": "2048", "prompts_per_step": "64", "gens_per_prompt": "32", "train_global_batch": "512",
    "train_micro_batch": "1", "logprob_batch": "", "act_ckpt": "", "in_flight_weight_update": "True",
    "precision": "bf16", "step_s": "210.0", "source": "s",
}  # fmt: skip
PARTS = {
    "framework": "verl", "model": "llama-3.1-8b", "algorithm": "GRPO", "mode": "sync", "sync": "sync", "chip": "h100",
    "num_chips": "8", "gen_chips": "8", "train_chips": "8", "colocated": "no", "train_engine": "Megatron",
    "prompts_per_step": "64", "gens_per_prompt": "8", "mean_prompt_len": "", "mean_response_len": "",
    "max_response_len": "2048", "step_s": "50", "gen_s": "30", "logprob_s": "3", "ref_s": "2", "train_s": "10",
    "refit_s": "", "source": "here",
}  # fmt: skip
ADAPTERS = {
    "system": "slora", "variant": "", "setting": "S1", "model": "llama-7b", "chip": "a10g", "lora_ranks": '"8,16"',
    "num_adapters": "5", "alpha": "1.0", "req_rate": "2", "cv": "1", "duration_s": "300", "throughput_req_s": "1.5",
    "used_in_paper": "yes", "source": "s",
}  # fmt: skip
TUNING = {
    "framework": "NeMo 2.0", "model": "llama3 8b", "task": "LoRA", "lora_rank": "16", "chip": "h100-sxm",
    "num_chips": "8", "precision": "bf16", "seq_len": "4096", "step_s": "2.0", "note": "", "tok_per_s_total": "",
    "tok_per_s_per_gpu": "", "micro_batch": "1", "micro_batches": "4", "global_batch": "32", "tp": "1", "pp": "1",
    "cp": "1", "vp": "1", "ep": "1", "act_ckpt": "", "attention": "", "data": "", "source": "s",
}  # fmt: skip


def table(row: dict[str, str], *changes: dict[str, str]) -> str:
    return "\n".join([",".join(row), *(",".join({**row, **change}.values()) for change in changes)]) + "\n"


@pytest.mark.parametrize("row", [RL, PARTS, ADAPTERS, TUNING], ids=["steps", "parts", "adapters", "tuning"])
@pytest.mark.parametrize("cell", ["", "n/a"])
def test_no_cell_ends_a_table(row: dict[str, str], cell: str, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    for name in row:
        path.write_text(table(row, {}, {name: cell}, {}), encoding="utf-8")
        found = read_cases([path])
        bad = [one for one in found.unsupported if one.bad_input]
        assert len(found.cases) + len(found.unsupported) == 3
        assert {one.where for one in bad} <= {"table.csv, line 3"}, name
        assert len([one for one in found.cases if "line 3" not in one.where]) >= 1


def test_an_empty_cell_is_named_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(table(PARTS, {"num_chips": ""}), encoding="utf-8")
    (one,) = read_cases([path]).unsupported
    assert one.reason == "table.csv, line 2: num_chips: got 'an empty cell', allowed: a number"
    path.write_text(table(RL, {}) + "NeMo RL v0.6,qwen3-8b\n", encoding="utf-8")  # a line that was cut off
    assert [one.where for one in read_cases([path]).unsupported] == ["table.csv, line 3"]


def test_an_unknown_operation_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ops.csv"
    head = "chip,stack,stack_version,op_name,kernel,dtype,m,n,k,seconds"
    row = "h100-sxm,vllm,1.0,{},a,bfloat16,8,128,128,1e-5"
    path.write_text("\n".join([head, row.format("gemm"), row.format("convolution"), row.format("")]) + "\n")
    reasons = [one.reason for one in read_cases([path]).unsupported]
    assert [reason.split(": ")[2].split(",")[0] for reason in reasons] == ["got 'convolution'", "got 'nothing'"]


TRAIN: dict[str, Any] = {
    "kind": "train", "model": "llama-3.1-8b", "chip": "tpu-v5e", "num_chips": 16, "stack": "maxtext",
    "precision": "bf16", "layout": {}, "global_batch": 1024, "seq_len": 4096, "recompute": "full",
    "measured": {"step_s": 5.0},
}  # fmt: skip


def test_more_chips_than_any_cluster_joins_cost_one_case(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    cases = [{**TRAIN, "id": f"{chips}", "num_chips": chips} for chips in (16, 100_000, 16)]
    path.write_text("\n".join(map(json.dumps, cases)), encoding="utf-8")
    board = validate([path])
    assert len(board.scores) == 2
    (lost,) = board.unsupported
    assert (lost.case_id, lost.bad_input) == ("100000", True)
    assert "no cluster of the catalogue joins more" in lost.reason


def test_a_case_names_its_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(name: str) -> Cluster:  # by default 64 chips are part of h100-96
        found = cluster(name)
        levels = tuple(replace(one, bytes_per_s_each_way=one.bytes_per_s_each_way / 10.0) for one in found.levels)
        return replace(found, levels=levels) if name == "dgx-h100" else found

    monkeypatch.setattr("rackline.validation.resolve.cluster", slow)
    path = tmp_path / "train.jsonl"
    base = {**TRAIN, "model": "llama-3.1-70b", "chip": "h100-sxm", "num_chips": 64, "layout": {"tp": 8, "pp": 2}}
    of = {"plain": {}, "slow": {"cluster": "dgx-h100"}, "other": {"cluster": "dgx-b200"}}
    path.write_text("\n".join(json.dumps({**base, "id": name, **more}) for name, more in of.items()), encoding="utf-8")
    board = validate([path])
    predicted = {score.case_id: score.predicted for score in board.scores}
    assert predicted["slow"] > 1.1 * predicted["plain"]
    assert [(one.case_id, "h100-sxm" in one.reason) for one in board.unsupported] == [("other", True)]
    assert not board.unknown_keys


def test_whatever_a_prediction_raises_costs_its_own_case_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(table(PARTS, *({"colocated": "yes", "num_chips": str(n)} for n in range(1, 8))), encoding="utf-8")

    def predict(resolver: object, case: Case) -> dict[str, float]:
        if case.num_chips in (3, 7):
            raise ValueError("odd")
        return dict.fromkeys(case.measured, 1.0)

    monkeypatch.setattr("rackline.validation.rl.predict_rl", predict)
    board = score_cases(read_cases([path]))
    assert [one.reason for one in board.unsupported] == ["table.csv, line 4: odd", "table.csv, line 8: odd"]
    assert len({score.where for score in board.scores}) == 5

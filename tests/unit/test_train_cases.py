"""Training cases: how a source's words become a run, a stack and the time of a step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import cluster, micro_batch
from rackline import arch
from rackline.api.answer import Answer
from rackline.api.validate import StacksWritten, ValidateQuestion, status
from rackline.catalog import names
from rackline.errors import InputError, LayoutError
from rackline.plain import plain
from rackline.training.runs import TrainLayout
from rackline.training.stack import default_training_stack, training_stack
from rackline.training.step import step_parts, step_time
from rackline.validation import validate
from rackline.validation.cases import Case, Unsupported, read_line
from rackline.validation.refit_report import train_refit_markdown
from rackline.validation.resolve import Resolver
from rackline.validation.run import read_cases
from rackline.validation.train_cases import measured_step_s, prepare_training, train_layout, train_stack_name, truncated
from rackline.validation.train_fit import (
    base_stacks,
    fit_numbers,
    fitted_numbers,
    refit_training,
    repeat_spread,
    stack_toml,
    stacks_with,
    write_stacks,
)

BASE: dict[str, Any] = {
    "id": "a",
    "kind": "train",
    "model": "llama-3.1-8b",
    "chip": "h100-sxm",
    "num_chips": 16,
    "stack": "nemo",
    "precision": "bf16",
    "layout": {"tp": 2, "pp": 2, "virtual_pp": 4, "cp": 1},
    "global_batch": 64,
    "seq_len": 4096,
    "measured": {"tokens_per_s_per_chip": 10000.0},
}


def case(**changes: Any) -> Case:
    found = read_line(json.dumps({**BASE, **changes}), "line 1")
    assert isinstance(found, Case), found
    return found


def model(name: str) -> Any:
    return arch.model(name)


def test_layout_fills_what_the_source_leaves_open() -> None:
    llama = model("llama-3.1-8b")
    given = train_layout(case(), llama)
    assert (given.tp, given.pp, given.virtual_pp, given.dp, given.zero, given.recompute) == (2, 2, 4, 4, 1, "none")
    open_ = train_layout(case(layout={"tp": 2, "pp": 2, "dp": 99}), llama)
    assert (open_.virtual_pp, open_.micro_batch, open_.dp) == (16, 1, 4)
    sharded = train_layout(case(layout={"tp": 1, "pp": 1, "virtual_pp": 3, "sharding": "full-shard"}), llama)
    assert (sharded.zero, sharded.virtual_pp, sharded.dp) == (3, 1, 16)
    mixture = train_layout(case(layout={"tp": 4, "ep": 2}, model="grok-1"), model("grok-1"))
    assert (mixture.ep, mixture.expert_tp) == (2, 4)
    fine = train_layout(case(layout={"tp": 4, "ep": 8}), model("qwen3-30b-a3b"))
    assert (fine.ep, fine.expert_tp) == (8, 1)


def test_recipes_of_megatron_bridge_interleave_only_where_they_say_so() -> None:
    open_ = case(layout={"tp": 2, "pp": 2}, stack="megatron-bridge", stack_version="26.04", chip="b200-sxm")
    ready, _ = prepare_training(Resolver(), [open_, case(layout={"tp": 2, "pp": 2}, stack="nemo", id="other")])
    assert ready is not None
    found = {one.stack: ready.parts.runs.layout(i).virtual_pp for i, one in enumerate(ready.cases)}
    assert found == {"megatron-bridge": 1, "nemo": 16}


@pytest.mark.parametrize(("label", "waits"), [("mxfp8", False), ("bf16", True)])
def test_a_step_of_a_mixture_that_is_one_graph_does_not_wait_for_the_host(label: str, waits: bool) -> None:
    on = cluster("gb200-nvl72").with_num_chips(64)
    layouts = [TrainLayout(dp=64, ep=64)]
    for stack, graphs in (("megatron-bridge", True), ("megatron-bridge-25", False)):
        parts = step_parts(micro_batch(model("qwen3-30b-a3b"), layouts, on, seq_len=4096, stack=stack, precision=label))
        host = step_time(parts, training_stack(stack)).host
        assert (host[0] > 0.0) == (waits or not graphs)
    # recurrent layers are not captured whole
    hybrid = micro_batch(
        model("nemotron-3-nano-30b-a3b"), layouts, on, seq_len=4096, stack="megatron-bridge", precision=label
    )
    assert step_time(step_parts(hybrid), hybrid.system.stack).host[0] > 0.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layout": {"tp": 3}}, "to divide num_chips=16"),
        ({"layout": {"tq": 3}}, "nearest: tp"),
        ({"layout": {"sharding": "full-shart"}}, "nearest: full-shard"),
        ({"recompute": "partial"}, "none, selective, modules, selective-op, full, reversible, unknown"),
    ],
)
def test_layout_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, LayoutError), match=message):
        train_layout(case(**changes), model("llama-3.1-8b"))


def test_stack_follows_release_and_age() -> None:
    assert train_stack_name(case(stack="megatron-bridge", stack_version="26.06.01"), "blackwell") == "megatron-bridge"
    assert train_stack_name(case(stack="megatron-bridge", stack_version="26.04"), "blackwell") == "megatron-bridge-25"
    assert train_stack_name(case(stack="Megatron-LM", chip="a100-sxm-80gb"), "ampere") == "megatron-lm-2021"
    assert train_stack_name(case(stack="megatron-lm"), "hopper") == "megatron-lm"


def test_measured_values_become_the_time_of_a_step() -> None:
    assert measured_step_s(case()) == pytest.approx(64 * 4096 / (10000 * 16))
    assert measured_step_s(case(measured={"step_s": 2.5})) == 2.5
    shape = {"num_layers": 2, "d_model": 1024, "num_q_heads": 8, "d_ff": 4096, "vocab_size": 32000}
    found = case(measured={"model_flop_per_s_per_chip": 4e14}, architecture=shape)
    flop = 72 * 64 * 4096 * 2 * 1024**2 * (1 + 4096 / (6 * 1024) + 32000 / (12 * 2 * 1024))
    assert measured_step_s(found) == pytest.approx(flop / (4e14 * 16))
    with pytest.raises(InputError, match="architecture"):
        measured_step_s(case(measured={"hardware_flop_per_s_per_chip": 4e14}))


def test_truncated_models_keep_their_leading_layers() -> None:
    deep = truncated(model("deepseek-v3"), 5)
    assert [group.count for group in deep.layer_groups] == [3, 2]
    assert truncated(model("llama-3.1-8b"), 40).num_layers == 40


def write(tmp_path: Path, *cases: dict[str, Any]) -> Path:
    path = tmp_path / "cases.jsonl"
    path.write_text("\n".join(json.dumps(one) for one in cases), encoding="utf-8")
    return path


def test_scoreboard_scores_every_key_as_step_s(tmp_path: Path) -> None:
    path = write(tmp_path, BASE, {**BASE, "id": "b", "layout": {"tp": 3}}, {**BASE, "id": "c", "model": "nothing"})
    board = validate([path])
    assert [score.metric for score in board.scores] == ["step_s"]
    assert board.metrics["step_s"].n == 3
    assert {one.case_id for one in board.unsupported} == {"b", "c"}
    only_bad = validate([write(tmp_path, {**BASE, "layout": {"tp": 3}})])
    assert not only_bad.scores


def test_ideal_stack_is_faster_than_a_fitted_one(tmp_path: Path) -> None:
    path = write(tmp_path, BASE)
    fitted, ideal = (validate([path], name).scores[0].predicted for name in ("auto", "unit"))
    assert ideal < fitted


def test_fit_finds_the_numbers_that_made_the_cases(tmp_path: Path) -> None:
    shapes = [
        {**BASE, "id": f"{name}{seq}{chip}{label}", "model": name, "seq_len": seq, "chip": chip, "precision": label}
        for name in ("llama-3.1-8b", "llama-3.1-70b")
        for seq in (2048, 8192)
        for chip in ("h100-sxm", "a100-sxm-80gb")
        for label in ("bf16", "fp8")
        if chip == "h100-sxm" or label == "bf16"
    ]
    ready, lost = prepare_training(Resolver(), read_cases([write(tmp_path, *shapes)]).cases)
    assert ready is not None
    assert not lost
    truth = {number.name: number.start for number in fitted_numbers()}
    truth["kernels.gemm_slowdown hopper bf16"] = 1.4
    base = base_stacks(ready)
    made = ready.predict(stacks_with(truth, base))
    import dataclasses

    ready = dataclasses.replace(ready, measured_s=made)
    found = fit_numbers(ready, np.ones(len(ready.cases), dtype=bool), base)
    assert found["kernels.gemm_slowdown hopper bf16"] == pytest.approx(1.4, rel=0.04)
    again = ready.predict(stacks_with(found, base))
    assert np.max(np.abs(again / made - 1)) < 0.02
    for stack in stacks_with(found, base).values():
        text = stack_toml(stack)
        assert f"ratio = {found['kernels.gemm_slowdown hopper bf16']:.4g}" in text
        assert text.count("[[sources]]") >= 2


def test_refit_leaves_each_source_out(tmp_path: Path) -> None:
    cases = [
        {**BASE, "id": f"{stack}{n}", "stack": stack, "num_chips": n, "layout": {"tp": 1, "sharding": "full-shard"}}
        for stack in ("nemo", "llm-foundry")
        for n in (8, 16)
    ]
    found = read_cases([write(tmp_path, *cases)])
    refit = refit_training(found, "source")
    assert [fold.left_out for fold in refit.folds] == ["llm-foundry", "nemo"]
    assert refit.whole.stats.supported == 4
    assert plain(refit)["folds"][0]["n"] == 2
    assert "without each source in turn" in train_refit_markdown(refit)
    with pytest.raises(InputError, match="at least two"):
        refit_training(read_cases([write(tmp_path, BASE)]), "source")


def test_repeats_are_found() -> None:
    cases = [case(id="a"), case(id="b", measured={"tokens_per_s_per_chip": 11000.0})]
    ready, _ = prepare_training(Resolver(), cases)
    assert ready is not None
    found = repeat_spread(ready)
    assert found["pairs"] == 1
    assert found["median"] == pytest.approx(0.1)


def test_bad_line_of_kind_train_says_what_is_missing() -> None:
    found = read_line(json.dumps({key: value for key, value in BASE.items() if key != "seq_len"}), "line 1")
    assert isinstance(found, Unsupported)
    assert "seq_len" in found.reason


def test_a_written_stack_keeps_what_it_says_of_itself(tmp_path: Path) -> None:
    stacks = {name: training_stack(name) for name in names("training_stacks")}
    written, failed = write_stacks(stacks, tmp_path)
    assert (len(written), failed) == (len(stacks), [])
    for path in written:
        before, after = training_stack(path.stem), training_stack(str(path))
        assert after == before, path.stem


def test_a_stack_changes_only_the_numbers_that_it_has() -> None:
    stack = training_stack("nemo")
    changed = stack.with_values({"host.dense_s": 0.5, "host.moe_s": 0.25, "kernels.eager": True})
    assert (changed.host.dense_s, changed.host.moe_s, changed.kernels.eager) == (0.5, 0.25, True)
    back = {name: getattr(stack.host, name.removeprefix("host.")) for name in ("host.dense_s", "host.moe_s")}
    assert changed.with_values({**back, "kernels.eager": stack.kernels.eager}) == stack
    for unknown in ("host.dense", "hosts.dense_s", "dense_s"):
        with pytest.raises((AttributeError, TypeError)):
            stack.with_values({unknown: 0.5})


def test_a_stack_whose_file_fails_is_not_lost(tmp_path: Path) -> None:
    name = default_training_stack()
    (tmp_path / f"{name}.toml").mkdir()
    others = [other for other in names("training_stacks") if other != name]
    written, failed = write_stacks({one: training_stack(one) for one in (name, *others)}, tmp_path)
    assert [path.stem for path in written] == others
    assert [Path(one.file).stem for one in failed] == [name]
    assert failed[0].toml == stack_toml(training_stack(name))
    answer = Answer(
        question=ValidateQuestion(files="cases.jsonl", write_stacks=str(tmp_path)),
        result=StacksWritten(files=tuple(map(str, written)), not_written=tuple(failed)),
    )
    assert status(answer) == 2
    assert [part.text for part in answer.text()] == [failed[0].toml]


def test_one_stack_is_the_default() -> None:
    assert [name for name in names("training_stacks") if training_stack(name).is_default] == ["megatron-bridge"]
    assert [name for name in names("training_stacks") if training_stack(name).is_rl_default] == ["nemo-rl"]
    assert (default_training_stack(), default_training_stack(rl=True)) == ("megatron-bridge", "nemo-rl")
    assert default_training_stack("tpu-v5e") == default_training_stack("tpu-v5e", rl=True) == "maxtext"


@pytest.mark.parametrize(("sharding", "zero"), [("none", 0), ("zero-1", 1), ("shard-grad-op", 2), ("ZeRO_3", 3)])
def test_what_replicas_share_follows_its_name(sharding: str, zero: int) -> None:
    layout = train_layout(case(layout={"tp": 1, "sharding": sharding}), arch.model("llama-3.1-8b"))
    assert layout.zero == zero

"""Checkpointing by operators: which products are kept, what a layer stores, what the backward pass runs again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from helpers import call_json, micro_batch
from rackline import arch
from rackline.arch import Model
from rackline.catalog import names
from rackline.hardware import cluster
from rackline.search.train import train_plan
from rackline.training.flop import hardware_share
from rackline.training.kernels import kept_products, repeated_flop
from rackline.training.memory import activations_of, cheapest_recompute, stack_bytes, train_memory
from rackline.training.runs import RECOMPUTE, Runs, TrainLayout
from rackline.training.stack import IDEAL, training_stack
from rackline.training.step import step_parts, step_time
from rackline.training.system import TrainingSystem
from rackline.training.work import work_of


def named(name: str) -> Model:
    found = arch.model(name)
    assert isinstance(found, Model)
    return found


def kept(name: str, group: int) -> dict[str, float]:
    model = named(name)
    return {one.name: share for one, share in kept_products(model.layer_groups[group], model.d_model).items()}


def test_every_second_product_is_kept_as_modules_run_them() -> None:
    """Queries, values, gate and down of Llama; of latents those that narrow, and what comes of attention."""
    assert kept("llama-3.1-8b", 0) == pytest.approx(
        {"qkv": (4096 + 1024) / (4096 + 2048), "attention_out": 0.0, "ffn_up": 0.5, "ffn_down": 1.0}
    )
    latent = {"qkv_down": 1.0, "q_up": 0.0, "kv_up": 0.0, "attention_out": 1.0}
    assert kept("deepseek-v3", 0) == {**latent, "ffn_up": 0.5, "ffn_down": 0.0}
    assert kept("deepseek-v3", 1) == {**latent, "shared_up": 0.5, "shared_down": 0.0}


def test_shares_are_shares_in_every_model_of_the_catalogue() -> None:
    models = [one for one in map(arch.model, names("models")) if isinstance(one, Model)]
    assert len(models) > 50
    for model in models:
        for group in model.layer_groups:
            assert all(0.0 <= share <= 1.0 + 1e-12 for share in kept_products(group, model.d_model).values())
        assert 0.0 < repeated_flop(model)["selective-op"] < 2.0 * model.active_params


def test_a_layer_stores_its_input_and_the_results_of_kept_operators() -> None:
    model, on = named("llama-3.1-8b"), cluster("dgx-h100").with_num_chips(8)
    batch = micro_batch(model, [TrainLayout(dp=8, zero=3)], on, seq_len=8192)
    elements = 4096 + 4096 + 1024 + 4096 + 14336 + 4096  # input, queries, values, attention, gate, down
    assert float(stack_bytes(batch, "selective-op")[0]) == 8192 * 32 * (2 * elements + 4 * 32)
    cut = micro_batch(model, [TrainLayout(tp=8)], on, seq_len=8192)
    # products after which chips exchange sums are whole on each chip, what a scatter leaves is an eighth
    each = 2 * ((4096 + 4096 + 1024 + 4096 + 14336) / 8 + 4096 + 2 * 4096 / 8) + 4 * 4
    assert float(stack_bytes(cut, "selective-op")[0]) == 8192 * 32 * each


def test_dispatched_tokens_are_kept_and_experts_run_again() -> None:
    model, on = named("qwen3-30b-a3b"), cluster("dgx-h100").with_num_chips(8)
    alone, spread = (
        float(stack_bytes(micro_batch(model, [TrainLayout(dp=8, ep=ep)], on, seq_len=4096), "selective-op")[0])
        for ep in (1, 8)
    )
    assert spread - alone == 48 * 4096 * 8 * 2048 * 4.0  # eight experts a token, there and back, in bf16
    rows = work_of(micro_batch(model, [TrainLayout(dp=8, ep=8)], on, seq_len=4096))
    share = {one.row.name: one.again.get("selective-op", 0.0) for one in rows if one.layer and one.phase == "forward"}
    assert {share[name] for name in ("experts_up_forward", "experts_down_forward", "router_forward")} == {1.0}
    assert {value for name, value in share.items() if name.startswith(("ep_", "attention_gqa"))} == {0.0}


def test_gathers_run_again_and_scatters_do_not() -> None:
    on = cluster("dgx-h100").with_num_chips(8)
    rows = work_of(micro_batch(named("llama-3.1-8b"), [TrainLayout(tp=8)], on, seq_len=4096))
    share = {one.row.name: one.again.get("selective-op", 0.0) for one in rows if one.kind == "tensor"}
    assert share["tp_all_gather_forward"] == 1.0
    assert share["tp_reduce_scatter_forward"] == 0.0


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3"])
def test_memory_and_time_lie_between_none_and_full(name: str) -> None:
    on = cluster("dgx-h100").with_num_chips(64)
    layouts = [TrainLayout(pp=4, dp=16, ep=8 if name != "llama-3.1-8b" else 1, recompute=one) for one in RECOMPUTE]
    runs = Runs.of(layouts)
    batch = micro_batch(named(name), runs, on, seq_len=4096, batch=256)
    step, held = step_time(step_parts(batch), IDEAL).step, train_memory(batch).total
    flop = hardware_share(named(name), runs, 4096)
    none, by_operators, full = (RECOMPUTE.index(one) for one in ("none", "selective-op", "full"))
    assert step[none] < step[by_operators] < step[full]
    assert held[none] > held[by_operators] > held[full]
    assert flop[none] == 1.0 < flop[by_operators] < flop[full]


def test_repeated_flop_are_those_of_the_products_that_are_not_kept() -> None:
    """Keys, what comes of attention and up of Llama 8B: over the forward pass and its attention, thrice."""
    model = named("llama-3.1-8b")
    assert repeated_flop(model)["selective-op"] == 2 * 32 * (4096 * 1024 + 4096 * 4096 + 4096 * 14336)
    runs = Runs.of([TrainLayout(recompute="selective-op")])
    forward = 2 * model.active_params + 4 * 32 * 4096 * 8192
    extra = repeated_flop(model)["selective-op"] / (3 * forward)
    assert float(hardware_share(model, runs, 8192)[0]) - 1 == pytest.approx(extra, rel=1e-4)


def test_the_layer_in_progress_is_counted_beside_what_it_kept() -> None:
    on = cluster("dgx-h100")
    batch = micro_batch(named("llama-3.1-8b"), [TrainLayout(recompute="selective-op")], on, seq_len=8192)
    whole = replace(batch, runs=Runs.of([TrainLayout(recompute="none")]))
    one_layer = float((stack_bytes(batch, "none") - stack_bytes(batch, "selective-op"))[0]) / 32
    kept, again = (float(one[0]) for one in activations_of(batch))
    assert kept == pytest.approx(float(stack_bytes(batch, "selective-op")[0]))
    assert again == pytest.approx(one_layer)
    assert kept + again < float(train_memory(whole).activations[0])
    assert np.all(train_memory(batch).weights == train_memory(whole).weights)


def test_it_is_a_value_of_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    asked = (
        "train",
        "llama-3.1-8b",
        "--on",
        "dgx-h100",
        "--chips",
        "64",
        "--global-batch",
        "1M",
        "--layout",
        "tp=1,pp=1",
    )
    steps, memory = {}, {}
    for name in ("none", "selective-op", "full"):
        best = call_json(capsys, *asked, "--recompute", name)["best"]
        assert best["layout"]["recompute"] == name
        steps[name], memory[name] = best["step_s"], best["memory"]["activations_bytes"]
    assert steps["none"] < steps["selective-op"] < steps["full"]
    assert memory["none"] > memory["selective-op"] > memory["full"]


def test_a_stack_says_which_kinds_a_search_looks_at() -> None:
    """Llama 8B fits on 64 chips without any: torchtitan checkpoints by operators all the same."""
    on = cluster("dgx-h100").with_num_chips(64)
    found: dict[str, str] = {}
    for stack in ("torchtitan", "torch-fsdp", "megatron-bridge"):
        system = TrainingSystem.of(named("llama-3.1-8b"), on, stack=stack, global_batch_sequences=128, seq_len=8192)
        found[stack] = train_plan(system, fixed={"tp": 1, "pp": 1, "micro_batch": 1}).best[0].layout.recompute
    assert found == {"torchtitan": "selective-op", "torch-fsdp": "none", "megatron-bridge": "none"}


def test_an_unknown_recompute_is_the_cheapest_of_the_stack_that_fits() -> None:
    on = cluster("dgx-h100").with_num_chips(8)
    runs = Runs.of([TrainLayout(dp=8, zero=3)])
    for stack, room, chosen in (
        ("torch-fsdp", 80e9, "none"),
        ("torchtitan", 80e9, "selective-op"),
        ("torch-fsdp", 40e9, "full"),
        ("torchtitan", 40e9, "full"),
        ("torchtitan", 1e9, "selective-op"),
    ):
        batch = micro_batch(named("llama-3.1-8b"), runs, on, seq_len=8192, stack=training_stack(stack))
        assert cheapest_recompute(batch, room) == [chosen]

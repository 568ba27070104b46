"""What each chip holds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import rackline as rl
from helpers import cluster, deploy, layouts, model, types
from rackline.catalog import names
from rackline.hardware import Cluster, chip
from rackline.parallel import Layout, LayoutGrid, ServerMemory, max_sequences, memory_use
from rackline.parallel.memory import (
    FractionOf,
    activation_bytes,
    allocator_bytes,
    kv_bytes_per_sequence,
    sampling_bytes,
    weight_bytes,
)
from rackline.parallel.work import MX_BLOCK, expert_width
from rackline.passes import calibration
from rackline.passes.fallback import best_stack
from rackline.plain import plain
from rackline.serving.stack import stack, stack_of

FRACTIONS: tuple[FractionOf, ...] = ("memory", "free", "static")
OPEN = (
    "llama-3.1-70b",
    "llama-3.1-8b",
    "qwen3-235b-a22b",
    "deepseek-v3",
    "gpt-oss-120b",
    "palm-540b",
    "gpt-3-175b",
    "gemma-3-27b",
)


@pytest.mark.parametrize("name", OPEN)
def test_one_chip_holds_all_parameters(name: str) -> None:
    m = model(name)
    held = sum(float(v) for v in weight_bytes(m, Layout(), types("bf16", name, "gb200-nvl72")).values())
    assert held == pytest.approx(2.0 * m.total_params, rel=1e-3)  # biases and small norms are left out


def test_known_sizes() -> None:
    """Llama-3.1-70B in bf16 is 141 GB of safetensors; 8 chips hold an eighth each."""
    p = types("bf16", "llama-3.1-70b", "dgx-h100")
    held = sum(float(v) for v in weight_bytes(model("llama-3.1-70b"), Layout(tp=8), p).values())
    assert held == pytest.approx(141.1e9 / 8, rel=1e-3)


@pytest.mark.parametrize("name", ["gpt-oss-20b", "gpt-oss-120b"])
def test_ranks_get_the_fewest_mxfp4_blocks_that_cover_an_expert(name: str) -> None:
    """As vllm 0.33.0 (gpt_oss.py:579) and sglang 0.5.23 (gpt_oss.py:992) cut them: 23 blocks at tp=4, 12 at tp=8."""
    moe = model(name).moe()
    assert moe is not None
    widths = {ranks: float(expert_width(moe.d_expert, ranks, "mxfp4")) for ranks in (1, 2, 3, 4, 6, 8, 16, 32)}
    assert (widths[1], widths[4], widths[8]) == (2880, 736, 384)
    for ranks, width in widths.items():
        assert width % MX_BLOCK == 0
        assert ranks * width >= moe.d_expert > ranks * (width - MX_BLOCK)
        assert float(expert_width(moe.d_expert, ranks, "bf16")) == moe.d_expert / ranks


@pytest.mark.parametrize(("tp", "kept"), [(4, 768), (8, 384)])  # 736 and 384 in multiples of 128
def test_a_rank_of_gpt_oss_keeps_and_computes_whole_blocks(tp: int, kept: int) -> None:
    """Memory: vllm 0.33.0, fused_moe/oracle/mxfp4.py:866 (Marlin) keeps experts as multiples of 256 by 128."""
    name = "gpt-oss-120b"
    moe, layout = model(name).moe(), Layout(tp=tp, moe_tp=tp)
    assert moe is not None
    held = float(weight_bytes(model(name), layout, types("native", name, "dgx-h100"))["experts"])
    values = 36 * 128 * 3 * 3072 * kept  # layers, experts, matrices; 2880 values of d_model in multiples of 256
    biases = 36 * 128 * (2 * kept + 3072) * 2.0
    assert held == pytest.approx(values * (0.5 + 1 / 32) + biases)
    one, several = (
        next(row for row in deploy(name, text, label="native").table().rows if row.name == "experts")
        for text in ("tp=1", f"tp={tp}")
    )
    per_pair = float(several.compute["expert_tokens"]) / float(one.compute["expert_tokens"])
    assert per_pair == pytest.approx(float(expert_width(moe.d_expert, tp, "mxfp4")) / moe.d_expert)
    assert per_pair > 1 / tp


def test_parts_sum_to_used_and_used_plus_free_is_usable() -> None:
    d = deploy("deepseek-v3", "attention_dp=32,ep=32", label="fp8")
    server = ServerMemory(memory_fraction=0.85, batched_tokens=8192.0)
    use = d.memory(sequences=3200, context_len=5000.0, server=server)
    data = plain(use)
    parts = ("weights_bytes", "kv_cache_bytes", "activations_bytes", "runtime_bytes", "free_bytes")
    held = sum(float(data[key]) for key in parts)  # type: ignore[arg-type]
    assert held == pytest.approx(0.85 * d.cluster.chip.program_bytes, rel=1e-4)  # but for a part of a block
    assert sum(data["weights_by_kind_bytes"].values()) == pytest.approx(data["weights_bytes"])  # type: ignore[attr-defined]
    assert float(use.used) + float(use.free) == pytest.approx(use.usable)
    assert use.total == d.cluster.chip.hbm_bytes


def test_a_part_of_a_sequence_per_rank_is_a_whole_one() -> None:
    d = deploy("deepseek-v3", "attention_dp=32,ep=32", label="fp8")
    few, full = (d.memory(sequences=n, context_len=4000.0).kv_cache for n in (1, 32))
    assert float(few) == float(full) == pytest.approx(70272.0 * 4000)


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("llama-3.1-70b", "tp=8"),
        ("llama-3.1-70b", "tp=4,pp=2"),
        ("deepseek-v3", "attention_dp=32,ep=32"),
        ("deepseek-v3", "tp=8,ep=8"),
        ("qwen3-235b-a22b", "tp=4,attention_dp=2,ep=8"),
        ("gpt-oss-120b", "tp=2"),
    ],
)
def test_max_sequences_fit_and_one_more_on_each_rank_does_not(name: str, layout: str) -> None:
    d = deploy(name, layout, label="native")
    need = {"context_len": 5000.0, "server": ServerMemory(batched_tokens=8192.0)}
    most = d.max_sequences(**need)
    assert most > 0
    assert most % d.layout.attention_dp == 0
    assert float(d.memory(sequences=most, **need).free) >= 0.0
    assert float(d.memory(sequences=most + d.layout.attention_dp, **need).free) < 0.0


def test_nothing_fits_where_the_weights_do_not() -> None:
    d = deploy("llama-3.1-405b", "tp=8", on="dgx-h100")
    assert d.max_sequences(context_len=100.0) == 0
    assert float(d.memory(sequences=1, context_len=100.0).free) < 0


def test_kv_does_not_shrink_beyond_the_kv_heads() -> None:
    p = types("bf16", "llama-3.1-70b", "gb200-nvl72")
    grid = LayoutGrid.of([Layout(tp=tp) for tp in (1, 2, 8, 16, 64)])
    per_sequence = np.asarray(kv_bytes_per_sequence(model("llama-3.1-70b"), grid, p, 1000.0))
    whole = model("llama-3.1-70b").kv_bytes(1000.0)
    np.testing.assert_allclose(per_sequence, whole / np.array([1, 2, 8, 8, 8]), rtol=1e-12)


def test_windows_hold_only_themselves() -> None:
    p = types("bf16", "gpt-oss-120b", "gb200-nvl72")
    held = kv_bytes_per_sequence(model("gpt-oss-120b"), Layout(), p, np.array([128.0, 1128.0]))
    full = model("gpt-oss-120b").kv_bytes_per_token_by_kind(1.0)["full"]
    assert np.diff(np.asarray(held))[0] == pytest.approx(1000.0 * 2.0 * full)


def test_pipeline_stages_hold_their_layers() -> None:
    p = types("bf16", "llama-3.1-70b", "dgx-h100")
    one = weight_bytes(model("llama-3.1-70b"), Layout(), p)
    four = weight_bytes(model("llama-3.1-70b"), Layout(pp=4), p)
    assert float(four["ffn"]) == pytest.approx(float(one["ffn"]) / 4)
    assert float(four["head"]) == 0.0
    assert float(four["embedding"]) == float(one["embedding"])
    # 80 layers on 3 stages: the fullest has 27
    three = weight_bytes(model("llama-3.1-70b"), Layout(pp=3), p)
    assert float(three["ffn"]) == pytest.approx(float(one["ffn"]) * 27 / 80)


def test_activations_grow_with_the_pass_and_logits_with_the_sequences() -> None:
    m, layout = model("llama-3.1-70b"), Layout(tp=8)
    base = np.asarray(activation_bytes(m, layout, np.array([1024.0, 2048.0])))
    assert base[1] == pytest.approx(2 * base[0])
    assert float(sampling_bytes(m, 8.0, 12.0)) == 8 * 12 * 128256, "every rank draws from all logits"
    # at least the residual stream and its normalised copy
    assert base[0] > 1024 * 2 * 2 * 8192


@pytest.mark.parametrize(
    ("layout", "experts"),
    [(Layout(tp=8, moe_tp=8), 2 * (2 * 4096 + 3 * 14336 / 8)), (Layout(tp=8, ep=8), 2 * (2 * 4096 + 3 * 14336) / 8)],
)
def test_activations_of_a_token_with_two_experts(layout: Layout, experts: float) -> None:
    """Beside the residual stream: what goes into an expert and comes out, its gate, its up and their product."""
    assert float(activation_bytes(model("mixtral-8x7b"), layout, 1.0)) == 2 * (3 * 4096 + experts)


def test_aggregate_models_are_cut_evenly() -> None:
    m = model("lecture-frontier")
    p = types("fp4", "lecture-frontier", "gb200-nvl72")
    use = memory_use(
        m,
        Layout(tp=72),
        p,
        cluster("gb200-nvl72").chip,
        sequences_per_rank=10.0,
        context_len=1000.0,
    )
    assert float(use.weight_total) == pytest.approx(m.total_params * 9 / 16 / 72)
    assert float(use.kv_cache) == pytest.approx(m.kv_bytes(1008.0) * 10 / 72), "63 blocks of 16 tokens"


def test_a_grid_is_its_layouts() -> None:
    found = list(layouts("deepseek-v3", 16))
    p = types("fp8", "deepseek-v3", "dgx-h200")
    chip = cluster("dgx-h200").chip
    need = {"sequences_per_rank": 4.0, "context_len": 3000.0}
    together = memory_use(model("deepseek-v3"), LayoutGrid.of(found), p, chip, **need)
    free = np.broadcast_to(np.asarray(together.free), (len(found),))
    for index in range(0, len(found), 11):
        alone = memory_use(model("deepseek-v3"), found[index], p, chip, **need)
        assert float(alone.free) == pytest.approx(free[index], rel=1e-12)


def test_max_sequences_of_all_layouts_of_a_node_fit() -> None:
    p = types("native", "gpt-oss-120b", "dgx-h100")
    m, chip = model("gpt-oss-120b"), cluster("dgx-h100").chip
    for layout in layouts("gpt-oss-120b", 8):
        most = max_sequences(m, layout, p, chip, context_len=2000.0)
        use = memory_use(m, layout, p, chip, sequences_per_rank=most / layout.attention_dp, context_len=2000.0)
        assert most == 0 or float(use.free) >= 0


def test_what_the_memory_fraction_is_of() -> None:
    """Static (weights and cache) holds most, then all of the memory; of the free memory most where weights are big."""
    found, chip = model("llama-3.1-70b"), rl.chip("h100-sxm")
    held = {
        name: max_sequences(
            found,
            Layout(tp=4),
            rl.precision("bf16", found, chip),
            chip,
            ServerMemory(fraction_of=name, batched_tokens=8192.0),
            context_len=8192,
        )
        for name in FRACTIONS
    }
    assert 0 < held["memory"] < held["static"]
    assert held["memory"] < held["free"]


# What vLLM logged as "Model loading took", without the rotary table (positions · rotary width · 2 bytes).
@pytest.mark.parametrize(
    ("name", "precision", "tp", "logged_gib", "positions", "width"),
    [
        ("gpt-oss-120b", "native", 1, 65.9651, 131072, 64),  # issue 23278
        ("gpt-oss-20b", "native", 1, 13.72, 131072, 64),
        ("llama-3.1-8b", "bf16", 1, 14.9888, 131072, 128),  # issue 10517
        ("qwen2.5-14b", "bf16", 2, 13.9476, 131072, 128),  # issue 13061
    ],
)
def test_weights_are_what_a_server_logs(
    name: str, precision: str, tp: int, logged_gib: float, positions: int, width: int
) -> None:
    p = types(precision, name, "dgx-h100")
    layout = Layout(tp=tp, moe_tp=tp) if name.startswith("gpt") else Layout(tp=tp)
    held = sum(float(v) for v in weight_bytes(model(name), layout, p).values())
    held += float(allocator_bytes(model(name), layout, p)) + positions * width * 2.0
    assert held / 2**30 == pytest.approx(logged_gib, rel=0.003)


def test_learned_positions_are_weights() -> None:
    found = weight_bytes(model("gpt-3-175b"), Layout(), types("bf16", "gpt-3-175b", "dgx-h100"))
    assert found["embedding"] == 2 * 12288 * (50257 + 2048)


CARDS_OF_24_GB = ("rtx-4090", "rtx-3090", "a30")


def card(name: str) -> Cluster:
    """One card of a kind, in a host like that of the RTX 4090."""
    return replace(cluster("rtx-4090-8").with_num_chips(1), chip=chip(name))


@pytest.mark.parametrize("name", [one for one in names("chips") if best_stack(chip(one)) == "generic"])
def test_a_chip_that_nobody_measured_has_the_memory_rule_of_vllm(name: str) -> None:
    place = chip(name)
    server = stack_of(calibration("auto", place), place).server_memory()
    assert server == stack("vllm", chip=place).server_memory()


@pytest.mark.parametrize("name", CARDS_OF_24_GB)
def test_qwen3_32b_in_4_bits_fits_on_one_card_of_24_gb(name: str) -> None:
    """People run it there every day, with 8k of full-precision cache (oobabooga/textgen issue 6903)."""
    found = rl.fit("qwen3-32b", on=card(name), precision="int4", context="8k").result
    assert found.misfit is None
    assert found.capacity.fitting[0].max_context >= 8192


@pytest.mark.parametrize("name", [*CARDS_OF_24_GB, "l4", "a10g"])
def test_llama_8b_has_room_for_28000_tokens_on_a_card_of_24_gb(name: str) -> None:
    """vLLM 0.6 logged 31,232 tokens on an RTX 3090 (issue 10517), 0.19 41,408 on an RTX 4090 (LLMServingSim)."""
    row = rl.fit("llama-3.1-8b", on=card(name), precision="bf16").result.capacity.fitting[0]
    assert row.max_context >= 28_000
    if name == "rtx-4090":
        assert row.max_context == pytest.approx(41_408, rel=0.05)


@pytest.mark.parametrize(("engine", "share"), [("vllm", 0.92), ("vllm=0.19.1", 0.9), ("trtllm", 0.9)])
def test_the_share_of_the_memory_is_the_engines_own_unless_it_is_set(engine: str, share: float) -> None:
    """vLLM 0.33.0, config/cache.py:215, and 0.19.1, line 41; KvCacheConfig.free_gpu_memory_fraction of TensorRT-LLM."""
    question = {"on": "dgx-h100", "calibration": engine, "layout": "tp=8"}
    name, version = (*engine.partition("=")[::2],)
    used = stack(name, version=version, chip=chip("h100-sxm")).memory.memory_fraction
    assert used == share
    if not version:
        assert rl.fit("llama-3.1-70b", **question).result.capacity.memory_fraction == share
    assert rl.fit("llama-3.1-70b", **question, memory_fraction=0.8).result.capacity.memory_fraction == 0.8

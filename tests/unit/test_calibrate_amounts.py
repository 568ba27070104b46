"""Amounts of measured operations are those of the rows of a pass."""

from __future__ import annotations

import numpy as np
import pytest

from rackline.arch import GroupedQueryAttention, MultiHeadLatentAttention, Projection
from rackline.arch.kinds import Dim
from rackline.errors import InputError
from rackline.fitting.amounts import PRODUCTS, Amounts, amounts, busiest_rank, expert_load, power_law_loads
from rackline.fitting.tables import Array, Measurements
from rackline.hardware import chip
from rackline.parallel.blocks import decode_core, prefill_core
from rackline.parallel.precision import Precision
from rackline.parallel.work import AttentionWork, ExpertsWork, ProductWork, Weights, gemm_row
from rackline.passes import features as f
from rackline.passes.row import Row

B200 = chip("b200-sxm")


def table(name: str, labels: tuple[str, ...], **columns: float | str) -> Measurements:
    sizes = {k: np.array([float(v)]) for k, v in columns.items() if not isinstance(v, str)}
    return Measurements(
        table=name,
        chip=B200.name,
        stack="vllm",
        stack_version="1",
        labels=labels,
        columns=sizes,
        words={k: (v,) for k, v in columns.items() if isinstance(v, str)},
        seconds=np.ones(1),
        families=np.zeros(1, dtype=np.int64),
    )


def total(part: object, features: dict[str, float]) -> float:
    assert isinstance(part, dict)
    return sum(float(value) * features.get(str(name), 0.0) for name, value in part.items())


def agree(row: Row, work: Amounts, features: dict[str, float]) -> None:
    features = {f.ONE: 1.0, **features}
    assert work.op_class == row.op_class
    assert float(work.flop[0]) == pytest.approx(total(row.compute, features), rel=1e-12)
    assert float(work.hbm_bytes[0]) == pytest.approx(total(row.hbm, features), rel=1e-12)


@pytest.mark.parametrize("dtype", sorted(PRODUCTS))
def test_gemm(dtype: str) -> None:
    product = PRODUCTS[dtype]
    row = gemm_row(
        Projection(name="p", d_in=(Dim(size=4096),), d_out=(Dim(size=6144),)),
        count=1,
        tp=1,
        weights=Weights(stored=product.weights, activations=product.activations),
        chip=B200,
        group="g",
    )
    work = amounts(table("gemm", (dtype,), m=48, n=6144, k=4096), B200)
    agree(row, work, {f.TOKENS: 48.0})
    assert work.compute_s[0] == pytest.approx(work.flop[0] / B200.flop_per_s(product.compute))


def test_work_by_hand() -> None:
    product = ProductWork.of(10.0, 20.0, bytes_per_weight=0.5, bytes_per_activation=1.0)
    assert (product.flop, product.weight_bytes, product.row_bytes, product.quantise_bytes) == (400.0, 100.0, 50.0, 30.0)
    core = GroupedQueryAttention(num_q_heads=4, num_kv_heads=2, head_dim=8)
    entry = 2 * 2 * 8 * 2.0
    decode, prefill = AttentionWork.decode(core, 4, entry), AttentionWork.prefill(core, 4, 2, entry)
    assert (decode.pair_flop, prefill.pair_flop) == (4 * 8 * 4, 4 * 8 * 4)
    assert decode.token_bytes == 2 * (4 * 8 * 2) + entry  # query in, output out, key and value cached
    assert prefill.token_bytes == 2 * (4 * 8 * 2 + 2 * 8 * 2) + entry  # keys and values in as well
    experts = ExpertsWork.of(100.0, 10.0, matrices=3.0, bytes_per_weight=1.0, bytes_per_activation=2.0)
    assert (experts.pair_flop, experts.expert_bytes, experts.pair_bytes) == (6000.0, 3000.0, 460.0)
    assert (experts.permute_bytes, experts.expert_tiles) == (400.0, 120.0 / 128.0)


@pytest.mark.parametrize("kv", ["bf16", "fp8"])
def test_attention_cores(kv: str) -> None:
    attention = GroupedQueryAttention(num_q_heads=32, num_kv_heads=8, head_dim=128)
    precision = Precision(label="bf16", kv_cache=kv)
    labels = ("bfloat16", {"bf16": "bfloat16", "fp8": "fp8"}[kv])
    heads = {"q_heads": 32, "kv_heads": 8, "head_dim": 128}
    row = decode_core(attention, count=1, tp=1, precision=precision, chip=B200)
    work = amounts(table("attention_decode", labels, batch=16, context=2048, **heads), B200)
    agree(row, work, {f.kv_tokens("full"): 16 * 2048.0, f.kv_pairs("full"): 16 * 2048.0, f.DECODE_TOKENS: 16.0})
    row = prefill_core(attention, count=1, tp=1, precision=precision, chip=B200)
    work = amounts(table("attention_prefill", labels, batch=4, tokens=1000, **heads), B200)
    agree(row, work, {f.attention_pairs("full"): 4 * 1000 * 1001 / 2, f.PREFILL_TOKENS: 4000.0})


def test_mla_cores() -> None:
    attention = MultiHeadLatentAttention(
        num_q_heads=64, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
    )
    precision = Precision(label="bf16")
    labels = ("bfloat16", "bfloat16")
    row = decode_core(attention, count=1, tp=1, precision=precision, chip=B200)
    work = amounts(table("mla_decode", labels, batch=16, context=2048, q_heads=64), B200)
    agree(row, work, {f.kv_tokens("mla"): 16 * 2048.0, f.kv_pairs("mla"): 16 * 2048.0, f.DECODE_TOKENS: 16.0})
    row = prefill_core(attention, count=1, tp=1, precision=precision, chip=B200)
    work = amounts(table("mla_prefill", labels, batch=4, tokens=1000, q_heads=64), B200)
    agree(row, work, {f.attention_pairs("mla"): 4 * 1000 * 1001 / 2, f.PREFILL_TOKENS: 4000.0})


def test_experts() -> None:
    from rackline.arch import MoeFfn, model
    from rackline.parallel import Layout
    from rackline.parallel.blocks import experts_row

    owner = model("qwen3-235b-a22b")
    ffn = next(group.ffn for group in owner.layer_groups if isinstance(group.ffn, MoeFfn))  # type: ignore[union-attr]
    row = experts_row(
        owner,  # type: ignore[arg-type]
        ffn,
        count=1,
        layout=Layout(),
        weights=Weights(stored="fp8", activations="fp8"),
        chip=B200,
    )
    sizes = {"d_model": 4096, "d_ff": 1536, "top_k": 8, "num_experts": 128, "moe_tp": 1, "ep": 1}
    work = amounts(table("moe", ("fp8_block",), tokens=4, **sizes, distribution="balanced"), B200)
    agree(row, work, {f.EXPERT_TOKENS: 32.0, f.EXPERTS_TOUCHED: 32.0})


def test_an_unknown_data_type_is_refused() -> None:
    with pytest.raises(InputError, match="got 'fp3', allowed: bfloat16, fp8"):
        amounts(table("gemm", ("fp3",), m=1, n=1, k=1), B200)


def columns(**values: float) -> dict[str, Array]:
    return {name: np.array([value]) for name, value in values.items()}


@pytest.mark.parametrize("tokens", [1, 8, 100, 4096])
@pytest.mark.parametrize(("experts", "top_k"), [(8, 2), (128, 8), (256, 8), (128, 1)])
def test_skewed_loads_keep_all_pairs_and_no_expert_has_a_token_twice(tokens: int, experts: int, top_k: int) -> None:
    loads = power_law_loads(tokens, experts, top_k, 1.2, np.random.default_rng(0), 8)
    assert np.all(loads.sum(axis=1) == tokens * top_k)
    assert loads.max() <= tokens
    assert loads.min() >= 0


def test_the_busiest_rank_has_more_than_its_share_and_a_balanced_one_exactly_it() -> None:
    pairs, touched = busiest_rank(1024, 256, 8, 32, 1.2)
    assert pairs > 1.5 * 1024 * 8 / 32
    assert 1 <= touched <= 8
    assert busiest_rank(1024, 256, 8, 32, None) == (256.0, 8.0)
    assert busiest_rank(1, 256, 8, 32, None) == (0.25, 1.0)  # token 0 uses an expert of the first rank


def test_an_unknown_distribution_is_refused() -> None:
    sizes = columns(tokens=4, num_experts=8, top_k=2, ep=1)
    with pytest.raises(InputError, match="got 'zipf'"):
        expert_load(sizes, ("zipf",))

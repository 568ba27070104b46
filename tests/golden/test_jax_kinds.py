"""FLOP of every attention and feed-forward kind against XLA's cost analysis of one layer built in JAX.

A shrunken layer of each kind decodes one token for a batch of sequences with a cache, or works on a prompt. Widths are
large enough that products dominate what XLA counts beside them (softmax, activations); layers are written without
loops, whose bodies XLA would count once. Prompts of causal kinds compute full squares here, so their pairs are counted
as such on our side as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rackline.arch import DenseFfn, MoeFfn
from rackline.arch.kinds import attention_from_parameters

jax = pytest.importorskip("jax", reason="JAX is in the dev group; it has no wheel on this platform")
jnp = jax.numpy

D, BATCH, CONTEXT, PROMPT = 512, 8, 1024, 512
TOLERANCE = 0.03


def xla_flop(function: Callable[..., Any], *shapes: tuple[int, ...]) -> float:
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    found = jax.jit(function).lower(*arguments).compile().cost_analysis()
    return float((found[0] if isinstance(found, list) else found)["flops"])


def make(kind: str, **parameters: Any) -> Any:
    return attention_from_parameters(kind, parameters, where="test")


def decode_flop(kind: Any) -> float:
    """Ours: one layer, BATCH tokens at CONTEXT."""
    products = sum(p.params for p in kind.projections(D)) + (kind.expansion().params if kind.expansion() else 0)
    cores = sum(
        core.num_q_heads
        * (
            core.decode_flop_per_pair * float(np.asarray(core.kv_read_tokens(float(CONTEXT))))
            + core.state_flop_per_token
        )
        for core in kind.cores()
    )
    return BATCH * (2.0 * products + cores)


def projection_shapes(kind: Any) -> list[tuple[int, int]]:
    found = [*kind.projections(D), *([kind.expansion()] if kind.expansion() else [])]
    return [(sum(d.size for d in p.d_in), sum(d.size for d in p.d_out)) for p in found]


def with_projections(kind: Any, core: Callable[..., Any], *core_shapes: tuple[int, ...], rows: int = BATCH) -> float:
    """XLA's count of the projections, each on `rows` tokens, and the core."""
    shapes = projection_shapes(kind)
    inputs = [(rows, d_in) for d_in, _ in shapes]

    def layer(*arguments: Any) -> Any:
        n = len(shapes)
        xs, ws, rest = arguments[:n], arguments[n : 2 * n], arguments[2 * n :]
        return [x @ w for x, w in zip(xs, ws, strict=True)], core(*rest)

    return xla_flop(layer, *inputs, *shapes, *core_shapes)


def softmax_core(q: Any, keys: Any, values: Any) -> Any:
    """q: batch, groups, heads of a group, width; keys and values: batch, groups, tokens, width."""
    scores = jnp.einsum("bghc,bgtc->bght", q, keys)
    return jnp.einsum("bght,bgtc->bghc", jax.nn.softmax(scores, axis=-1), values)


def index_core(q: Any, keys: Any, w: Any) -> Any:
    """q: batch, heads, width; keys: batch, tokens, width; w: batch, heads."""
    return jnp.einsum("bht,bh->bt", jax.nn.relu(jnp.einsum("bhc,btc->bht", q, keys)), w)


def test_decode_of_windows_values_of_another_width_and_shared_caches() -> None:
    kind = make("gqa", num_q_heads=16, num_kv_heads=4, head_dim=192, v_head_dim=128, window=256, shares_kv=True)
    counted = with_projections(kind, softmax_core, (BATCH, 4, 4, 192), (BATCH, 4, 256, 192), (BATCH, 4, 256, 128))
    assert decode_flop(kind) == pytest.approx(counted, rel=TOLERANCE)


MLA = {
    "num_q_heads": 16,
    "q_lora_rank": 192,
    "kv_lora_rank": 256,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
}


def test_decode_of_gated_latent_attention() -> None:
    kind = make("mla", **MLA, output_gate=True)
    # absorbed: keys are latent and rope, values the latent
    counted = with_projections(
        kind, softmax_core, (BATCH, 1, 16, 288), (BATCH, 1, CONTEXT, 288), (BATCH, 1, CONTEXT, 256)
    )
    assert decode_flop(kind) == pytest.approx(counted, rel=TOLERANCE)


def test_decode_of_sparse_latent_attention_with_its_indexer() -> None:
    kind = make("mla_sparse", **MLA, top_k=128, index_heads=16, index_head_dim=128)

    def core(q: Any, keys: Any, values: Any, iq: Any, ik: Any, w: Any) -> Any:
        return softmax_core(q, keys, values), index_core(iq, ik, w)

    picked = [(BATCH, 1, 16, 288), (BATCH, 1, 128, 288), (BATCH, 1, 128, 256)]
    scored = [(BATCH, 16, 128), (BATCH, CONTEXT, 128), (BATCH, 16)]
    assert decode_flop(kind) == pytest.approx(with_projections(kind, core, *picked, *scored), rel=TOLERANCE)


@pytest.mark.parametrize("ratio", [0, 4, 32])
def test_decode_of_compressed_attention(ratio: int) -> None:
    indexer = {"top_k": 128, "index_heads": 16, "index_head_dim": 128} if ratio == 4 else {}
    shape = {"num_q_heads": 16, "head_dim": 256, "q_lora_rank": 192, "o_groups": 4, "o_lora_rank": 128, "window": 64}
    kind = make("compressed", **shape, ratio=ratio, **indexer)
    entries = 64 + (128 if ratio == 4 else CONTEXT // ratio if ratio else 0)

    def core(q: Any, vectors: Any, *index: Any) -> Any:
        return softmax_core(q, vectors, vectors), index_core(*index) if index else None

    scored = [(BATCH, 16, 128), (BATCH, CONTEXT // 4, 128), (BATCH, 16)] if ratio == 4 else []
    counted = with_projections(kind, core, (BATCH, 1, 16, 256), (BATCH, 1, entries, 256), *scored)
    assert decode_flop(kind) == pytest.approx(counted, rel=TOLERANCE)


def test_decode_of_block_sparse_attention() -> None:
    shape = {"num_q_heads": 16, "num_kv_heads": 4, "head_dim": 128}
    kind = make("gqa_block_sparse", **shape, block_size=32, top_blocks=8, index_heads=4, index_head_dim=128)

    def core(q: Any, keys: Any, values: Any, iq: Any, ik: Any) -> Any:
        scores = jnp.einsum("bhc,btc->bht", iq, ik).reshape(BATCH, 4, CONTEXT // 32, 32)
        return softmax_core(q, keys, values), scores.max(axis=-1)

    cache = (BATCH, 4, 256, 128)
    counted = with_projections(kind, core, (BATCH, 4, 4, 128), cache, cache, (BATCH, 4, 128), (BATCH, CONTEXT, 128))
    assert decode_flop(kind) == pytest.approx(counted, rel=TOLERANCE)


def test_decode_of_mamba2() -> None:
    kind = make("mamba2", num_heads=16, head_dim=64, state_size=128, num_groups=2, conv_kernel=4)

    def core(state: Any, decay: Any, x: Any, b: Any, c: Any) -> Any:
        """state: batch, groups, heads of a group, width, state width."""
        new = decay[..., None, None] * state + x[..., None] * b[:, :, None, None, :]
        return new, jnp.einsum("bghpn,bgn->bghp", new, c)

    heads = (BATCH, 2, 8)
    counted = with_projections(kind, core, (*heads, 64, 128), heads, (*heads, 64), (BATCH, 2, 128), (BATCH, 2, 128))
    assert decode_flop(kind) == pytest.approx(counted, rel=TOLERANCE)


def test_decode_of_lightning_attention() -> None:
    kind = make("lightning", num_heads=16, head_dim=64)

    def core(state: Any, decay: Any, q: Any, k: Any, v: Any) -> Any:
        new = decay[..., None, None] * state + k[..., None] * v[..., None, :]
        return new, jnp.einsum("bhkv,bhk->bhv", new, q)

    heads = (BATCH, 16)
    counted = with_projections(kind, core, (*heads, 64, 64), heads, *[(*heads, 64)] * 3)
    assert decode_flop(kind) == pytest.approx(counted, rel=TOLERANCE)


def delta_core(state: Any, decay: Any, step: Any, q: Any, k: Any, v: Any) -> Any:
    """Delta rule with a decay a channel (KDA) or a head (gated delta): predict, correct, read."""
    faded = decay[..., None] * state
    wrong = (v - jnp.einsum("bhkv,bhk->bhv", faded, k)) * step[..., None]
    new = faded + k[..., None] * wrong[..., None, :]
    return new, jnp.einsum("bhkv,bhk->bhv", new, q)


@pytest.mark.parametrize("full_rank_gate", [True, False])
def test_decode_of_kimi_delta_attention(full_rank_gate: bool) -> None:
    kind = make("kda", num_heads=16, head_dim=64, conv_kernel=4, full_rank_gate=full_rank_gate)
    heads = (BATCH, 16)
    counted = with_projections(kind, delta_core, (*heads, 64, 64), (*heads, 64), heads, *[(*heads, 64)] * 3)
    assert decode_flop(kind) == pytest.approx(counted, rel=TOLERANCE)


def test_decode_of_gated_delta_attention() -> None:
    shape = {"num_key_heads": 8, "num_value_heads": 16, "key_head_dim": 64, "value_head_dim": 64, "conv_kernel": 4}
    kind = make("gated_delta", **shape)
    heads = (BATCH, 16)
    counted = with_projections(kind, delta_core, (*heads, 64, 64), (*heads, 1), heads, *[(*heads, 64)] * 3)
    assert decode_flop(kind) == pytest.approx(counted, rel=TOLERANCE)


# --------------------------------------------------------------------------------------------------- prompts


def prompt_flop(kind: Any, pairs_of: Callable[[Any], float]) -> float:
    """Ours: one layer, one prompt; pairs as the JAX build computes them."""
    products = sum(p.params for p in kind.projections(D)) + (kind.expansion().params if kind.expansion() else 0)
    cores = sum(
        core.num_q_heads * (core.prefill_flop_per_pair * pairs_of(core) + core.chunk_flop_per_token * PROMPT)
        for core in kind.cores()
    )
    return 2.0 * products * PROMPT + cores


def chunks_flop(kind: Any) -> float:
    """Ours: the same without projections, which would hide a quarter of it in their tolerance."""
    return sum(core.num_q_heads * core.chunk_flop_per_token * PROMPT for core in kind.cores())


def test_prompt_of_mamba2_in_chunks() -> None:
    chunk = 128
    kind = make("mamba2", num_heads=16, head_dim=64, state_size=128, num_groups=2, conv_kernel=4, chunk_size=chunk)
    chunks = PROMPT // chunk

    def core(x: Any, b: Any, c: Any, decay: Any, states: Any) -> Any:
        """x: chunks, groups, tokens, heads, width; b and c: chunks, groups, tokens, state width."""
        scores = jnp.einsum("zgin,zgjn->zgij", c, b)
        inside = jnp.einsum("zgij,zgjhp->zgihp", scores, x)
        gathered = jnp.einsum("zgjn,zgjhp->zghpn", b, x)
        carried = decay * states + gathered
        return inside + jnp.einsum("zgin,zghpn->zgihp", c, carried)

    token, state = (chunks, 2, chunk), (chunks, 2, 8, 64, 128)
    shapes = ((*token, 8, 64), (*token, 128), (*token, 128), (chunks, 2, 8, 1, 1), state)
    counted = with_projections(kind, core, *shapes, rows=PROMPT)
    assert prompt_flop(kind, lambda core: 0.0) == pytest.approx(counted, rel=TOLERANCE)
    assert chunks_flop(kind) == pytest.approx(xla_flop(core, *shapes), rel=TOLERANCE)


def test_prompt_of_lightning_attention_in_chunks() -> None:
    chunk = 128
    kind = make("lightning", num_heads=16, head_dim=64, chunk_size=chunk)
    chunks = PROMPT // chunk

    def core(q: Any, k: Any, v: Any, states: Any) -> Any:
        inside = jnp.einsum("zhij,zhjc->zhic", jnp.einsum("zhic,zhjc->zhij", q, k), v)
        gathered = jnp.einsum("zhjk,zhjv->zhkv", k, v)
        return inside + jnp.einsum("zhik,zhkv->zhiv", q, states), gathered

    token = (chunks, 16, chunk, 64)
    shapes = (token, token, token, (chunks, 16, 64, 64))
    counted = with_projections(kind, core, *shapes, rows=PROMPT)
    assert prompt_flop(kind, lambda core: 0.0) == pytest.approx(counted, rel=TOLERANCE)
    assert chunks_flop(kind) == pytest.approx(xla_flop(core, *shapes), rel=TOLERANCE)


def test_prompt_of_gated_delta_attention_in_chunks() -> None:
    chunk = 64
    shape = {"num_key_heads": 8, "num_value_heads": 16, "key_head_dim": 64, "value_head_dim": 128, "conv_kernel": 4}
    kind = make("gated_delta", **shape)
    chunks = PROMPT // chunk

    def core(q: Any, k: Any, v: Any, states: Any) -> Any:
        """What keys of a chunk overlap in, what queries read of it, and the state: prediction, read-out, update."""
        overlap = jnp.einsum("zhic,zhjc->zhij", k, k)
        inside = jnp.einsum("zhij,zhjc->zhic", jnp.einsum("zhic,zhjc->zhij", q, k), v)
        predicted = jnp.einsum("zhik,zhkv->zhiv", k, states)
        return (
            overlap,
            inside + jnp.einsum("zhik,zhkv->zhiv", q, states),
            jnp.einsum("zhjk,zhjv->zhkv", k, v - predicted),
        )

    keys = (chunks, 16, chunk, 64)
    counted = xla_flop(core, keys, keys, (chunks, 16, chunk, 128), (chunks, 16, 64, 128))
    assert chunks_flop(kind) == pytest.approx(counted, rel=TOLERANCE)


def test_prompt_of_compressed_attention() -> None:
    """Full squares: every query against the whole prompt and all of its compressed entries."""
    shape = {"num_q_heads": 16, "head_dim": 256, "q_lora_rank": 192, "o_groups": 4, "o_lora_rank": 128}
    kind = make("compressed", **shape, window=PROMPT, ratio=8)
    entries = PROMPT + PROMPT // 8

    def core(q: Any, vectors: Any) -> Any:
        scores = jnp.einsum("thc,sc->hts", q, vectors)
        return jnp.einsum("hts,sc->thc", jax.nn.softmax(scores, axis=-1), vectors)

    counted = with_projections(kind, core, (PROMPT, 16, 256), (entries, 256), rows=PROMPT)
    assert prompt_flop(kind, lambda core: float(PROMPT * entries)) == pytest.approx(counted, rel=TOLERANCE)


def test_prompt_of_sparse_latent_attention_with_its_indexer() -> None:
    """Absorbed over picked tokens, as many for every query; the indexer scores the full square."""
    kind = make("mla_sparse", **MLA, top_k=64, index_heads=16, index_head_dim=128)

    def core(q: Any, keys: Any, values: Any, iq: Any, ik: Any, w: Any) -> Any:
        scores = jnp.einsum("thc,tsc->ths", q, keys)
        mixed = jnp.einsum("ths,tsc->thc", jax.nn.softmax(scores, axis=-1), values)
        index = jnp.einsum("hts,th->ts", jax.nn.relu(jnp.einsum("thc,sc->hts", iq, ik)), w)
        return mixed, index

    picked = [(PROMPT, 16, 288), (PROMPT, 64, 288), (PROMPT, 64, 256)]
    scored = [(PROMPT, 16, 128), (PROMPT, 128), (PROMPT, 16)]

    def pairs(core: Any) -> float:
        return float(PROMPT * (PROMPT if core.kind == "index" else 64))

    counted = with_projections(kind, core, *picked, *scored, rows=PROMPT)
    assert prompt_flop(kind, pairs) == pytest.approx(counted, rel=TOLERANCE)


# ---------------------------------------------------------------------------------------------- feed-forward


@pytest.mark.parametrize("activation", ["swiglu", "geglu", "gelu", "relu", "relu2"])
def test_dense_blocks(activation: str) -> None:
    block = DenseFfn(activation=activation, d_ff=1024)
    functions = {"swiglu": jax.nn.silu, "geglu": jax.nn.gelu, "gelu": jax.nn.gelu, "relu": jax.nn.relu}
    act = functions.get(activation, lambda x: jnp.square(jax.nn.relu(x)))

    def gated(x: Any, gate: Any, up: Any, down: Any) -> Any:
        return (act(x @ gate) * (x @ up)) @ down

    def plain(x: Any, up: Any, down: Any) -> Any:
        return act(x @ up) @ down

    wide, back = (D, 1024), (1024, D)
    if activation.endswith("glu"):
        counted = xla_flop(gated, (PROMPT, D), wide, wide, back)
    else:
        counted = xla_flop(plain, (PROMPT, D), wide, back)
    assert 2.0 * block.params(D) * PROMPT == pytest.approx(counted, rel=TOLERANCE)


def test_latent_mixture_with_a_shared_expert() -> None:
    """Each expert gets tokens · k / E rows by a fixed rule, so that none is dropped."""
    mixture = MoeFfn(activation="relu2", num_experts=8, experts_per_token=2, d_expert=512, d_shared=1024, d_latent=128)
    rows = PROMPT * 2 // 8

    def layer(x: Any, router: Any, down: Any, wide: Any, back: Any, up: Any, shared_up: Any, shared_down: Any) -> Any:
        weight = jax.nn.sigmoid(x @ router)[:, :2].reshape(8, rows, 1)
        latent = jnp.tile(x @ down, (2, 1)).reshape(8, rows, 128)
        inner = jnp.square(jax.nn.relu(jnp.einsum("erd,edf->erf", latent, wide)))
        routed = (jnp.einsum("erf,efd->erd", inner, back) * weight).reshape(2, PROMPT, 128).sum(axis=0)
        return routed @ up + jnp.square(jax.nn.relu(x @ shared_up)) @ shared_down

    shapes = ((D, 8), (D, 128), (8, 128, 512), (8, 512, 128), (128, D), (D, 1024), (1024, D))
    used = 2 * mixture.expert_params(D) + mixture.router_params(D) + mixture.latent_params(D) + mixture.shared_params(D)
    assert 2.0 * used * PROMPT == pytest.approx(xla_flop(layer, (PROMPT, D), *shapes), rel=TOLERANCE)


def test_parallel_block_does_the_work_of_both_halves() -> None:
    """PaLM: attention and feed-forward read one normalised input; the products are those of a serial block."""
    attention = make("gqa", num_q_heads=8, num_kv_heads=1, head_dim=64)
    block = DenseFfn(activation="swiglu", d_ff=2048)

    def core(q: Any, keys: Any, values: Any, x: Any, gate: Any, up: Any, down: Any) -> Any:
        return softmax_core(q, keys, values), (jax.nn.silu(x @ gate) * (x @ up)) @ down

    cache = (BATCH, 1, CONTEXT, 64)
    dense = ((BATCH, D), (D, 2048), (D, 2048), (2048, D))
    counted = with_projections(attention, core, (BATCH, 1, 8, 64), cache, cache, *dense)
    assert decode_flop(attention) + 2.0 * block.params(D) * BATCH == pytest.approx(counted, rel=TOLERANCE)

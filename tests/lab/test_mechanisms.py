"""What must be exact in the mechanisms of the lab: equality, inverses, counts, byte matrices, flat memory."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from rackline.lab.experiment import start_jax

pytest.importorskip("jax", reason="JAX has no wheel on this platform")
start_jax()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from rackline.lab import cipher, decode, experts, moe, pipeline, reversible, sparse, transformer  # noqa: E402
from rackline.lab.experiment import Reading  # noqa: E402
from rackline.lab.transformer import largest_difference  # noqa: E402
from rackline.passes.routing import distinct_ranks  # noqa: E402
from rackline.training.schedules import SCHEDULE_OF  # noqa: E402


def failing(rows: list[Reading]) -> list[str]:
    """Readings that can be judged anywhere and do not hold."""
    return [row.quantity for row in rows if row.holds is False and not row.statistical]


# --- cipher ---


@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=8),
    st.booleans(),
    st.integers(0, 99),
)
def test_a_feistel_cipher_inverts_any_round_function(word: int, keys: list[int], xor: bool, seed: int) -> None:
    table = np.random.default_rng(seed).integers(0, 1 << 16, 1 << 16, dtype=np.uint64)

    def anything(half: Any, key: int) -> Any:
        return table[(half + np.uint64(key)) & np.uint64(0xFFFF)]

    words = np.array([word], dtype=np.uint64)
    assert (cipher.decrypt(cipher.encrypt(words, keys, anything, xor=xor), keys, anything, xor=xor) == words).all()


def test_one_round_leaves_a_half_as_it_is() -> None:
    words = np.arange(1000, dtype=np.uint64) * np.uint64(0x1234567)
    mixed = cipher.encrypt(words & np.uint64(2**32 - 1), [7])
    assert ((mixed >> np.uint64(16)) == (words & np.uint64(0xFFFF))).all()


def test_differential_tables() -> None:
    assert cipher.differential_uniformity(np.array(cipher.PRESENT_SBOX)) == 4
    assert cipher.differential_uniformity(np.arange(16)) == 16  # linear: the difference never depends on the input
    inverse = [0] * 256  # x -> x^-1 in the field of 256 elements, the core of the S-box of AES: 4 by Nyberg 1993
    for x in range(1, 256):
        inverse[x] = next(y for y in range(1, 256) if _field_product(x, y) == 1)
    assert cipher.differential_uniformity(np.array(inverse)) == 4


def _field_product(a: int, b: int) -> int:
    found = 0
    while b:
        found ^= a if b & 1 else 0
        a = (a << 1) ^ (0x11B if a & 0x80 else 0)
        b >>= 1
    return found


def test_mean_field_theory_of_a_stack() -> None:
    quiet, chaotic = cipher.correlations(0.9, 0.9, 200), cipher.correlations(3.0, 0.999, 200)
    assert 0.85 < quiet[-1] <= 0.9  # below gain 1 a stack is nearly linear: inputs stay as alike as they were
    assert abs(chaotic[-1]) < 1e-3  # above, they forget how alike they were
    for gain in np.linspace(0.5, 1.5, 21).tolist():  # rounding takes no two inputs beyond equal
        assert cipher.correlations(gain, 1.0, 50).max() <= 1.0


# --- moe ---


@pytest.mark.parametrize("capacity", [96, 12])
def test_moe_equals_the_dense_sum_where_there_is_room(capacity: int) -> None:
    sizes, tokens = moe.Sizes(), 96
    weights = moe.init(jax.random.key(0), sizes)
    x = jax.random.normal(jax.random.key(1), (tokens, sizes.d_model))
    bias = jnp.zeros(sizes.num_experts)
    out, load, dropped = moe.layer(weights, x, bias, sizes, capacity)
    assert int(load.sum()) == tokens * sizes.experts_per_token
    assert int(dropped) == int(jnp.maximum(load - capacity, 0).sum())
    difference = float(jnp.linalg.norm(out - moe.dense_sum(weights, x, bias, sizes)))
    assert (difference < 1e-4) == (int(dropped) == 0)


def test_moe_gradients_reach_the_router() -> None:
    sizes = moe.Sizes()
    weights = moe.init(jax.random.key(0), sizes)
    x, bias = jax.random.normal(jax.random.key(1), (64, sizes.d_model)), jnp.zeros(sizes.num_experts)

    def loss(w: Any, gathered: bool) -> Any:
        found = moe.layer(w, x, bias, sizes, 64)[0] if gathered else moe.dense_sum(w, x, bias, sizes)
        return jnp.sum(jnp.sin(found))

    ours, theirs = (jax.grad(partial(loss, gathered=gathered))(weights) for gathered in (True, False))
    assert largest_difference(ours, theirs) < 1e-4
    assert float(jnp.abs(theirs["router"]).max()) > 0


def test_a_bias_chooses_but_does_not_weigh() -> None:
    sizes = moe.Sizes()
    weights = moe.init(jax.random.key(0), sizes)
    x = jax.random.normal(jax.random.key(1), (64, sizes.d_model))
    chosen, gates = moe.route(weights, x, jnp.zeros(sizes.num_experts).at[3].set(100.0), sizes.experts_per_token)
    assert (chosen == 3).any(axis=1).all()
    scores = jnp.take_along_axis(jax.nn.sigmoid(x @ weights["router"]), chosen, axis=-1)
    assert np.allclose(gates, scores / scores.sum(axis=-1, keepdims=True), atol=1e-6)


# --- experts ---


def test_exchange_of_experts_over_two_racks() -> None:
    keys = jax.random.split(jax.random.key(3), 3)
    weights = jax.random.normal(keys[0], (experts.NUM_EXPERTS, experts.WIDTH, experts.WIDTH)) / 6.0
    tokens = experts.RANKS * 64
    x = jax.random.normal(keys[1], (tokens, experts.WIDTH))
    chosen, gates = experts.router(keys[2], tokens)
    wanted = np.asarray(experts.dense_sum(weights, x, chosen, gates))
    home, there = np.arange(tokens) // 64, np.asarray(chosen) // experts.LOCAL
    # who sends what to whom, counted from the routing itself
    matrix = np.zeros((experts.RANKS, experts.RANKS))
    for rank in range(experts.RANKS):
        np.add.at(matrix[:, rank], home, (there == rank).any(axis=1))
    other_rack = (np.asarray(chosen) // (experts.LOCAL * experts.CHIPS) != (home // experts.CHIPS)[:, None]).any(axis=1)
    for forwarded in (False, True):
        found = experts.exchange(weights, x, chosen, gates, forwarded=forwarded)
        assert np.linalg.norm(np.asarray(found.outputs) - wanted) < 1e-5 * np.linalg.norm(wanted)
        if forwarded:
            assert found.crossed == other_rack.sum()
        else:
            assert (found.sent == matrix).all()
            assert (found.returned == found.sent).all()
            assert found.crossed == matrix[:4, 4:].sum() + matrix[4:, :4].sum()


def test_a_prediction_of_distinct_chips() -> None:
    chosen, _ = experts.router(jax.random.key(0), 20_000)
    there = np.asarray(chosen) // experts.LOCAL
    distinct = np.mean([len(set(row)) for row in there.tolist()])
    assert distinct == pytest.approx(float(distinct_ranks(experts.RANKS, 64, 4)), rel=0.01)


# --- pipeline ---


@pytest.mark.parametrize("name", pipeline.NAMES)
def test_schedule_gives_the_gradients_of_one_device(name: str) -> None:
    blocks = pipeline.make_blocks(jax.random.key(0), pipeline.BLOCKS, 16)
    inputs = jax.random.normal(jax.random.key(1), (pipeline.MICRO_BATCHES, 4, 16))
    schedule = SCHEDULE_OF[name]
    found = pipeline.execute_schedule(schedule, blocks, inputs, pipeline.PP)
    wanted = pipeline.reference(blocks, inputs)
    flat = [weights for part in found.gradients for weights in part]
    assert len(flat) == len(wanted)
    for ours, theirs in zip(flat, wanted, strict=True):
        for key in theirs:
            assert np.allclose(np.asarray(ours[key]), np.asarray(theirs[key]), rtol=1e-4, atol=1e-6)
    chunks = schedule.num_chunks(pipeline.VIRTUAL_PP)
    assert max(found.peak) / (chunks // schedule.copies) == schedule.in_flight(
        pipeline.PP, pipeline.MICRO_BATCHES, chunks
    )


def test_recall_asks_for_the_values_that_were_shown() -> None:
    tokens, answers = transformer.recall_task(np.random.default_rng(1), 20, 6, 3, 16)
    for row in tokens:
        shown = dict(zip(row[:12:2], row[1:12:2], strict=True))
        assert len(shown) == 6
        assert all(key < 16 <= value < 32 for key, value in shown.items())
        assert [shown[key] for key in row[12::2]] == list(row[13::2])
    assert len({value for row in tokens for value in row[1:12:2]}) > 8  # of 16
    assert answers.sum(axis=1).tolist() == [3.0] * 20


# --- reversible ---


def test_the_last_product_is_its_share_of_a_layer() -> None:
    shape = reversible.SHAPE
    layer = transformer.init(jax.random.key(0), shape)["layers"][0]
    scores = 2 * 64 * shape.num_q_heads * shape.head_dim
    share = layer["down"].size / (sum(one.size for one in layer.values()) + scores)
    assert reversible._share_of_down(shape, 64) == pytest.approx(share)


def test_reversible_gradients_and_inverse() -> None:
    shape = replace(reversible.SHAPE, num_layers=3)
    params = transformer.init(jax.random.key(0), shape)
    tokens = jax.random.randint(jax.random.key(1), (33,), 0, shape.vocab_size)
    slopes = {
        name: jax.jit(jax.grad(partial(reversible.loss_of, shape=shape, stack=stack)))(params, tokens)
        for name, stack in reversible.STACKS.items()
    }
    assert largest_difference(slopes["reversible"], slopes["stored"]) < 1e-4
    assert largest_difference(slopes["recomputed"], slopes["stored"]) < 1e-4
    x = jax.random.normal(jax.random.key(2), (32, shape.d_model))
    assert reversible.inverse_error(params["layers"], (x, 2.0 * x), shape) < 1e-5


def test_memory_is_flat_in_depth_and_the_work_is_four_thirds() -> None:
    few, many = (
        {
            name: reversible.gradient_cost(stack, replace(reversible.SHAPE, num_layers=layers), 64)
            for name, stack in reversible.STACKS.items()
            if name != "recomputed"
        }
        for layers in (4, 8)
    )
    assert many["reversible"][0] <= few["reversible"][0] * 1.02
    assert many["stored"][0] > few["stored"][0] * 1.7
    extra = (many["reversible"][1] - few["reversible"][1]) / (many["stored"][1] - few["stored"][1])
    assert extra == pytest.approx(4.0 / 3.0, rel=0.01)


# --- sparse ---


def test_sparse_attention_with_all_blocks_is_dense() -> None:
    q, k, v = (jax.random.normal(jax.random.key(n), (64, 2, 8)) for n in range(3))
    dense = transformer.causal_attention(q, k, v)
    assert np.allclose(sparse.sparse_attention(q, k, v, blocks=8, size=8), dense, atol=1e-5)
    few = sparse.sparse_attention(q, k, v, blocks=1, size=8)
    assert np.allclose(few[:16], dense[:16], atol=1e-5)  # two blocks: nothing is left out
    assert not np.allclose(few[16:], dense[16:], atol=1e-2)


def test_a_query_reads_the_best_blocks() -> None:
    q = jax.random.normal(jax.random.key(0), (sparse.HEAD_DIM,))
    k = jax.random.normal(jax.random.key(1), (16, 8, sparse.HEAD_DIM)).at[5].add(q)
    _, best = sparse.decode_sparse(q, k.mean(axis=1), k, k, 2)
    assert 5 in np.asarray(best)
    context = 4096
    size = sparse.block_size(context, 4)
    assert size == 32
    assert sparse.bytes_read(context, 4) == 4.0 * sparse.HEAD_DIM * (context // size + 2 * 4 * size)


def test_recall_task_asks_for_what_was_shown() -> None:
    tokens, answers = transformer.recall_task(np.random.default_rng(0), 50, 6, 4, 10)
    assert tokens.shape == (50, 20)
    assert answers.sum(axis=1).tolist() == [4.0] * 50
    for row, counted in zip(tokens, answers, strict=True):
        shown = dict(zip(row[:12:2], row[1:12:2], strict=True))
        for place in np.flatnonzero(counted):
            assert shown[row[place]] == row[place + 1]


def test_prose_is_ascii_and_parted() -> None:
    text, held_out = transformer.prose_tokens()
    assert text.max() < 128
    assert text.size > 8 * held_out.size > 0


# --- decode ---


def test_a_cache_changes_no_logits() -> None:
    assert decode.cached_difference(0) < 1e-5


def test_compiled_decode_step() -> None:
    assert failing(decode._compiled_rows()) == []

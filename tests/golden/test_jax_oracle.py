"""An independent count of FLOP: XLA's cost analysis of real forward passes.

Each test builds the prefill forward pass of a small architecture in JAX, compiles it, and asks XLA how
many FLOP the compiled program does. That number is compared with ours. The passes here compute the full
square of attention scores (no causal skipping), so the count to compare with is the full-square one:
seq_len query·key pairs per query, logits for each position.

XLA also counts element-wise work (softmax, norms, activations, rotations are left out on purpose), so the
shapes are large enough that matrix products dominate and the tolerance is 3 %.

Two traps, avoided here:
- XLA's analysis counts the body of a `scan` or `while` once, however often it runs: layers are a Python loop;
- a top-k router that drops or pads tokens changes the count: tokens are sent to experts by a fixed rule
  that gives each expert exactly tokens · k / E of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import helpers
from rackline import arch, hardware
from rackline.parallel import Deployment, Layout, precision
from rackline.passes import UNIT, Batch

jax = pytest.importorskip("jax", reason="JAX is in the dev group; it has no wheel on this platform")
jnp = jax.numpy

TOLERANCE = 0.03

# --- The three architectures, in the vocabulary of the catalogue's model record ------------------------

DENSE_GQA: dict[str, Any] = {
    "name": "oracle-dense-gqa",
    "native_precision": "bf16",
    "architecture": {
        "num_layers": 4,
        "d_model": 256,
        "vocab_size": 1000,
        "tied_embeddings": False,
        "norm": "rmsnorm",
        "attention": {"kind": "gqa", "num_q_heads": 8, "num_kv_heads": 2, "head_dim": 32},
        "ffn": {"kind": "swiglu", "d_ff": 512},
    },
}

MOE: dict[str, Any] = {
    "name": "oracle-moe",
    "native_precision": "bf16",
    "architecture": {
        "num_layers": 3,
        "d_model": 256,
        "vocab_size": 1000,
        "tied_embeddings": False,
        "norm": "rmsnorm",
        "attention": {"kind": "gqa", "num_q_heads": 8, "num_kv_heads": 4, "head_dim": 64},
        "ffn": {"kind": "swiglu", "d_ff": 768},
        "moe": {
            "num_experts": 8,
            "experts_per_token": 2,
            "d_expert": 256,
            "num_shared_experts": 1,
            "d_shared": 256,
            "first_dense_layers": 1,
            "every": 1,
        },
    },
}

MLA: dict[str, Any] = {
    "name": "oracle-mla",
    "native_precision": "bf16",
    "architecture": {
        "num_layers": 3,
        "d_model": 512,
        "vocab_size": 1000,
        "tied_embeddings": False,
        "norm": "rmsnorm",
        "attention": {
            "kind": "mla",
            "num_q_heads": 8,
            "q_lora_rank": 192,
            "kv_lora_rank": 128,
            "qk_nope_head_dim": 64,
            "qk_rope_head_dim": 32,
            "v_head_dim": 48,
        },
        "ffn": {"kind": "swiglu", "d_ff": 1024},
    },
}


def our_flop(record: dict[str, Any], batch_size: int, seq_len: int) -> float:
    """FLOP of one full-square prefill pass (all logits) as rackline's pass table counts it on one chip.

    Two rows are scaled, because a server does less work than the pass in JAX:
    - the attention core: a causal kernel computes seq_len · (seq_len + 1) / 2 pairs, the pass here all seq_len²;
    - the head: a prefill needs the logits of the last position of each prompt, the pass here of every one.
    MLA is in its expanded form in both.
    """
    chip = hardware.chip("h100-sxm")
    links = hardware.FabricLevel(name="scale_up", size=1, bytes_per_s_each_way=1e9, latency_s=0.0)
    one_chip = hardware.Cluster(name="one-chip", chip=chip, num_chips=1, levels=(links,))
    model = arch.build_model(helpers.record(record))
    deployment = Deployment(
        model=model,
        cluster=one_chip,
        layout=Layout(),
        precision=precision("bf16", model, chip),
        calibration=UNIT,
    )
    batch = Batch(prefill_sequences=float(batch_size), chunk_tokens=float(seq_len))
    causal_pairs = float(arch.windowed_pairs(float(seq_len), 0.0, None))
    total = 0.0
    for row in deployment.table().time(batch).rows:
        flop = row.amounts.get("compute", 0.0)
        if row.name.startswith("attention_prefill"):
            flop *= seq_len**2 / causal_pairs
        elif row.name == "head":
            flop *= seq_len
        total += flop
    return total


# --- The analytic count: each matrix product by its three sizes ----------------------------------------


def matrix_product_flop(record: dict[str, Any], batch_size: int, seq_len: int) -> int:
    """FLOP of the matrix products of one full-square prefill pass, counted by hand from their sizes."""
    arch = record["architecture"]
    tokens, pairs = batch_size * seq_len, batch_size * seq_len * seq_len
    d = arch["d_model"]
    att = arch["attention"]
    heads = att["num_q_heads"]
    if att["kind"] == "gqa":
        head_dim, kv_heads = att["head_dim"], att["num_kv_heads"]
        weights = d * heads * head_dim + 2 * d * kv_heads * head_dim + heads * head_dim * d
        pair_dims = heads * 2 * head_dim  # scores, then weighted values
    else:
        nope, rope, v = att["qk_nope_head_dim"], att["qk_rope_head_dim"], att["v_head_dim"]
        query = d * att["q_lora_rank"] + att["q_lora_rank"] * heads * (nope + rope)
        latent = d * (att["kv_lora_rank"] + rope)
        expand = att["kv_lora_rank"] * heads * (nope + v)
        weights = query + latent + expand + heads * v * d
        pair_dims = heads * (nope + rope + v)
    per_layer = 2 * tokens * weights + 2 * pairs * pair_dims

    moe = arch.get("moe")
    dense_layers = arch["num_layers"] if moe is None else moe["first_dense_layers"]
    total = arch["num_layers"] * per_layer + dense_layers * 2 * tokens * 3 * d * arch["ffn"]["d_ff"]
    if moe is not None:
        routed = moe["experts_per_token"] * 3 * d * moe["d_expert"]
        weights = d * moe["num_experts"] + routed + 3 * d * moe["d_shared"]
        total += (arch["num_layers"] - dense_layers) * 2 * tokens * weights
    return total + 2 * tokens * d * arch["vocab_size"]


# --- The same passes in JAX ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Weights:
    """Makes the shapes of the weights; XLA's analysis needs shapes only, so no numbers are drawn."""

    shapes: dict[str, Any]

    def add(self, name: str, *shape: int) -> None:
        self.shapes[name] = jax.ShapeDtypeStruct(shape, jnp.float32)


def weight_shapes(arch: dict[str, Any]) -> dict[str, Any]:
    w = Weights({})
    d, att = arch["d_model"], arch["attention"]
    heads = att["num_q_heads"]
    w.add("embedding", arch["vocab_size"], d)
    w.add("unembedding", d, arch["vocab_size"])
    for layer in range(arch["num_layers"]):
        if att["kind"] == "gqa":
            w.add(f"{layer}.q", d, heads, att["head_dim"])
            w.add(f"{layer}.k", d, att["num_kv_heads"], att["head_dim"])
            w.add(f"{layer}.v", d, att["num_kv_heads"], att["head_dim"])
            w.add(f"{layer}.o", heads, att["head_dim"], d)
        else:
            nope, rope, v = att["qk_nope_head_dim"], att["qk_rope_head_dim"], att["v_head_dim"]
            w.add(f"{layer}.q_down", d, att["q_lora_rank"])
            w.add(f"{layer}.q_up", att["q_lora_rank"], heads, nope + rope)
            w.add(f"{layer}.kv_down", d, att["kv_lora_rank"] + rope)
            w.add(f"{layer}.k_up", att["kv_lora_rank"], heads, nope)
            w.add(f"{layer}.v_up", att["kv_lora_rank"], heads, v)
            w.add(f"{layer}.o", heads, v, d)
        moe = arch.get("moe")
        if moe is None or layer < moe["first_dense_layers"]:
            w.add(f"{layer}.gate", d, arch["ffn"]["d_ff"])
            w.add(f"{layer}.up", d, arch["ffn"]["d_ff"])
            w.add(f"{layer}.down", arch["ffn"]["d_ff"], d)
        else:
            w.add(f"{layer}.router", d, moe["num_experts"])
            w.add(f"{layer}.expert_gate", moe["num_experts"], d, moe["d_expert"])
            w.add(f"{layer}.expert_up", moe["num_experts"], d, moe["d_expert"])
            w.add(f"{layer}.expert_down", moe["num_experts"], moe["d_expert"], d)
            w.add(f"{layer}.shared_gate", d, moe["d_shared"])
            w.add(f"{layer}.shared_up", d, moe["d_shared"])
            w.add(f"{layer}.shared_down", moe["d_shared"], d)
    return w.shapes


def rms_norm(x: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def swiglu(x: Any, gate: Any, up: Any, down: Any) -> Any:
    return (jax.nn.silu(x @ gate) * (x @ up)) @ down


def gqa_attention(x: Any, w: dict[str, Any], layer: int, att: dict[str, Any]) -> Any:
    """Full-square grouped-query attention: the queries of a group share one key and value head."""
    batch_size, seq_len, _ = x.shape
    kv_heads, head_dim = att["num_kv_heads"], att["head_dim"]
    group = att["num_q_heads"] // kv_heads
    q = jnp.einsum("btd,dhc->bthc", x, w[f"{layer}.q"]).reshape(batch_size, seq_len, kv_heads, group, head_dim)
    k = jnp.einsum("btd,dhc->bthc", x, w[f"{layer}.k"])
    v = jnp.einsum("btd,dhc->bthc", x, w[f"{layer}.v"])
    scores = jnp.einsum("bqhgc,bkhc->bhgqk", q, k)
    mixed = jnp.einsum("bhgqk,bkhc->bqhgc", jax.nn.softmax(scores, axis=-1), v)
    mixed = mixed.reshape(batch_size, seq_len, kv_heads * group, head_dim)
    return jnp.einsum("bthc,hcd->btd", mixed, w[f"{layer}.o"])


def mla_attention(x: Any, w: dict[str, Any], layer: int, att: dict[str, Any]) -> Any:
    """Multi-head latent attention in its expanded (prefill) form; the rope key is shared by all heads."""
    nope, rank = att["qk_nope_head_dim"], att["kv_lora_rank"]
    q = jnp.einsum("btr,rhc->bthc", rms_norm(x @ w[f"{layer}.q_down"]), w[f"{layer}.q_up"])
    compressed = x @ w[f"{layer}.kv_down"]
    latent, k_rope = rms_norm(compressed[..., :rank]), compressed[..., rank:]
    k_nope = jnp.einsum("btr,rhc->bthc", latent, w[f"{layer}.k_up"])
    v = jnp.einsum("btr,rhc->bthc", latent, w[f"{layer}.v_up"])
    k_rope = jnp.broadcast_to(k_rope[:, :, None, :], (*k_nope.shape[:3], k_rope.shape[-1]))
    k = jnp.concatenate([k_nope, k_rope], axis=-1)
    scores = jnp.einsum("bqhc,bkhc->bhqk", q, k)
    assert k.shape[-1] == nope + att["qk_rope_head_dim"]
    mixed = jnp.einsum("bhqk,bkhc->bqhc", jax.nn.softmax(scores, axis=-1), v)
    return jnp.einsum("bthc,hcd->btd", mixed, w[f"{layer}.o"])


def moe_ffn(x: Any, w: dict[str, Any], layer: int, moe: dict[str, Any]) -> Any:
    """Routed experts plus the shared one; token i goes to experts (i·k + j) mod E, so no expert overflows.

    The rule fills each expert with exactly tokens · k / E rows in token order: dispatch and return are
    reshapes and transposes, which cost no FLOP, and no token is dropped or padded. The router's product
    and softmax run as in a real layer, and their weights scale the experts' outputs.
    """
    batch_size, seq_len, d = x.shape
    experts, k = moe["num_experts"], moe["experts_per_token"]
    tokens = batch_size * seq_len
    groups = tokens * k // experts  # rows of each expert
    assert groups * experts == tokens * k, "tokens · k must be a multiple of the number of experts"
    flat = x.reshape(tokens, d)
    weight = jax.nn.softmax(flat @ w[f"{layer}.router"], axis=-1)
    # slot s = i·k + j of token i, choice j belongs to expert s mod E: [rows, experts] in slot order
    slots = jnp.repeat(flat, k, axis=0).reshape(groups, experts, d)
    gate = jnp.einsum("ged,edf->gef", slots, w[f"{layer}.expert_gate"])
    up = jnp.einsum("ged,edf->gef", slots, w[f"{layer}.expert_up"])
    out = jnp.einsum("gef,efd->ged", jax.nn.silu(gate) * up, w[f"{layer}.expert_down"])
    out = out.reshape(tokens, k, d)
    chosen = (jnp.arange(tokens)[:, None] * k + jnp.arange(k)[None, :]) % experts
    routed = jnp.sum(out * jnp.take_along_axis(weight, chosen, axis=1)[..., None], axis=1)
    shared = swiglu(flat, w[f"{layer}.shared_gate"], w[f"{layer}.shared_up"], w[f"{layer}.shared_down"])
    return (routed + shared).reshape(batch_size, seq_len, d)


def forward(arch: dict[str, Any]) -> Callable[[dict[str, Any], Any], Any]:
    """The forward pass of an architecture as a function of (weights, token ids), layers unrolled."""
    att, moe = arch["attention"], arch.get("moe")
    attention = gqa_attention if att["kind"] == "gqa" else mla_attention

    def run(w: dict[str, Any], ids: Any) -> Any:
        x = w["embedding"][ids]
        for layer in range(arch["num_layers"]):
            x = x + attention(rms_norm(x), w, layer, att)
            if moe is None or layer < moe["first_dense_layers"]:
                x = x + swiglu(rms_norm(x), w[f"{layer}.gate"], w[f"{layer}.up"], w[f"{layer}.down"])
            else:
                x = x + moe_ffn(rms_norm(x), w, layer, moe)
        return rms_norm(x) @ w["unembedding"]

    return run


def xla_flop(record: dict[str, Any], batch_size: int, seq_len: int) -> float:
    """FLOP of one compiled full-square prefill pass, counted by XLA's cost analysis."""
    arch = record["architecture"]
    ids = jax.ShapeDtypeStruct((batch_size, seq_len), jnp.int32)
    compiled = jax.jit(forward(arch)).lower(weight_shapes(arch), ids).compile()
    analysis = compiled.cost_analysis()
    if isinstance(analysis, list):  # JAX before 0.5 gives one dictionary a device
        analysis = analysis[0]
    return float(analysis["flops"])


CASES = [
    pytest.param(DENSE_GQA, 2, 256, id="dense-gqa-short"),
    pytest.param(DENSE_GQA, 1, 1024, id="dense-gqa-attention-heavy"),
    pytest.param(MOE, 4, 128, id="moe-short"),
    pytest.param(MOE, 1, 512, id="moe-long"),
    pytest.param(MLA, 4, 128, id="mla-short"),
    pytest.param(MLA, 1, 512, id="mla-long"),
]


@pytest.mark.parametrize(("record", "batch_size", "seq_len"), CASES)
def test_hand_count_agrees_with_xla(record: dict[str, Any], batch_size: int, seq_len: int) -> None:
    counted = xla_flop(record, batch_size, seq_len)
    by_hand = matrix_product_flop(record, batch_size, seq_len)
    assert by_hand <= counted, "XLA counts matrix products and element-wise work, so it cannot be below"
    assert counted == pytest.approx(by_hand, rel=TOLERANCE)


@pytest.mark.parametrize(("record", "batch_size", "seq_len"), CASES)
def test_our_count_agrees_with_xla(record: dict[str, Any], batch_size: int, seq_len: int) -> None:
    ours = our_flop(record, batch_size, seq_len)
    assert ours == pytest.approx(xla_flop(record, batch_size, seq_len), rel=TOLERANCE)


def test_padding_experts_would_be_noticed() -> None:
    """Running every token through every expert is E / k times the routed work: outside the tolerance."""
    all_experts = {**MOE, "architecture": {**MOE["architecture"]}}
    all_experts["architecture"]["moe"] = {**MOE["architecture"]["moe"], "experts_per_token": 8}
    dense = matrix_product_flop(all_experts, 1, 512)
    assert dense > (1 + 3 * TOLERANCE) * xla_flop(MOE, 1, 512)

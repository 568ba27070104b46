"""XLA's count of the FLOP of small towers, built in JAX from the same configuration, against ours."""

from __future__ import annotations

from typing import Any

import pytest

from rackline.arch.hf_towers import tower_of

jax = pytest.importorskip("jax", reason="JAX is in the dev group; it has no wheel on this platform")
jnp = jax.numpy

SIGLIP = {
    "model_type": "gemma3",
    "mm_tokens_per_image": 64,
    "text_config": {"hidden_size": 512},
    "vision_config": {
        "hidden_size": 256,
        "intermediate_size": 1024,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "image_size": 224,
        "patch_size": 14,
    },
}
PIXTRAL = {
    "model_type": "mistral3",
    "spatial_merge_size": 2,
    "text_config": {"hidden_size": 512},
    "vision_config": {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "image_size": 448,
        "patch_size": 14,
    },
}


def layers(x: Any, weights: list[dict[str, Any]], heads: int, *, gated: bool) -> Any:
    """Attention over all patches and a block, for each layer; norms and activations as real ones."""
    n, d = x.shape
    for w in weights:
        normed = x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)
        q, k, v = (jnp.reshape(normed @ w[name], (n, heads, d // heads)) for name in ("q", "k", "v"))
        scores = jax.nn.softmax(jnp.einsum("ihd,jhd->hij", q, k), axis=-1)
        x = x + jnp.reshape(jnp.einsum("hij,jhd->ihd", scores, v), (n, d)) @ w["o"]
        normed = x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)
        inner = jax.nn.relu(normed @ w["up"])
        x = x + (inner * (normed @ w["gate"]) if gated else inner) @ w["down"]
    return x


def shapes(d: int, d_ff: int) -> dict[str, Any]:
    sizes = {**dict.fromkeys("qkvo", (d, d)), "up": (d, d_ff), "gate": (d, d_ff), "down": (d_ff, d)}
    return {name: jax.ShapeDtypeStruct(size, jnp.float32) for name, size in sizes.items()}


def xla_flop(function: Any, *arguments: Any) -> float:
    analysis = jax.jit(function).lower(*arguments).compile().cost_analysis()
    return float((analysis[0] if isinstance(analysis, list) else analysis)["flops"])


def test_a_siglip_tower_with_pooled_tokens() -> None:
    tower = tower_of(SIGLIP, "vision")
    view = tower.image(224, 224)

    def forward(patches: Any, stem: Any, weights: Any, projector: Any) -> Any:
        x = layers(patches @ stem, weights, 4, gated=False)
        pooled = jnp.mean(jnp.reshape(x, (64, 4, 256)), axis=1)
        return pooled @ projector

    counted = xla_flop(
        forward,
        jax.ShapeDtypeStruct((view.patches, 3 * 14 * 14), jnp.float32),
        jax.ShapeDtypeStruct((3 * 14 * 14, 256), jnp.float32),
        [shapes(256, 1024)] * 3,
        jax.ShapeDtypeStruct((256, 512), jnp.float32),
    )
    assert tower.flop(view) == pytest.approx(counted, rel=0.03)


def test_a_pixtral_tower_with_merged_patches() -> None:
    tower = tower_of(PIXTRAL, "vision")
    view = tower.image(448, 280)
    tokens = view.patches // 4

    def forward(patches: Any, stem: Any, weights: Any, merge: Any, first: Any, second: Any) -> Any:
        x = layers(patches @ stem, weights, 4, gated=True)
        return jax.nn.relu(jnp.reshape(x, (tokens, 1024)) @ merge @ first) @ second

    counted = xla_flop(
        forward,
        jax.ShapeDtypeStruct((view.patches, 3 * 14 * 14), jnp.float32),
        jax.ShapeDtypeStruct((3 * 14 * 14, 256), jnp.float32),
        [shapes(256, 512)] * 3,
        jax.ShapeDtypeStruct((1024, 256), jnp.float32),
        jax.ShapeDtypeStruct((256, 512), jnp.float32),
        jax.ShapeDtypeStruct((512, 512), jnp.float32),
    )
    assert tower.flop(view) == pytest.approx(counted, rel=0.03)

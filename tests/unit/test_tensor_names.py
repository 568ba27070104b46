"""Weights of checkpoints by their tensors' names, types and shapes: parts, packing, scales."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hub_server import header
from rackline.arch import find_model, found_model
from rackline.arch.checkpoint import kind_of, stored_label, weights_of
from rackline.hub import Tensor

AT = "model.layers.0.mlp.down_proj."
D_OUT, D_IN = 256, 512


def tensors(**found: tuple[str, tuple[int, ...]]) -> list[Tensor]:
    return [Tensor(f"{AT}{name}", dtype, shape) for name, (dtype, shape) in found.items()]


FORMATS = {
    "bf16": tensors(weight=("BF16", (D_OUT, D_IN))),
    "fp8": tensors(weight=("F8_E4M3", (D_OUT, D_IN)), weight_scale=("F32", (1,)), input_scale=("F32", (1,))),
    "fp8_block": tensors(weight=("F8_E4M3", (D_OUT, D_IN)), weight_scale_inv=("F32", (2, 4))),
    "nvfp4": tensors(
        weight=("U8", (D_OUT, D_IN // 2)),
        weight_scale=("F8_E4M3", (D_OUT, D_IN // 16)),
        weight_scale_2=("F32", ()),
        input_scale=("F32", ()),
    ),
    "mxfp4": tensors(weight=("U8", (D_OUT, D_IN // 2)), weight_scale=("U8", (D_OUT, D_IN // 32))),
    "int4": tensors(
        weight_packed=("I32", (D_OUT, D_IN // 8)),
        weight_scale=("BF16", (D_OUT, D_IN // 128)),
        weight_shape=("I64", (2,)),
    ),
    "int8": tensors(weight=("I8", (D_OUT, D_IN)), weight_scale=("BF16", (D_OUT, 1))),
}
OTHERS = {
    "awq": (
        "int4",
        tensors(qweight=("I32", (D_IN, D_OUT // 8)), qzeros=("I32", (4, D_OUT // 8)), scales=("F16", (4, D_OUT))),
    ),
    "gptq": (
        "int4",
        tensors(
            qweight=("I32", (D_IN // 8, D_OUT)),
            qzeros=("I32", (4, D_OUT // 8)),
            scales=("F16", (4, D_OUT)),
            g_idx=("I32", (D_IN,)),
        ),
    ),
    "gptq-8bit": (
        "int8",
        tensors(qweight=("I32", (D_IN // 4, D_OUT)), qzeros=("I32", (4, D_OUT // 4)), scales=("F16", (4, D_OUT))),
    ),
    "bitsandbytes": (
        "int4",
        [
            Tensor(f"{AT}weight", "U8", (D_OUT * D_IN // 2, 1)),
            Tensor(f"{AT}weight.absmax", "U8", (2048,)),
            Tensor(f"{AT}weight.quant_map", "F32", (16,)),
            Tensor(f"{AT}weight.quant_state.bitsandbytes__nf4", "U8", (80,)),
        ],
    ),
    "gpt-oss": (
        "mxfp4",
        [
            Tensor("model.layers.0.mlp.experts.down_proj_blocks", "U8", (2, D_OUT, D_IN // 64, 16)),
            Tensor("model.layers.0.mlp.experts.down_proj_scales", "U8", (2, D_OUT, D_IN // 32)),
        ],
    ),
}


@pytest.mark.parametrize(("dtype", "found"), [*FORMATS.items(), *OTHERS.values()], ids=[*FORMATS, *OTHERS])
def test_packed_weights_are_unpacked_and_scales_left_out(dtype: str, found: list[Tensor]) -> None:
    (weight,) = weights_of(found)
    assert (weight.dtype, weight.elements) == (dtype, D_OUT * D_IN)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.embed_tokens.weight", "embedding"),
        ("transformer.wpe.weight", "embedding"),
        ("lm_head.weight", "head"),
        ("model.layers.3.self_attn.q_proj.weight", "attention"),
        ("model.layers.3.self_attn.q_norm.weight", "attention"),
        ("model.layers.3.input_layernorm.weight", "norm"),
        ("model.layers.3.post_attention_layernorm.weight", "norm"),
        ("model.norm.weight", "norm"),
        ("model.layers.3.mlp.gate_proj.weight", "ffn"),
        ("model.layers.3.mlp.gate.weight", "router"),
        ("model.layers.3.mlp.gate.e_score_correction_bias", "router"),
        ("model.layers.3.block_sparse_moe.gate.weight", "router"),
        ("model.layers.3.mlp.experts.17.up_proj.weight", "experts"),
        ("model.layers.3.mlp.experts.gate_up_proj", "experts"),
        ("model.layers.3.mlp.shared_experts.up_proj.weight", "shared_experts"),
        ("model.layers.3.linear_attn.in_proj_qkvz.weight", "attention"),
        ("backbone.layers.3.mixer.in_proj.weight", "attention"),
        ("transformer.h.3.mlp.c_fc.weight", "ffn"),
        ("transformer.h.3.ln_1.weight", "norm"),
        ("model.layers.61.eh_proj.weight", "mtp"),
        ("mtp.layers.0.self_attn.q_proj.weight", "mtp"),
        ("visual.blocks.3.attn.qkv.weight", "tower"),
        ("model.vision_tower.encoder.layers.3.mlp.fc1.weight", "tower"),
        ("model.language_model.layers.3.mlp.up_proj.weight", "ffn"),
        ("audio_tower.layers.3.fc1.weight", "tower"),
    ],
)
def test_parts_by_name(name: str, kind: str) -> None:
    assert kind_of(name, 61) == kind


def test_layers_behind_the_stack_are_for_multi_token_prediction() -> None:
    assert kind_of("model.layers.61.mlp.experts.3.up_proj.weight", 61) == "mtp"
    assert kind_of("model.layers.60.mlp.experts.3.up_proj.weight", 61) == "experts"


def test_labels_of_mixed_checkpoints() -> None:
    attention = Tensor("model.layers.0.self_attn.q_proj.weight", "BF16", (512, 512))
    scale = Tensor("model.layers.0.mlp.experts.0.up_proj.weight_scale", "F8_E4M3", (512, 32))
    experts = Tensor("model.layers.0.mlp.experts.0.up_proj.weight", "U8", (512, 256))
    assert stored_label(weights_of([attention, experts, scale])) == "bf16,experts=fp4,expert_activations=fp4"
    assert stored_label(weights_of([attention])) == "bf16"
    assert stored_label(weights_of([Tensor("model.norm.weight", "BF16", (512,))])) is None


def test_layers_for_multi_token_prediction_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    config = {
        "model_type": "qwen3_next", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 512, "num_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64,
        "full_attention_interval": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4,
        "decoder_sparse_step": 1, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    plain = {"model.layers.0.linear_attn.out_proj.weight": ("BF16", [256, 128])}
    assert found_model(find_model(str(tmp_path))).mtp_layers == 1  # of which no key says
    (tmp_path / "model.safetensors").write_bytes(header(plain))
    assert found_model(find_model(str(tmp_path))).mtp_layers == 0
    held = {**plain, "mtp.layers.0.self_attn.q_proj.weight": ("BF16", [512, 256])}
    (tmp_path / "model.safetensors").write_bytes(header(held))
    assert found_model(find_model(str(tmp_path))).mtp_layers == 1

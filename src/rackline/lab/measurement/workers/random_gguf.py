"""A Llama with random weights as GGUF, the file that llama.cpp reads."""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false, reportUnknownParameterType=false

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np


def _add_vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    """A word for each id, so that a server has a text to send."""
    special = ["<unk>", "<s>", "</s>"]
    single = [f"<0x{byte:02X}>" for byte in range(256)]
    words = [f"\u2581w{number}" for number in range(size - len(special) - len(single))]
    kinds = gguf.TokenType
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*special, *single, *words])
    writer.add_token_scores([0.0] * size)
    writer.add_token_types(
        [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL] + [kinds.BYTE] * 256 + [kinds.NORMAL] * len(words)
    )
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)


def write_model(path: Path, shape: dict[str, int], dtype: str, context_len: int, seed: int) -> None:
    """A Llama with random weights as GGUF."""
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(context_len)
    writer.add_embedding_length(shape["d_model"])
    writer.add_block_count(shape["num_layers"])
    writer.add_feed_forward_length(shape["d_ff"])
    writer.add_head_count(shape["num_q_heads"])
    writer.add_head_count_kv(shape["num_kv_heads"])
    writer.add_key_length(shape["head_dim"])
    writer.add_value_length(shape["head_dim"])
    writer.add_rope_dimension_count(shape["head_dim"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(shape["vocab_size"])
    _add_vocabulary(writer, shape["vocab_size"])

    def add(name: str, outputs: int, inputs: int) -> None:
        weights = random.standard_normal((outputs, inputs), dtype=np.float32) / np.float32(np.sqrt(inputs))
        if dtype == "fp32":
            writer.add_tensor(name, weights)
        else:
            halves = (weights.view(np.uint32) >> 16).astype(np.uint16)
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(name, halves.view(np.uint8), raw_shape=(outputs, 2 * inputs), raw_dtype=kind)

    d_model, q, kv = shape["d_model"], shape["num_q_heads"], shape["num_kv_heads"]
    q, kv = q * shape["head_dim"], kv * shape["head_dim"]
    add("token_embd.weight", shape["vocab_size"], d_model)
    for number in range(shape["num_layers"]):
        block = f"blk.{number}"
        sizes = {
            "attn_q": (q, d_model), "attn_k": (kv, d_model), "attn_v": (kv, d_model), "attn_output": (d_model, q),
            "ffn_gate": (shape["d_ff"], d_model), "ffn_up": (shape["d_ff"], d_model),
            "ffn_down": (d_model, shape["d_ff"]),
        }  # fmt: skip
        for name, (outputs, inputs) in sizes.items():
            add(f"{block}.{name}.weight", outputs, inputs)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{block}.{name}.weight", np.ones(d_model, dtype=np.float32))
    writer.add_tensor("output_norm.weight", np.ones(d_model, dtype=np.float32))
    add("output.weight", shape["vocab_size"], d_model)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

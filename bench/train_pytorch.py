"""Steps of training with PyTorch on one GPU: time, peak memory, where the kernels' time goes; as published tables are.

    python bench/train_pytorch.py OUTPUT.csv     # needs torch, transformers and peft, not rackline; 6 minutes

Models of transformers with random weights and random tokens; what a value is does not change what it costs. All weights
are trained under FSDP2 on one chip (fp32 weights and moments, products in bf16, fused AdamW), or adapters of rank 16 on
all dense products beside frozen bf16 weights. Attention is scaled_dot_product_attention; nothing is compiled unless the
row says so. A row is written as soon as it is there; one that does not fit says so in its note.

The columns are those of published fine-tuning steps, so `rackline validate OUTPUT.csv` scores them. Behind them: bytes
of weights, gradients and optimiser, bytes at the end of the forward pass, and shares of the kernels' time.
"""

from __future__ import annotations

import csv
import gc
import os
import re
import statistics
import sys
import time

import torch

SIZES = {
    "qwen3-0.6b": ("qwen3", 1024, 3072, 28, 16, 8, 128, 151936, True),
    "qwen3-1.7b": ("qwen3", 2048, 6144, 28, 16, 8, 128, 151936, True),
    "qwen3-4b": ("qwen3", 2560, 9728, 36, 32, 8, 128, 151936, True),
    "qwen3-8b": ("qwen3", 4096, 12288, 36, 32, 8, 128, 151936, False),
    "llama-3.2-1b": ("llama", 2048, 8192, 16, 32, 8, 64, 128256, True),
    "llama-3.2-3b": ("llama", 3072, 8192, 28, 24, 8, 128, 128256, True),
    "llama-3.1-8b": ("llama", 4096, 14336, 32, 32, 8, 128, 128256, False),
    "qwen3-30b-a3b": ("qwen3_moe", 2048, 6144, 48, 32, 4, 128, 151936, False),
}
"""Family, hidden size, width of the dense block, layers, query and key heads, head size, vocabulary, tied embeddings:
the models' config.json."""

# model, task, sequences, tokens of each, activations, compiled
RUNS = [
    ("qwen3-0.6b", "Full finetune", 4, 2048, "", False),
    ("llama-3.1-8b", "LoRA", 1, 4096, "", False),
    ("llama-3.1-8b", "LoRA", 4, 4096, "Recompute", False),
    ("qwen3-1.7b", "Full finetune", 2, 4096, "", False),
    ("qwen3-1.7b", "Full finetune", 4, 4096, "Recompute", False),
    ("llama-3.2-1b", "Full finetune", 2, 4096, "", False),
    ("llama-3.2-1b", "Full finetune", 4, 4096, "Recompute", False),
    ("llama-3.2-3b", "Full finetune", 2, 4096, "Recompute", False),
    ("qwen3-4b", "Full finetune", 1, 2048, "Recompute", False),
    ("qwen3-8b", "LoRA", 2, 4096, "Recompute", False),
    ("qwen3-30b-a3b", "LoRA", 1, 4096, "Recompute", False),
    ("qwen3-0.6b", "Full finetune", 1, 2048, "", False),
    ("qwen3-0.6b", "Full finetune", 8, 2048, "Recompute", False),
    ("qwen3-1.7b", "Full finetune", 1, 32768, "Recompute", False),
    ("llama-3.1-8b", "LoRA", 1, 2048, "", False),
    ("llama-3.1-8b", "LoRA", 1, 16384, "Recompute", False),
    ("llama-3.2-1b", "Full finetune", 1, 8192, "", False),
    ("qwen3-8b", "LoRA", 1, 8192, "Recompute", False),
    ("llama-3.2-3b", "LoRA", 2, 4096, "", False),
    ("qwen3-1.7b", "LoRA", 4, 4096, "", False),
    ("qwen3-4b", "LoRA", 2, 8192, "Recompute", False),
    ("llama-3.2-1b", "Full finetune", 2, 4096, "", True),
    ("qwen3-1.7b", "Full finetune", 2, 4096, "", True),
]

COLUMNS = [
    "framework",
    "model",
    "task",
    "lora_rank",
    "chip",
    "num_chips",
    "precision",
    "global_batch",
    "micro_batch",
    "micro_batches",
    "seq_len",
    "tp",
    "pp",
    "cp",
    "vp",
    "ep",
    "act_ckpt",
    "attention",
    "step_s",
    "tok_per_s_total",
    "tok_per_s_per_gpu",
    "tflop_per_s_per_gpu",
    "mfu_pct",
    "peak_mem_gib",
    "data",
    "note",
    "source",
    "spread",
    "parameters",
    "weight_bytes",
    "gradient_bytes",
    "optimizer_bytes",
    "forward_bytes",
    "reserved_bytes",
    "kernel_s",
    "gemm_s",
    "attention_s",
    "adam_s",
    "loss_s",
    "copy_s",
    "other_s",
]
KERNELS = {
    "attention_s": r"flash|fmha|sdpa|cudnn.*attn|attention",
    "adam_s": r"adam|multi_tensor",
    "gemm_s": r"gemm|nvjet|cutlass|xmma|matmul|cublas|grouped",
    "loss_s": r"softmax|nll|cross_entropy",
    "copy_s": r"memcpy|memset|copy_kernel|nccl|split_with_sizes|chunk_cat",
}
WARM, TIMED, RANK = 3, 6, 16


def config_of(name: str):
    """The model's configuration."""
    from transformers import LlamaConfig, Qwen3Config, Qwen3MoeConfig

    family, hidden, ffn, layers, heads, kv, head, vocab, tied = SIZES[name]
    same = {
        "hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv, "head_dim": head, "vocab_size": vocab, "tie_word_embeddings": tied,
        "max_position_embeddings": 131072, "use_cache": False,
    }  # fmt: skip
    if family == "llama":
        return LlamaConfig(**same)
    if family == "qwen3":
        return Qwen3Config(**same)
    return Qwen3MoeConfig(
        **same, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, norm_topk_prob=True
    )


def model_of(name: str, task: str):
    """The model on the GPU, and the parameters that are trained."""
    from transformers import AutoModelForCausalLM

    dtype = torch.bfloat16 if task == "LoRA" else torch.float32
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config_of(name), dtype=dtype, attn_implementation="sdpa")
    if task == "LoRA":
        from peft import LoraConfig, get_peft_model

        names = ["q_proj", "k_proj", "v_proj", "o_proj"]
        if "a3b" not in name:
            names += ["gate_proj", "up_proj", "down_proj"]
        model = get_peft_model(
            model, LoraConfig(r=RANK, lora_alpha=32, target_modules=names), autocast_adapter_dtype=False
        )
    return model


def sharded(model) -> None:
    """FSDP2 as frameworks wrap it: a group a layer, and the rest."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)


def bytes_of(tensors) -> int:
    """Memory of some tensors; those of FSDP by their local part."""
    found = 0
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        found += local.numel() * local.element_size()
    return found


def kernels(step) -> dict[str, float]:
    """Seconds of one step's kernels by kind, empty where the profiler does not work."""
    from torch.profiler import ProfilerActivity, profile

    try:
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
            step()
            torch.cuda.synchronize()
        times = dict.fromkeys((*KERNELS, "other_s"), 0.0)
        for event in seen.events():
            if event.device_type != torch.autograd.DeviceType.CUDA or getattr(event, "is_user_annotation", False):
                continue
            name = event.name.lower()
            kind = next((kind for kind, pattern in KERNELS.items() if re.search(pattern, name)), "other_s")
            times[kind] += event.time_range.elapsed_us() * 1e-6
        return {**{kind: round(one, 6) for kind, one in times.items()}, "kernel_s": round(sum(times.values()), 6)}
    except Exception as error:  # a machine may have no counters
        print("profiler:", repr(error)[:200], flush=True)
        return {}


def measured(name: str, task: str, sequences: int, tokens: int, kept: str, compiled: bool) -> dict[str, object]:
    """One row."""
    model = model_of(name, task)
    parameters = sum(one.numel() for one in model.parameters())
    model.train()
    if kept:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if task == "LoRA":
            model.enable_input_require_grads()
    if task != "LoRA":
        if compiled:
            for layer in model.model.layers:
                layer.compile()
        sharded(model)
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True)
    ids = torch.randint(0, SIZES[name][7], (sequences, tokens), device="cuda")
    forward: list[int] = []

    def step() -> None:
        loss = model(input_ids=ids, labels=ids).loss
        forward.append(torch.cuda.memory_allocated())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(WARM):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(TIMED):
        began = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    middle = statistics.median(times)
    rate = sequences * tokens / middle
    return {
        "step_s": round(middle, 5),
        "spread": round((max(times) - min(times)) / middle, 4),
        "tok_per_s_total": round(rate, 1),
        "tok_per_s_per_gpu": round(rate, 1),
        "peak_mem_gib": round(torch.cuda.max_memory_allocated() / 2**30, 3),
        "parameters": parameters,
        "weight_bytes": bytes_of(model.parameters()),
        "gradient_bytes": bytes_of(trained),
        "optimizer_bytes": bytes_of(v for s in optimizer.state.values() for v in s.values() if torch.is_tensor(v)),
        "forward_bytes": forward[-1],
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        **kernels(step),
    }


def main() -> None:
    """All rows, each as soon as it is there."""
    import transformers

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517", "RANK": "0", "WORLD_SIZE": "1"}
    torch.distributed.init_process_group("nccl", rank=0, world_size=1, device_id=torch.device("cuda:0"))
    version = torch.__version__.split("+")[0]
    chip = (
        "h200" if "H200" in torch.cuda.get_device_name() else "h100" if "H100" in torch.cuda.get_device_name() else "?"
    )
    with open(sys.argv[1], "w", newline="", encoding="utf-8") as file:
        rows = csv.DictWriter(file, COLUMNS, restval="")
        rows.writeheader()
        for name, task, sequences, tokens, kept, compiled in RUNS:
            row: dict[str, object] = {
                "framework": f"torch-fsdp {version}" if compiled else f"transformers {transformers.__version__}",
                "model": name,
                "task": task,
                "lora_rank": RANK if task == "LoRA" else "",
                "chip": chip,
                "num_chips": 1,
                "precision": "bf16",
                "global_batch": sequences,
                "micro_batch": sequences,
                "micro_batches": 1,
                "seq_len": tokens,
                "act_ckpt": kept,
                "attention": "sdpa",
                "note": ", ".join(
                    [f"PyTorch {version}", *["FSDP2"] * (task != "LoRA"), *["layers compiled"] * compiled]
                ),
                "source": "measured by rackline",
            }
            began = time.perf_counter()
            try:
                row |= measured(name, task, sequences, tokens, kept, compiled)
            except Exception as error:  # out of memory is a result
                row["note"] = f"{row['note']}; {type(error).__name__}: {str(error).splitlines()[0][:120]}"
            gc.collect()
            torch._dynamo.reset()
            torch.cuda.empty_cache()
            rows.writerow(row)
            file.flush()
            print(
                f"{time.perf_counter() - began:5.1f} s",
                *(
                    row.get(key, "")
                    for key in ("model", "task", "seq_len", "micro_batch", "act_ckpt", "step_s", "peak_mem_gib", "note")
                ),
                flush=True,
            )
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()

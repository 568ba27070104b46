"""Files for `validate`: cases, operation tables, runs of servers, stored scoreboards, results of benchmarks."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from mutate import changed, changed_cell, json_text, write

from rackline.validation.cases import published

_CASES = [json.loads(line) for line in published().read_text().splitlines()]
_CASES = [case for case in _CASES if case["kind"] != "train" or case["num_chips"] <= 64]
_RUNS: dict[str, Any] = {
    "runs": {
        "a": {
            "model": "meta-llama/Llama-3.1-8B",
            "vllm_version": "0.10.0",
            "engine_kwargs": {
                "tensor_parallel_size": 1, "data_parallel_size": 1, "max_num_seqs": 16, "max_num_batched_tokens": 2048,
                "quantization": None, "speculative_config": {"num_speculative_tokens": 2},
            },
            "kv_cache": {"block_size": 16, "gpu_memory_utilization": 0.9, "num_kv_tokens": 41408},
            "hardware": {"device_name": "NVIDIA GeForce RTX 4090"},
        }
    }
}  # fmt: skip
_REQUESTS = "run,arrival_s,input_toks,output_toks,ttft_ms,tpot_ms,e2e_ms\na,0,100,3,20,8,50\na,0.1,50,2,nan,8,50\n"
_STORED = {
    "files": ["a"], "calibration": "auto", "cases": 1, "supported": 1, "groups": [], "unsupported": [],
    "metrics": {"tpot_s": {"n": 1, "supported": 1, "median_abs_error": 0.1, "p90_abs_error": None, "bias": 0.1}},
}  # fmt: skip
_TABLES = (
    "chip,stack,stack_version,dtype,m,n,k,seconds\nh100-sxm,vllm,0.9.0,bfloat16,64,4096,4096,0.00002\n",
    "chip,stack,stack_version,op,dtype,num_chips,message_bytes,seconds\nh100-sxm,vllm,1,all_reduce,bf16,8,1048576,2e-5\n",
)
_RESULTS: dict[str, Any] = {
    "vllm": {
        "model_id": "meta-llama/Llama-3.1-8B", "max_concurrency": 8, "completed": 10, "total_input_tokens": 1000,
        "total_output_tokens": 100, "mean_ttft_ms": 20.0, "mean_tpot_ms": 8.0, "backend": "vllm", "request_rate": "inf",
    },
    "aiperf": {
        "inter_token_latency": {"unit": "ms", "avg": 8.0}, "time_to_first_token": {"unit": "ms", "avg": 20.0},
        "input_sequence_length": {"unit": "tokens", "avg": 100}, "output_sequence_length": {"avg": 10},
        "input_config": {"endpoint": {"model_names": ["llama-3.1-8b"]}, "loadgen": {"concurrency": 8}},
    },
    "inferencex": {
        "hw": "h100", "conc": 8, "isl": 1024, "osl": 100, "tp": 8, "ep": 1, "dp_attention": "false",
        "model": "llama-3.1-70b", "framework": "vllm", "precision": "fp8",
        "mean_tpot": 0.01, "mean_ttft": 0.2, "spec_decoding": "none",
    },
}  # fmt: skip


def case_file(rng: Random, folder: Path) -> list[str]:
    """A command that reads cases."""
    match rng.randrange(7):
        case 0 | 1 | 2:
            case = rng.choice(_CASES)
            lines = [json_text(changed(rng, case) if rng.random() < 0.8 else case)]
            return ["validate", write(rng, folder / "c.jsonl", "\n".join(lines), share=0.2)]
        case 3:
            write(rng, folder / "requests.csv", changed_cell(rng, _REQUESTS), share=0.3)
            return ["validate", write(rng, folder / "runs.json", json_text(changed(rng, _RUNS)), share=0.1)]
        case 4:
            file = folder / "c.jsonl"
            file.write_text(json_text(_CASES[0]))
            stored = write(rng, folder / "s.json", json_text(changed(rng, _STORED, 3)), share=0.3)
            return ["validate", str(file), "--stored", stored]
        case 5:
            return ["validate", write(rng, folder / "t.csv", changed_cell(rng, rng.choice(_TABLES)), share=0.3)]
        case _:
            form = rng.choice(list(_RESULTS))
            file = write(rng, folder / "r.json", json_text(changed(rng, _RESULTS[form])), share=0.3)
            return ["validate", file, "--import", form, "--chip", "h100", "--num-chips", "8", "--layout", "tp=8"]

"""Chunked prefill whose attention-dp ranks wait until each has a prompt, and then for more to join them."""

from dataclasses import replace

from rackline.serving.prompt_passes import Alignment
from rackline.simulation.policies import chunked

POLICY = replace(
    chunked.POLICY,
    name="adp_balance",
    alignment=Alignment(
        name="adp_balance",
        some_passes=49,
        all_passes=10,
        idle_releases=True,
        counts_always=True,
        options=(
            "attention_dp_config:",
            "  enable_balance: true",
            "  timeout_iters: {passes}",
            "  batching_wait_iters: {more}",
        ),
    ),
    source="TensorRT-LLM, attention_dp_config: enable_balance (off by default), timeout_iters 50 (the 50th pass runs "
    "them), batching_wait_iters 10; _torch/pyexecutor/scheduler, _balance_adp_context_requests; "
    "https://nvidia.github.io/TensorRT-LLM/llm-api/reference/AttentionDpConfig.html, accessed 2026-11-23",
)

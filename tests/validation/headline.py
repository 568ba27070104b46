"""Published headline figures of DeepSeek V3 servers beside our prediction of the same deployment.

`bench/refresh_docs.py --only tables/headline` writes the table into docs/accuracy/servers.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import rackline as rl
from rackline.passes import Batch
from rackline.serving import Engine

BEGIN, END = "<!-- headline figures: begin -->", "<!-- headline figures: end -->"


@dataclass(frozen=True, kw_only=True)
class Headline:
    """One published figure [tokens/s per chip] and the deployment that it was measured on."""

    what: str
    published: float
    source: str
    cluster: str
    num_chips: int
    layout: str
    precision: str
    sequences_per_chip: float = 0.0
    prompt_tokens_per_chip: float = 0.0
    context_len: float = 0.0
    two_batch_overlap: bool = False
    model: str = "deepseek-v3"
    as_many_as_fit: float = 0.0  # tokens of each sequence when the batch is not stated: all that memory holds
    cached_share: float = 0.0  # of the prompt
    row: tuple[str, str, str] = ("", "", "")  # system, metric and start of the conditions in the facts file


HEADLINES = (
    Headline(
        what="decode, H800, EP128, 128 requests per chip, 4k prompt, two-batch overlap",
        published=18598 / 8,
        source="DeepSeek profile-data, table of the LMSYS blog of 2025-05-05",
        cluster="h800-144",
        num_chips=128,
        layout="attention_dp=128,ep=128",
        precision="fp8",
        sequences_per_chip=128,
        context_len=4096,
        two_batch_overlap=True,
        row=("H800 EP128 TP1", "decode_tok_s_per_node", "prompt 4K"),
    ),
    Headline(
        what="decode, H100, EP72, 256 requests per chip, 2k prompt, two-batch overlap",
        published=22282 / 8,
        source="LMSYS blog, Deploying DeepSeek with PD disaggregation and large-scale EP, 2025-05-05",
        cluster="h100-96",
        num_chips=72,
        layout="attention_dp=72,ep=72",
        precision="fp8",
        sequences_per_chip=256,
        context_len=2048,
        two_batch_overlap=True,
        row=("8x H100 node (96 GPUs)", "decode_tok_s_per_node", "ISL 2K, EP72"),
    ),
    Headline(
        what="decode, GB200 NVL72, EP48, 1408 requests per chip, 2k prompt, fp8 attention, nvfp4 experts",
        published=13386,
        source="LMSYS blog, GB200 part II, 2025-09-25",
        cluster="gb200-nvl72",
        num_chips=48,
        layout="attention_dp=48,ep=48",
        precision="fp4,linear=fp8,kv=fp8,attention=fp8",
        sequences_per_chip=1408,
        context_len=2048,
        row=("GB200 NVL72", "decode_tok_s_per_gpu", "FP8 attn + NVFP4 MoE, 48 ranks"),
    ),
    Headline(
        what="prefill, H800, EP32, 16k tokens per chip, 4k prompts, balanced experts, two-batch overlap",
        published=62713 / 8,
        source="DeepSeek profile-data, table of the LMSYS blog of 2025-05-05",
        cluster="h800-144",
        num_chips=32,
        layout="attention_dp=32,ep=32",
        precision="fp8",
        prompt_tokens_per_chip=16384,
        context_len=4096,
        two_batch_overlap=True,
        row=("H800 EP32 TP1", "prefill_tok_s_per_node", "prompt 4K"),
    ),
    Headline(
        what="prefill, H100, EP32, 16k tokens per chip, 4k prompts",
        published=50302 / 8,
        source="LMSYS blog, Deploying DeepSeek with PD disaggregation and large-scale EP, 2025-05-05",
        cluster="h100-96",
        num_chips=32,
        layout="attention_dp=32,ep=32",
        precision="fp8",
        prompt_tokens_per_chip=16384,
        context_len=4096,
        two_batch_overlap=True,
        row=("8x H100 node (96 GPUs)", "prefill_tok_s_per_node", "ISL 4K, EP32"),
    ),
    Headline(
        what="prefill, H100, EP32, 16k tokens per chip, 4k prompts, balanced experts (simulated by its authors)",
        published=59337 / 8,
        source="LMSYS blog, Deploying DeepSeek with PD disaggregation and large-scale EP, 2025-05-05",
        cluster="h100-96",
        num_chips=32,
        layout="attention_dp=32,ep=32",
        precision="fp8",
        prompt_tokens_per_chip=16384,
        context_len=4096,
        two_batch_overlap=True,
        row=("8x H100 node (96 GPUs)", "prefill_tok_s_per_node", "ISL 4K, simulated perfect EPLB"),
    ),
    Headline(
        what="decode, production mean of a day, H800, EP144, 4,989 KV tokens, 21 tokens/s/user (88 requests per chip)",
        published=14800 / 8,
        source="DeepSeek, open-infra-index, day 6, 2025-03-01",
        cluster="h800-144",
        num_chips=144,
        layout="attention_dp=144,ep=144",
        precision="fp8",
        sequences_per_chip=88,
        context_len=4989,
        two_batch_overlap=True,
        row=("8x H800 node", "decode_output_tok_s_per_node", "24h"),
    ),
    Headline(
        what="prefill, production mean of a day, H800, EP32, 56.3 % of the prompt cached",
        published=73700 / 8,
        source="DeepSeek, open-infra-index, day 6, 2025-03-01",
        cluster="h800-144",
        num_chips=32,
        layout="attention_dp=32,ep=32",
        precision="fp8",
        prompt_tokens_per_chip=16384,
        context_len=4096,
        cached_share=0.563,
        two_batch_overlap=True,
        row=("8x H800 node", "prefill_input_tok_s_per_node", "includes cache hits"),
    ),
    Headline(
        what="prefill, H100, EP32, 16k tokens per chip, 1k prompts",
        published=57674 / 8,
        source="LMSYS blog, Deploying DeepSeek with PD disaggregation and large-scale EP, 2025-05-05",
        cluster="h100-96",
        num_chips=32,
        layout="attention_dp=32,ep=32",
        precision="fp8",
        prompt_tokens_per_chip=16384,
        context_len=1024,
        two_batch_overlap=True,
        row=("8x H100 node (96 GPUs)", "prefill_tok_s_per_node", "ISL 1K, EP32"),
    ),
    Headline(
        what="prefill, H100, EP32, 16k tokens per chip, 2k prompts",
        published=54543 / 8,
        source="LMSYS blog, Deploying DeepSeek with PD disaggregation and large-scale EP, 2025-05-05",
        cluster="h100-96",
        num_chips=32,
        layout="attention_dp=32,ep=32",
        precision="fp8",
        prompt_tokens_per_chip=16384,
        context_len=2048,
        two_batch_overlap=True,
        row=("8x H100 node (96 GPUs)", "prefill_tok_s_per_node", "ISL 2K, EP32"),
    ),
    Headline(
        what="decode, GB200 NVL72, EP48, 2k prompt, bf16 attention, fp8 experts, as many requests as fit (part I)",
        published=7583,
        source="LMSYS blog, GB200 part I, 2025-06-16",
        cluster="gb200-nvl72",
        num_chips=48,
        layout="attention_dp=48,ep=48",
        precision="fp8",
        as_many_as_fit=2048,
        row=("GB200 NVL72, 12 decode nodes (48 GPUs)", "decode_tok_s_per_gpu", "ISL 2000, BF16"),
    ),
    Headline(
        what="decode, GB200 NVL72, EP48, 2k prompt, bf16 attention, fp8 experts, as many requests as fit (part II)",
        published=9087,
        source="LMSYS blog, GB200 part II, 2025-09-25",
        cluster="gb200-nvl72",
        num_chips=48,
        layout="attention_dp=48,ep=48",
        precision="fp8",
        as_many_as_fit=2048,
        row=("GB200 NVL72", "decode_tok_s_per_gpu", "BF16 attn + FP8 MoE, 48 ranks"),
    ),
    Headline(
        what="prefill, GB200 NVL72, EP4, 16k tokens per chip, 2k prompts, bf16 attention, fp8 experts",
        published=18471,
        source="LMSYS blog, GB200 part II, 2025-09-25",
        cluster="gb200-nvl72",
        num_chips=4,
        layout="attention_dp=4,ep=4",
        precision="fp8",
        prompt_tokens_per_chip=16384,
        context_len=2048,
        row=("GB200 NVL72", "prefill_tok_s_per_gpu", "BF16 attn + FP8 MoE, 4 ranks"),
    ),
    Headline(
        what="prefill, GB200 NVL72, EP2, 16k tokens per chip, 2k prompts, fp8 attention, nvfp4 experts",
        published=26156,
        source="LMSYS blog, GB200 part II, 2025-09-25",
        cluster="gb200-nvl72",
        num_chips=2,
        layout="attention_dp=2,ep=2",
        precision="fp4,linear=fp8,kv=fp8,attention=fp8",
        prompt_tokens_per_chip=16384,
        context_len=2048,
        row=("GB200 NVL72", "prefill_tok_s_per_gpu", "FP8 attn + NVFP4 MoE, 2 ranks"),
    ),
    Headline(
        what="prefill, Kimi K2, H200, EP32, 16k tokens per chip, 2k prompts",
        published=56000 / 8,
        source="LMSYS blog, Kimi K2 on 128 H200, 2025-07-17",
        cluster="dgx-h200",
        num_chips=32,
        layout="attention_dp=32,ep=32",
        precision="fp8",
        model="kimi-k2",
        prompt_tokens_per_chip=16384,
        context_len=2048,
        two_batch_overlap=True,
        row=("8x H200 node (128 GPUs)", "prefill_tok_s_per_node", "4 prefill nodes"),
    ),
    Headline(
        what="decode, Kimi K2, H200, EP96, 480 requests per chip, 2k prompt",
        published=24000 / 8,
        source="LMSYS blog, Kimi K2 on 128 H200, 2025-07-17",
        cluster="dgx-h200",
        num_chips=96,
        layout="attention_dp=96,ep=96",
        precision="fp8",
        model="kimi-k2",
        sequences_per_chip=480,
        context_len=2048,
        two_batch_overlap=True,
        row=("8x H200 node (128 GPUs)", "decode_tok_s_per_node", "12 decode nodes, batch 480"),
    ),
    Headline(
        what="prefill, GB200 NVL72, EP2, 16k tokens per chip, 2k prompts, nvfp4 experts (vLLM)",
        published=26200,
        source="vLLM blog, DeepSeek-R1 on GB200, 2026-02-03",
        cluster="gb200-nvl72",
        num_chips=2,
        layout="attention_dp=2,ep=2",
        precision="fp4,linear=fp8,kv=fp8,attention=fp8",
        prompt_tokens_per_chip=16384,
        context_len=2048,
        row=("GB200 4x2 prefill", "prefill_tok_s_per_gpu", "2K in/2K out"),
    ),
    Headline(
        what="decode, GB200 NVL72, EP8, 2k prompt, 2k output, nvfp4 experts, as many requests as fit (vLLM)",
        published=10100,
        source="vLLM blog, DeepSeek-R1 on GB200, 2026-02-03",
        cluster="gb200-nvl72",
        num_chips=8,
        layout="attention_dp=8,ep=8",
        precision="fp4,linear=fp8,kv=fp8,attention=fp8",
        as_many_as_fit=3072,
        row=("GB200 8 decode (DEP8)", "decode_tok_s_per_gpu", "2K in/2K out"),
    ),
    Headline(
        what="prefill, GB300, EP2, 256 prompts of 2k, nvfp4 experts (vLLM)",
        published=22476,
        source="vLLM blog, DeepSeek on GB300, 2026-02-13",
        cluster="gb300-nvl72",
        num_chips=2,
        layout="attention_dp=2,ep=2",
        precision="fp4,linear=fp8,kv=fp8,attention=fp8",
        prompt_tokens_per_chip=16384,
        context_len=2048,
        row=("GB300", "prefill_TGS", "DeepSeek-R1 NVFP4 EP2"),
    ),
)


def predict(case: Headline) -> float:
    """Tokens per second and chip of the deployment, with the default calibration of its chip."""
    model = rl.model(case.model)
    cluster = rl.cluster(case.cluster).with_num_chips(case.num_chips)
    deployment = rl.Deployment(
        model=model,
        cluster=cluster,
        layout=rl.parse_layout(case.layout, model),
        precision=rl.precision(case.precision, model, cluster.chip),
        calibration=rl.calibration("auto", cluster.chip),
        routing=rl.Routing(law="balanced" if "balanced" in case.what else "uniform"),
    )
    engine = Engine(table=deployment.table(), attention_dp=float(deployment.layout.attention_dp))
    if case.prompt_tokens_per_chip:
        tokens = case.prompt_tokens_per_chip
        new = case.context_len * (1.0 - case.cached_share)
        batch = Batch(prefill_sequences=tokens / new, chunk_tokens=new, prefix_tokens=case.context_len - new)
        tokens /= 1.0 - case.cached_share  # cached tokens count as served
    else:
        context = case.context_len or case.as_many_as_fit
        tokens = case.sequences_per_chip or deployment.max_sequences(
            context_len=context, server=rl.parallel.ServerMemory(batched_tokens=1024)
        ) // (deployment.layout.attention_dp)
        batch = Batch(decode_sequences=float(tokens), context_len=context)
    times = engine.time_table(case.two_batch_overlap)
    return tokens / float(engine.seconds(batch, times, two_batch_overlap=case.two_batch_overlap))


def table() -> str:
    """The Markdown table, one row a figure."""
    lines = [
        "| deployment (DeepSeek V3 or R1 where nothing else is said) | published, tokens/s/chip | predicted "
        "| predicted / published | source |",
        "|---|---|---|---|---|",
    ]
    for case in HEADLINES:
        ours = predict(case)
        lines.append(
            f"| {case.what} | {case.published:,.0f} | {ours:,.0f} | {ours / case.published:.2f} | {case.source} |"
        )
    return "\n".join(lines)

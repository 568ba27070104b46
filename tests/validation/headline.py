"""Published headline figures of DeepSeek V3 servers beside our prediction of the same deployment.

`uv run python tests/validation/headline.py` prints the table and writes it into docs/accuracy.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import rackline as rl
from rackline.passes import Batch
from rackline.serving import Engine
from rackline.validate.stored import fill_block

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
    row: tuple[str, str, str] = ("", "", "")  # system, metric and start of the conditions in the facts file


HEADLINES = (
    Headline(
        what="decode, H800, EP128, 128 requests a chip, 4k prompt, two-batch overlap",
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
        what="decode, H100, EP72, 256 requests a chip, 2k prompt, two-batch overlap",
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
        what="decode, GB200 NVL72, EP48, 1408 requests a chip, 2k prompt, fp8 attention, nvfp4 experts",
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
        what="prefill, H800, EP32, 16k tokens a chip, 4k prompts, balanced experts, two-batch overlap",
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
        what="prefill, H100, EP32, 16k tokens a chip, 4k prompts",
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
        what="prefill, H100, EP32, 16k tokens a chip, 4k prompts, balanced experts (simulated by its authors)",
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
)


def predict(case: Headline) -> float:
    """Tokens per second and chip of the deployment, with the default calibration of its chip."""
    model = rl.model("deepseek-v3")
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
    if case.sequences_per_chip:
        tokens = case.sequences_per_chip
        batch = Batch(decode_sequences=tokens, context_len=case.context_len)
    else:
        tokens = case.prompt_tokens_per_chip
        batch = Batch(prefill_sequences=tokens / case.context_len, chunk_tokens=case.context_len)
    times = engine.time_table(case.two_batch_overlap)
    return tokens / float(engine.seconds(batch, times, two_batch_overlap=case.two_batch_overlap))


def table() -> str:
    """The Markdown table, one row a figure."""
    lines = [
        "| deployment of DeepSeek V3 | published, tokens/s/chip | predicted | predicted / published | source |",
        "|---|---|---|---|---|",
    ]
    for case in HEADLINES:
        ours = predict(case)
        lines.append(
            f"| {case.what} | {case.published:,.0f} | {ours:,.0f} | {ours / case.published:.2f} | {case.source} |"
        )
    return "\n".join(lines)


def write(page: Path) -> None:
    """Replace the table between the two marks of the page."""
    fill_block(page, BEGIN, END, table())


if __name__ == "__main__":
    write(Path(__file__).resolve().parents[2] / "docs" / "accuracy.md")
    print(table())

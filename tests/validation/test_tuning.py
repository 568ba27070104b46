"""Published fine-tuning steps: rows are read as cases, errors stay within the bars, LoRA over full fine-tuning too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rackline.validation import Scoreboard, validate
from rackline.validation.cases import Case, Unsupported
from rackline.validation.tables import TUNING, table_of

TABLE = Path(__file__).resolve().parents[3] / "shared/measured/post_training/lora/finetune_throughput.csv"
HEADER = (
    "framework,model,task,lora_rank,chip,num_chips,precision,global_batch,micro_batch,micro_batches,seq_len,tp,pp,cp,"
    "vp,ep,act_ckpt,attention,step_s,tok_per_s_total,tok_per_s_per_gpu,data,note,source\n"
)


def rows(*lines: str) -> list[Case | Unsupported]:
    text = HEADER + "\n".join(lines) + "\n"
    assert table_of((TUNING,), text, "") is TUNING
    return TUNING.read(Path("t.csv"), text, {})


def test_a_row_becomes_a_case() -> None:
    lora, fsdp = rows(
        "Megatron-Bridge NeMo 26.06,LLAMA3_70B,LoRA,see recipe,h100,8,FP8,32,1,,4096,2,4,1,20,n/a,,,,,2643,packed,,s",
        "prime-rl trainer (FSDP2),qwen3-4b,RL trainer step LoRA,16,b200,8,bf16,,1,2,16384,,,1,,1,Recompute,"
        "flash_attention_2,5.7,46000,5760,,check seq*mb*gpus/step = 46096 tok/s,s",
    )
    assert isinstance(lora, Case)
    assert (lora.model, lora.stack, lora.stack_version) == ("llama-3.1-70b", "megatron-bridge", "26.06")
    assert (lora.values["lora_rank"], lora.values["lora_targets"], lora.values["packed_len"]) == (16, "qkv", 200.0)
    assert lora.layout["virtual_pp"] == 20
    assert isinstance(fsdp, Case)
    assert (fsdp.values["global_batch"], fsdp.values["recompute"], fsdp.measured) == (16, "full", {"step_s": 5.7})


def test_recipes_say_what_is_recomputed_and_gathered_anew() -> None:
    line = "NeMo AutoModel (PyTorch),{},{},,h100,16,BF16,512,1,,4096,1,4,1,8,8,,,8.2,,1002,,,s"
    asked = (("deepseek v3 671b", "pre-training"), ("kimi k2", "pre-training"), ("llama3 8b", "LoRA"))
    found = [one for one in rows(*(line.format(*names) for names in asked)) if isinstance(one, Case)]
    read = [(one.text("recompute"), one.layout["sharding"]) for one in found]
    assert read == [("full", "shard-grad-op"), ("full", "full-shard"), ("none", "full-shard")]


def test_rows_in_doubt_are_named_not_scored() -> None:
    doubtful = rows(
        'torchtune,llama-3.1-70b,LoRA,,a100,8,bf16,16,2,,2048,,,,,,,,,3497,,,"whether tokens/s is per GPU or total",s',
        "prime-rl trainer (FSDP2),qwen3-4b,SFT full,,h200,8,bf16,,1,2,16384,,,1,,1,Recompute,,4.4,27436,3429,,"
        "check seq*mb*gpus/step = 59370 tok/s,s",
        "NeMo AutoModel (PyTorch),gpt-oss 20b,pre-training,,h100,8,BF16,256,2,,4096,1,1,1,-,-,,,10.0,,13058,,DeepEP,s",
    )
    causes = [one.cause for one in doubtful if isinstance(one, Unsupported)]
    assert len(causes) == 3
    for cause, word in zip(causes, ("one chip or of all", "disagree", "DeepEP"), strict=True):
        assert word in cause


@pytest.fixture(scope="module")
def board() -> Scoreboard:
    if not TABLE.exists():
        pytest.skip("needs ../shared/measured")
    return validate([TABLE])


@pytest.mark.slow
def test_published_steps_are_within_the_bar(board: Scoreboard) -> None:
    found = board.metrics["step_s"]
    assert found.supported >= 33
    assert found.median_abs_error <= 0.08
    assert found.p90_abs_error <= 0.35
    for stack in ("megatron-bridge", "nemo", "automodel"):
        own = [abs(score.error) for score in board.scores if score.groups["stack"] == stack]
        assert np.median(own) <= 0.08


@pytest.mark.slow
def test_adapters_over_full_fine_tuning_are_within_a_tenth(board: Scoreboard) -> None:
    """Pairs of one framework, model, chip and precision: lines of the table, full first."""
    error = {int(score.where.rpartition(" ")[2]): 1.0 + score.error for score in board.scores}
    pairs = {"70B, H100 FP8": (3, 6), "70B, GB200 MXFP8": (2, 5), "3B, A100": (17, 18), "3B, A100, QLoRA": (17, 19)}
    for full, adapters in pairs.values():
        assert error[adapters] / error[full] == pytest.approx(1.0, abs=0.1)


def test_the_shipped_band_holds_the_steps(board: Scoreboard) -> None:
    from rackline.bands.bands import band

    low, high = band("tuning_step_s")
    inside = [low <= score.measured / score.predicted <= high for score in board.scores if score.metric == "step_s"]
    assert len(inside) >= 30
    assert np.mean(inside) >= 0.88

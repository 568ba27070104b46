"""The law of expert popularity against measured loads of single experts and of ranks."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from rackline.passes import ExpertLoad
from rackline.passes.routing import expert_spread, log_normal_shares

SKEW = Path(__file__).resolve().parents[3] / "shared" / "measured" / "post_training" / "skew"
# model → experts, experts a token, median and largest error of the busiest rank over the mean. Instruction-tuned
# OLMoE is more even than its base model, of which nothing in its configuration tells.
MODELS = {
    "deepseek-v2-lite": (64, 6, 0.06, 0.22),
    "mixtral-8x7b": (8, 2, 0.02, 0.05),
    "olmoe-1b-7b": (64, 8, 0.02, 0.10),
    "olmoe-1b-7b-instruct": (64, 8, 0.05, 0.36),
    "olmoe-1b-7b-sft": (64, 8, 0.05, 0.36),
}
MANY = 65536.0  # tokens, where a source counts a whole set
pytestmark = pytest.mark.skipif(not SKEW.is_dir(), reason="needs ../shared/measured")


def max_over_mean(experts: int, picks: int, ep: int, tokens: float, copies: int | None = None) -> float:
    law = ExpertLoad.tabulate(
        num_experts=experts,
        experts_per_token=picks,
        ep=ep,
        law="log_normal",
        skew=expert_spread(experts),
        redundant_experts=copies,
        max_tokens=MANY,
    )
    return float(law.expert_tokens(tokens)) / tokens / (picks / ep)


def _rows(name: str) -> list[dict[str, str]]:
    with (SKEW / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("model", MODELS)
def test_busiest_rank_as_placed_and_rearranged(model: str) -> None:
    """Groups of 2 to 64, batches of 64 to a million tokens, with and without redundant experts."""
    experts, picks, most_median, most = MODELS[model]
    measured: dict[tuple[int, float, int | None], list[float]] = defaultdict(list)
    for row in _rows("imbalance_computed.csv"):
        if row["model"].split(" ")[0] == model:
            tokens = float(row["batch_tokens"]) if row["kind"].startswith("mean") else MANY
            copies = None if row["placement"] == "contiguous" else int(row["redundant"])
            measured[int(row["ep"]), tokens, copies].append(float(row["max_over_mean"]))
    errors = [
        abs(max_over_mean(experts, picks, ep, tokens, copies) / float(np.mean(values)) - 1.0)
        for (ep, tokens, copies), values in measured.items()
    ]
    assert len(errors) >= 10
    assert float(np.median(errors)) < most_median
    assert max(errors) < most


def test_deepseek_r1_on_32_ranks() -> None:
    """Mean over its layers as numbered, and rearranged with 32 redundant experts on 36 ranks."""
    found = {row["ep"]: row for row in _rows("published.csv") if row["layer"] == "average 3-60"}
    as_placed = max_over_mean(256, 8, 32, 32 * 1024 / 8)
    rearranged = max_over_mean(256, 8, 36, 36 * 1024 / 8, 32)
    assert as_placed == pytest.approx(float(found["32"]["max_over_mean"]), rel=0.05)
    assert rearranged == pytest.approx(float(found["36"]["max_over_mean"]), rel=0.06)


def test_loads_of_single_experts() -> None:
    """Sorted loads over the mean: the 1st, 4th, 16th and 48th of 64 experts of OLMoE."""
    counts: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in _rows("expert_counts.csv"):
        if row["model"] == "olmoe-1b-7b":
            counts[row["domain"], row["layer"]].append(float(row["count"]))
    whole = [sorted(values, reverse=True) for values in counts.values() if len(values) == 64]
    measured = np.mean([np.array(values) / np.mean(values) for values in whole], axis=0)
    law = log_normal_shares(64, expert_spread(64)) * 64
    assert law[[0, 3, 15, 47]] == pytest.approx(measured[[0, 3, 15, 47]], rel=0.15)

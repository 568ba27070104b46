"""Score published pre-training runs, and write what training in practice takes over tuned steps (`--write`)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import tomli_w
from whole_runs import (
    Paces,
    WholeRun,
    measured_practice,
    paces,
    split,
    stated_runs,
    unnamed_runs,
    whole_run_score,
    whole_runs,
)

from rackline.training.practice import FILE

HEAD = "# Written by bench/train_practice.py from bench/whole_runs.csv; change the table, not this file.\n"


PAGE = Path(__file__).resolve().parents[1] / "docs" / "accuracy" / "whole-runs.md"
INTRO = """\
# Whole training runs

What `rackline train` says of pre-training runs whose chip-hours are public, asked as a newcomer asks: model, chips, \
tokens, batch, length of sequences and precision, and the framework where it is known and a stack describes it; no \
layout, no number of its own for any model. Runs whose layout and recomputation are published (`stated_url`) are \
scored in them as well. Runs of 2022 are asked with the stack of their time (`megatron-lm-2021`, full \
recomputation). Written by `bench/train_practice.py`; the table is `bench/whole_runs.csv`.

*Tuned* are steps as makers of frameworks publish them. *As run* multiplies them by the number of the stack's family: \
the median over its runs published before 2025, drawn to the median of all where it has few. Later runs score it, also \
without naming their framework. Stacks that describe one team's run (`hai-llm`, `llama-3`) are taken as they are. \
Failures and checkpoints are predicted apart (goodput) and left out where a source states steps or a rate.

"""
LIMITS = """
What limits this: hours are billed, chips times days, or from a rate, and sources rarely say what they include; where \
the number of chips is not published the table assumes one (`chips_stated`); sequences per batch of some runs are \
general knowledge; `accessed` is empty where the source was not read again. Layouts that are searched are faster than \
the published ones, and the number of a family stands for that as well. OLMo 3 ran as fast as tuned steps in its own \
layouts (3 % from them), other runs of PyTorch in theirs 1.0 to 1.6 times as long: OLMo 2 7B, the same shape on the \
same chips under the trainer before, 1.6. What makes a team fast is not in the table. Eight of the eleven \
later runs were known when the rule was chosen; three came after it (dots.llm1, Trinity Large, SmolLM3 on B200). Left \
out: Llama 3.2 (its hours include a teacher's logits), Llama 3.1 8B and 70B (theirs include post-training), TPUs, \
upper bounds and runs on mixed chips.
"""


def score_row(label: str, how: str, runs: Sequence[WholeRun], by_family: Paces) -> str:
    """A row of the table of scores."""
    one = whole_run_score(runs, by_family)
    held = f"{one.held:.0%}" if by_family else "-"
    shares = f"{one.median:.1%} | {one.p90:.1%} | {one.bias:+.1%} | {one.within:.0%} | {held}".replace("%", " %")
    return f"| {label} | {how} | {one.num_runs} | {shares} |"


def page(runs: Sequence[WholeRun]) -> str:
    """The page of all runs and of the scores of both halves."""
    earlier, later = split(runs)
    by_family = paces(measured_practice(earlier))
    unnamed, (own_earlier, own_later) = unnamed_runs(), split(stated_runs())
    lines = ["| runs | pace | count | median | 90th percentile | bias | within 35 % | in the interval |"]
    lines.append("|---|---|---:|---:|---:|---:|---:|---:|")
    for label, some in (
        ("before 2025, which measured it", earlier),
        ("2025 and later, which score it", later),
        ("the same, framework not named", unnamed),
        ("before 2025, in the layouts that are published", own_earlier),
        ("2025 and later, likewise", own_later),
    ):
        lines += [score_row(label, "as run", some, by_family), score_row(label, "tuned", some, {})]
    lines += ["", "| family of stacks | steps over tuned ones | 90 % of runs |", "|---|---:|---:|"]
    lines += [f"| {family} | {middle} | {low} to {high} |" for family, (middle, low, high) in by_family.items()]
    lines += ["", "| run | published | hours | chip-hours | as run | error | tuned | error |"]
    lines.append("|---|---|---|---:|---:|---:|---:|---:|")
    for one in runs:
        guesses = (one.predicted_hours(by_family.get(one.family, (1.0,))[0]), one.predicted_hours(1.0))
        cells = " | ".join(f"{hours:,.0f} | {100 * (hours / one.chip_hours - 1):+.0f} %" for hours in guesses)
        lines.append(f"| [{one.name}]({one.url}) | {one.published} | {one.kind} | {one.chip_hours:,.0f} | {cells} |")
    return INTRO + "\n".join(lines) + "\n" + LIMITS


def main() -> None:
    """Print the page; with `--write` keep it and the numbers."""
    runs = whole_runs()
    text = page(runs)
    if "--write" in sys.argv[1:]:
        FILE.write_text(HEAD + tomli_w.dumps(measured_practice(split(runs)[0])), "utf-8")
        PAGE.write_text(text, "utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()

"""Score published pre-training runs, and write what training in practice takes over tuned steps (`--write`)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import tomli_w

from rackline.training.practice import FILE
from rackline.validation.whole_runs import WholeRun, measured_practice, split, whole_run_score, whole_runs

HEAD = "# Written by bench/train_practice.py from validation/whole_runs.csv; change the table, not this file.\n"


PAGE = Path(__file__).resolve().parents[1] / "docs" / "accuracy" / "whole-runs.md"
INTRO = """\
# Whole training runs

What `rackline train` says of pre-training runs whose chip-hours are public, asked as a newcomer asks: model, chips, \
tokens, batch and length of sequences; no layout, no number of its own for any model. Runs of 2022 are asked with the \
stack of their time (`megatron-lm-2021`, full recomputation). Written by `bench/train_practice.py`; the table is \
`src/rackline/validation/whole_runs.csv`.

*Tuned* are steps as makers of frameworks publish them. *As run* multiplies them by one number, the median over the \
runs published before 2025; later runs score it. Failures and checkpoints are predicted apart (goodput) and left out \
where a source states steps or a rate.

"""
LIMITS = """
What limits this: hours are billed, chips times days, or from a rate, and sources rarely say what they include; where \
the number of chips is not published the table assumes one (`chips_stated`); sequences per batch of some runs are \
general knowledge. Eight later runs are few. Left out: Llama 3.2 (its hours include a teacher's logits), TPUs, upper \
bounds and runs on mixed chips.
"""


def page(runs: Sequence[WholeRun]) -> str:
    """The page of all runs and of the scores of both halves."""
    earlier, later = split(runs)
    found = measured_practice(earlier)
    low, middle, high = (float(str(found[key])) for key in ("low", "slowdown", "high"))
    lines = ["| runs | pace | count | median | 90th percentile | bias | within 35 % | in the interval |"]
    lines.append("|---|---|---:|---:|---:|---:|---:|---:|")
    for label, some in (("before 2025, which measured it", earlier), ("2025, which score it", later)):
        for how, ratio in (("as run", middle), ("tuned", 1.0)):
            one = whole_run_score(some, ratio, low, high)
            shares = f"{one.median:.1%} | {one.p90:.1%} | {one.bias:+.1%} | {one.within:.0%} | {one.held:.0%}"
            lines.append(f"| {label} | {how} | {one.num_runs} | {shares} |".replace("%", " %"))
    lines.append(f"\nSteps of published runs took {middle} times the tuned ones; 90 % lay between {low} and {high}.\n")
    lines.append("| run | published | hours | chip-hours | as run | error | tuned | error |")
    lines.append("|---|---|---|---:|---:|---:|---:|---:|")
    for one in runs:
        guesses = (one.predicted_hours(middle), one.predicted_hours(1.0))
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

"""Score published pre-training runs, and write what training in practice takes over tuned steps (`--write`)."""

from __future__ import annotations

import sys

import tomli_w

from rackline.training.practice import FILE
from rackline.validation.whole_runs import measured_practice, split, whole_run_score, whole_runs

HEAD = (
    "# Written by bench/train_practice.py from src/rackline/validation/whole_runs.csv; change the table, not this file.\n"
)


def main() -> None:
    """Print each run and the scores of both halves."""
    runs = whole_runs()
    earlier, later = split(runs)
    found = measured_practice(earlier)
    low, middle, high = (float(str(found[key])) for key in ("low", "slowdown", "high"))
    print("| run | published | chip-hours | as run | error | tuned | error |\n|---|---|---:|---:|---:|---:|---:|")
    for one in runs:
        guesses = (one.predicted_hours(middle), one.predicted_hours(1.0))
        cells = " | ".join(f"{hours:,.0f} | {100 * (hours / one.chip_hours - 1):+.0f} %" for hours in guesses)
        print(f"| [{one.name}]({one.url}) | {one.published} | {one.chip_hours:,.0f} | {cells} |")
    for label, some in (("measured on", earlier), ("scored on", later)):
        for how, ratio in (("as run", middle), ("tuned", 1.0)):
            print(label, how, whole_run_score(some, ratio, low, high))
    print(found)
    if "--write" in sys.argv[1:]:
        FILE.write_text(HEAD + tomli_w.dumps(found), "utf-8")


if __name__ == "__main__":
    main()

"""The spreads behind likely numbers and headroom, and how often the headroom of `plan --confidence` is enough.

    uv run python bench/confidence.py CASES.jsonl... --unfitted CASES.jsonl... [--write]

The first files are those that the fits of servings use. Their cases are predicted by fits without their model (about
five minutes of processor time). Those of `--unfitted` no fit has used, and they are predicted as they are. Then the
spread of each case is made without its laboratory, and without its model. Printed is which share of the cases were
covered. `--write` stores the ratios in tests/validation/held_out_ratios.csv, the spreads in the package, and the tables
in docs/accuracy/intervals.md. `--stored` starts from the stored ratios instead.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable
from io import StringIO
from pathlib import Path
from zlib import crc32

from rackline.api.validate import held_out_scores
from rackline.bands import spread
from rackline.files import write_text
from rackline.validation import laboratories, read_cases
from rackline.validation.coverage import GROUPED, measured_scores
from rackline.validation.page import fill_block, marks
from rackline.validation.refit import refit
from rackline.validation.run import score_cases
from rackline.validation.scoreboard import Score

ROOT = Path(__file__).resolve().parents[1]
RATIOS = ROOT / "tests" / "validation" / "held_out_ratios.csv"
SPREADS = Path(spread.__file__).with_name(spread.FILE)
PAGE = ROOT / "docs" / "accuracy" / "intervals.md"
METRICS = ("tpot_s", "ttft_s", "request_s", "pools_tpot_s", "pools_ttft_s", "pools_request_s")
_NAMES = ("model", "stack", "blocks", "chip", "layout", "laboratory")


def predicted(fitted: list[str], unfitted: list[str]) -> list[Score]:
    """Return the scores of served cases whose model no fit has used."""
    scores = held_out_scores(refit(read_cases(fitted), "model"), tuple(fitted))
    if unfitted:
        scores += score_cases(read_cases(unfitted), num_worst=0).scores
    return [score for score in measured_scores(scores) if score.metric in METRICS]


def ratios_csv(scores: Iterable[Score]) -> str:
    """Return measured over predicted of each case; a case is a checksum of its name."""
    text = StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(("case", "metric", *_NAMES, "ratio"))
    for score in scores:
        groups = {**score.groups, "model": GROUPED["model"](score)}
        names = (groups[name] for name in _NAMES)
        case = f"{crc32(score.case_id.encode()):08x}"
        out.writerow((case, score.metric, *names, f"{score.measured / score.predicted:.4f}"))
    return text.getvalue()


def stored_scores() -> list[Score]:
    """Return the stored ratios as scores of a prediction of 1."""
    with RATIOS.open(encoding="utf-8") as file:
        return [
            Score(
                case_id=row["case"],
                where="",
                metric=row["metric"],
                measured=float(row["ratio"]),
                predicted=1.0,
                groups={"kind": "serve", **row},
            )
            for row in csv.DictReader(file)
        ]


def markdown(scores: list[Score]) -> str:
    """Return the tables of the page: coverage, and errors of computed and likely numbers."""
    rows = [row for left_out in ("laboratory", "model") for row in laboratories.headroom_coverage(scores, left_out)]
    tables = (*laboratories.coverage_tables(rows), laboratories.likely_table(laboratories.likely_stats(scores)))
    lines: list[str] = []
    for table in tables:
        lines += ["", f"{table.title[0].upper()}{table.title[1:]}:", *table.markdown()]
    return "\n".join(lines[1:])


def main() -> None:
    """Predict, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--unfitted", nargs="*", default=[])
    parser.add_argument("--stored", action="store_true")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if not args.stored:
        text = ratios_csv(predicted(args.files, args.unfitted))
        write_text(RATIOS, text, what="write")
    scores = stored_scores()  # with the digits that are stored, so that both ways give the same
    tables = markdown(scores)
    print(tables)
    if args.write:
        files = [Path(name).name for name in (*args.files, *args.unfitted)] or ["held_out_ratios.csv"]
        write_text(SPREADS, spread.spreads_toml(laboratories.make_spreads(scores), files), what="write")
        fill_block(PAGE, *marks("headroom"), tables)


if __name__ == "__main__":
    main()

"""How often `audit` finds planted faults, and how often it raises a false alarm on a laboratory left out.

uv run --group dev python bench/planted_faults.py ../shared/measured/serving*.jsonl
uv run --group dev python bench/planted_faults.py ../shared/measured/serving*.jsonl --write
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from planted_faults import FAULTS, planted, reported
from rackline.validation import audit, read_cases
from rackline.validation.cases import Case, laboratory_of
from rackline.validation.reported import Reported, of_case

_PUBLISHED = ("tpot_s", "ttft_s", "concurrency", "input_len", "output_len", "num_chips")
_SPREAD = Path(audit.__file__).with_name("audit_spread.toml")
_QUANTILES = (0.0, 0.002, 0.005, 0.01, 0.025, 0.05, 0.25, 0.5, 0.75, 0.95, 0.975, 0.99, 0.995, 0.998, 1.0)


def spread_of(metric: str, ratios: Sequence[float]) -> audit.Spread:
    """The spread of measured over predicted values."""
    found = np.exp(np.quantile(np.log(np.asarray(ratios)), _QUANTILES))
    return audit.Spread(metric=metric, count=len(ratios), shares=_QUANTILES, ratios=tuple(np.maximum.accumulate(found)))


def spreads_of(rows: Sequence[audit.Audited]) -> dict[str, audit.Spread]:
    """The spreads of measured rows and of their machines."""
    found: dict[str, list[float]] = defaultdict(list)
    for one in rows:
        for key, ratio in one.ratios.items():
            found[key].append(ratio)
    for group in audit.machines(rows).values():
        for key in ("tpot_s", "ttft_s"):
            own = [one.ratios[key] for one in group if key in one.ratios]
            if len(own) >= audit.FEWEST_ROWS:
                found[f"machine {key}"].append(float(np.median(own)))
    return {key: spread_of(key, own) for key, own in found.items() if len(own) > 1}


def write(found: dict[str, audit.Spread], files: Sequence[str]) -> None:
    """Ship the spread."""
    lines = [
        "# Measured over predicted of measured servings and of their machines (medians of at least four rows).",
        "# Made by bench/planted_faults.py --write from " + ", ".join(Path(one).name for one in files) + ".",
    ]
    for one in found.values():
        ratios = ", ".join(f"{value:.4g}" for value in one.ratios)
        lines += ["", "[[spread]]", f'metric = "{one.metric}"', f"count = {one.count}",
                  f"shares = {list(one.shares)}", f"ratios = [{ratios}]"]  # fmt: skip
    _SPREAD.write_text("\n".join(lines) + "\n", encoding="utf-8")


def tables_of(rows: Sequence[Reported]) -> dict[tuple[str, ...], list[Reported]]:
    """Rows with both times, by machine."""
    found: dict[tuple[str, ...], list[Reported]] = defaultdict(list)
    for row in rows:
        if {"tpot_s", "ttft_s"} <= set(row.values) and row.case is not None and row.case.kind == "serve":
            found[row.machine].append(row)
    return found


def laboratory(row: Reported) -> str:
    """Who measured a row."""
    assert isinstance(row.case, Case)
    return laboratory_of(row.case)


def main() -> int:
    """Fit, leave laboratories out, plant."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--each", type=int, default=20)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    rows = [of_case(case) for case in read_cases(given.files).cases]
    plain = audit.Auditor(spread={}).audit(rows)
    if given.write:
        write(spreads_of(plain), given.files)
    whole = audit.Auditor(spread=spreads_of(plain)).audit(rows)
    print("as published:", dict(Counter(one.verdict for one in whole)), "of", len(rows))
    for one in whole:
        if one.verdict == "impossible":
            print("impossible:", one.row.row_id, one.findings[0].key, one.findings[0].text)
    by_laboratory: dict[str, list[int]] = defaultdict(list)
    for at, row in enumerate(rows):
        by_laboratory[laboratory(row)].append(at)
    for name, own in by_laboratory.items():
        inside = set(own)
        rest = [one for at, one in enumerate(plain) if at not in inside]
        left = audit.Auditor(spread=spreads_of(rest)).audit([rows[at] for at in own])
        alarms = Counter(finding.key for one in left for finding in one.findings[:1])
        share = sum(alarms.values()) / len(own)
        print(f"left out: {name}: {share:.1%} of {len(own)} rows flagged", dict(alarms))
    rng = np.random.default_rng(42)
    auditor = audit.Auditor(spread=spreads_of(plain))
    good = [one.row for one in whole if one.verdict == "plausible"]
    full = [reported(one, rng) for one in good if {"tpot_s", "ttft_s"} <= set(one.values)]
    alarms = [one for one in auditor.audit(full) if one.verdict != "plausible"]
    print(f"complete reports without a fault: {len(alarms)} of {len(full)} flagged",
          dict(Counter(one.findings[0].key for one in alarms)))  # fmt: skip
    tables = [table for table in tables_of(good).values() if len(table) >= 4]
    found, verdicts = Counter[str](), defaultdict[str, Counter[str]](Counter)
    bare, possible = 0, 0
    for fault in FAULTS:
        usable = tables
        if fault == "limited link":
            usable = [one for one in tables if min(row.values["num_chips"] for row in one) > 1]
        for number in range(given.each):
            table = usable[int(rng.integers(len(usable)))]
            at = int(rng.integers(len(table)))
            made = planted(fault, table, at, rng)
            made = [replace(row, row_id=f"{number}-{n}") for n, row in enumerate(made)]
            first = auditor.audit(made)[0]
            found[fault] += first.verdict != "plausible"
            plain_rows = [replace(row, values={key: row.values[key] for key in _PUBLISHED}) for row in made]
            before = {key: table[at].values[key] for key in _PUBLISHED}
            if dict(plain_rows[0].values) != before or fault == "copied rows":
                possible += 1
                bare += auditor.audit(plain_rows)[0].verdict != "plausible"
            verdicts[fault][first.findings[0].key if first.findings else "-"] += 1
        print(f"{fault}: {found[fault]} of {given.each}", dict(verdicts[fault]), flush=True)
    print(f"of rows with the two times and settings only: {bare} of {possible} = {bare / possible:.1%}")
    print(f"found: {found.total()} of {given.each * len(FAULTS)} = {found.total() / given.each / len(FAULTS):.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Pages of the experiments, docs/lab/NAME.md, and the data of the Lab view, from the stored results.

`bench/refresh_docs.py --only lab` writes them: each page holds the idea (the module's own words), the figure, the
readings, and what the lecture said of the claims.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rackline.lab.experiment import Experiment
from rackline.lab.experiments import (
    EXPERIMENTS,
    MARKS,
    experiment_figure,
    measured_text,
    predicted_text,
    read_experiments,
)
from rackline.ledger.said import claims, shipped

ROOT = Path(__file__).resolve().parents[1]
PAGES, IMAGES = ROOT / "docs" / "lab", ROOT / "docs" / "images"
STORED = ROOT / "docs" / "measured" / "lab.json"
VIEW = ROOT / "src" / "rackline" / "web" / "lab.json"
SEEN = ROOT / "src" / "rackline" / "ledger" / "seen.toml"


def idea(name: str) -> tuple[str, str]:
    """Title and idea of an experiment: the docstring of its module."""
    source = (ROOT / "src" / "rackline" / "lab" / f"{name}.py").read_text(encoding="utf-8")
    title, _, text = (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")
    return title.partition(" (lecture")[0].rstrip("."), text


def page(one: Experiment) -> str:
    """The page of one experiment."""
    title, text = idea(one.name)
    lines = [
        f"# {title}",
        "",
        text,
        "",
        f"`rackline lab {one.name}` runs it (source: `src/rackline/lab/{one.name}.py`). "
        f"Verdict: **{one.verdict}**, after {one.seconds:.0f} s on {one.device}, random seed {one.seed}"
        f"{', quick form' if one.quick else ''}.",
        "",
        f"![{experiment_figure(one).description}](../images/lab-{one.name}.svg)",
        "",
        "## What came out",
        "",
        *(f"- {found[0].upper()}{found[1:]}." for found in one.findings),
        "",
        "| quantity | predicted | measured | agrees | prediction from |",
        "|---|---|---|---|---|",
    ]
    for row in one.rows:
        cells = (row.quantity, predicted_text(row), measured_text(row), MARKS[row.holds][0] or "-", row.source or "-")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    lines += ["", "## What the lecture said", ""]
    lines += [f"- **{claim.id}**: {claim.said}" for claim in claims() if claim.id in one.claims]
    return "\n".join(lines) + "\n"


def index(found: tuple[Experiment, ...]) -> str:
    """The page that lists them."""
    lines = [
        "# The lab",
        "",
        "Mechanisms of the lecture, each a few hundred lines of JAX that can be read as its reference implementation. "
        "Each run ends in a table: predicted by the library, measured here, and whether the two agree. "
        "`rackline lab all --quick` takes a few minutes on two cores, `--report lab.html` writes one page; "
        "JAX comes with the extra `lab`. "
        "`rackline lecture --measured docs/measured/lab.json` shows the verdicts beside the computed ones.",
        "",
        "| experiment | shows | claims | verdict | s |",
        "|---|---|---|---|---|",
    ]
    for one in found:
        lines.append(
            f"| [{one.name}](lab/{one.name}.md) | {EXPERIMENTS[one.name].shows} | {', '.join(one.claims)} | "
            f"{one.verdict} | {one.seconds:.0f} |"
        )
    return "\n".join(lines) + "\n"


def view(found: tuple[Experiment, ...], stored: Path) -> str:
    """What the Lab view of the page shows."""
    about = json.loads(stored.read_text(encoding="utf-8"))
    shown = {one.name: _shown(one) for one in found}
    data = {"date": about["date"], "machine": about["machine"], "experiments": shown}
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n"


def _shown(one: Experiment) -> dict[str, Any]:
    title, text = idea(one.name)
    figure = experiment_figure(one).to_dict()
    return {
        "title": title,
        "idea": " ".join(text.partition("\n\n")[0].replace("`", "").split()),
        "shows": EXPERIMENTS[one.name].shows,
        "claims": [*one.claims],
        "verdict": one.verdict,
        "findings": [*one.findings],
        "ran": f"{one.seconds:.0f} s on {one.device}, random seed {one.seed}{', quick form' if one.quick else ''}",
        "figure": {key: value for key, value in figure.items() if key not in ("config", "$schema")},
        "rows": [
            [row.quantity, predicted_text(row), measured_text(row), MARKS[row.holds][0] or "-", row.source or "-"]
            for row in one.rows
        ],
    }


def extract(found: tuple[Experiment, ...], when: Mapping[str, str]) -> str:
    """Those readings on which verdicts of the ledger rest, as the file that ships.

    Args:
        found: all experiments.
        when: day and machine of each run, by experiment.
    """
    lines = [
        "# Readings of the lab on which verdicts of the ledger rest: an extract of docs/measured/lab.json, written by",
        "# bench/refresh_docs.py. low and high: interval of the mean of several runs (95 %).",
    ]
    for one in found:
        wanted = {quantity for name, quantity in shipped() if name == one.name}
        rows = [row for row in one.rows if row.quantity in wanted]
        if rows:
            lines += ["", "[[experiment]]", f'name = "{one.name}"', f'run = "{when[one.name]}"']
        for row in rows:
            lines += ["", "[[experiment.reading]]", f'quantity = "{row.quantity}"', f"measured = {row.measured!r}"]
            if row.low is not None and row.high is not None:
                lines += [f"low = {row.low!r}", f"high = {row.high!r}"]
    return "\n".join(lines) + "\n"


def pages() -> Iterator[tuple[Path, str]]:
    """Yield all pages and figures, the data of the Lab view, and the extract for the ledger, each with its path."""
    found = read_experiments(STORED)
    yield SEEN, extract(found, json.loads(STORED.read_text(encoding="utf-8"))["runs"])
    for one in found:
        yield PAGES / f"{one.name}.md", page(one)
        yield IMAGES / f"lab-{one.name}.svg", experiment_figure(one).svg()
    yield ROOT / "docs" / "lab.md", index(found)
    yield VIEW, view(found, STORED)

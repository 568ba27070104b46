"""Published pre-training runs asked as a newcomer would ask: chip-hours predicted from model, chips, tokens, batch."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from rackline import arch
from rackline.hardware import cluster
from rackline.search.train import train_plan
from rackline.search.train_space import whole_batch
from rackline.training.runs import parse_train_layout
from rackline.training.system import TrainingSystem
from rackline.validation.resolve import architecture_record

FILE = Path(__file__).with_name("whole_runs.csv")
MODELS = Path(__file__).with_name("whole_models")
SPLIT = "2025"
"""Runs published before measure the practice, later ones score it."""
HELD = 0.9
"""Share of the runs that the interval of the practice holds."""
LAYOUT = ("layout", "stated_recompute")
"""Columns of what a source states of a layout."""
KNOWN_TO_NAMED = ("stack", "recompute", "stated_precision")
"""Columns of which one who does not know a run's framework knows nothing."""
PRIOR_RUNS = 4.0
"""How many runs the median of all counts for in the number of a family (a choice: with each earlier run left out in
turn, 0 to 8 differ by 1 point in the median error, 14.6 to 13.6 %, and by 2 in the 90th percentile) [count]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRun:
    """A published run and the tuned steps predicted for it.

    Args:
        name: of the run.
        published: month, such as "2024-07".
        kind: "billed" and "days" are chip-hours of the whole run, failures included; "step" are hours of its steps.
        chip_hours: as published, or chips × days, or of the published rate [h].
        tuned_hours: chip-hours of its tokens in tuned steps without failures [h].
        goodput: predicted share of the time that failures and checkpoints leave; 1 where hours are of steps [1].
        generation: of its chips.
        family: of the stack that it is asked with; none where that describes steps as they were run.
        is_named: whether that stack is its framework, else it is the default one.
        url: where the hours stand.
    """

    name: str
    published: str
    kind: str
    chip_hours: float
    tuned_hours: float
    goodput: float
    generation: str
    family: str
    is_named: bool
    url: str

    @property
    def slowdown(self) -> float:
        """Its steps over the tuned ones, failures taken out [1]."""
        return self.chip_hours * self.goodput / self.tuned_hours

    def predicted_hours(self, slowdown: float) -> float:
        """Chip-hours with steps that take this much longer than tuned ones [h]."""
        return self.tuned_hours * slowdown / self.goodput


def whole_runs(path: Path = FILE) -> tuple[WholeRun, ...]:
    """Every run of the table, predicted under its framework where a stack describes that, else under the default.

    With the precision that its source states, and in the fastest layout, whatever its own was.
    """
    return tuple(_predicted(row | dict.fromkeys(LAYOUT, "")) for row in table(path))


def stated_runs(path: Path = FILE) -> tuple[WholeRun, ...]:
    """The runs of which a layout is published, in it and with the recomputation that goes with it."""
    return tuple(_predicted(row) for row in table(path) if row["layout"])


def unnamed_runs(path: Path = FILE) -> tuple[WholeRun, ...]:
    """Later runs asked without a stack, as by one who knows nothing of their frameworks."""
    later = [row for row in table(path) if row["published"] >= SPLIT]
    return tuple(_predicted(row | dict.fromkeys((*KNOWN_TO_NAMED, *LAYOUT), "")) for row in later)


def table(path: Path = FILE) -> list[dict[str, str]]:
    """The rows of the table."""
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _predicted(row: dict[str, str]) -> WholeRun:
    machines, seq_len, tokens = cluster(row["on"]).with_num_chips(int(row["chips"])), int(row["seq"]), row["tokens"]
    system = TrainingSystem.of(
        _model(row),
        machines,
        stack=row["stack"],
        precision=row["stated_precision"] or row["precision"],
        global_batch_sequences=whole_batch(float(row["global_batch"]), seq_len, machines.num_chips),
        seq_len=seq_len,
    )
    again = row["stated_recompute"] or row["recompute"]
    plan = train_plan(
        system, tokens=float(tokens), fixed=parse_train_layout(row["layout"]), recompute=[again] if again else ()
    )
    steps = float(tokens) / system.global_batch_tokens
    return WholeRun(
        name=row["run"],
        published=row["published"],
        kind=row["kind"],
        chip_hours=float(row["chip_hours"]),
        tuned_hours=steps * plan.best[0].step_s * machines.num_chips / 3600.0,
        goodput=1.0 if row["kind"] == "step" else plan.reliability.goodput,
        generation=machines.chip.generation.split("-")[0],
        family=system.stack.evidence.family,
        is_named=bool(row["stack"]),
        url=row["url"],
    )


def _model(row: dict[str, str]) -> arch.AnyModel:
    """A model by name, by file, or by layers/width/heads/KV heads/width of a block/vocabulary/activation[/tied]."""
    if row["model"].endswith(".toml"):
        return arch.model(str(MODELS / row["model"]), offline=True)
    if "/" not in row["model"]:
        return arch.model(row["model"], offline=True)
    *counts, ffn = row["model"].removesuffix("/tied").split("/")
    keys = ("num_layers", "d_model", "num_q_heads", "num_kv_heads", "d_ff", "vocab_size")
    given = dict(zip(keys, map(int, counts), strict=True))
    tied = row["model"].endswith("/tied")
    made = {**given, "attention": "gqa", "ffn": ffn, "tied_embeddings": tied}
    return arch.build_model(architecture_record(made, row["run"], FILE.name))


def split(runs: Iterable[WholeRun]) -> tuple[list[WholeRun], list[WholeRun]]:
    """Runs that measure the practice, and later ones that score it."""
    runs = list(runs)
    return [one for one in runs if one.published < SPLIT], [one for one in runs if one.published >= SPLIT]


def measured_practice(runs: Sequence[WholeRun]) -> dict[str, Any]:
    """The numbers of `rackline.training.practice` over these runs.

    The number of a family is the median of its runs in ln, drawn to the median of all runs as by `PRIOR_RUNS` more runs
    there: exp((n · ln m + p · ln M) / (n + p)). The interval is that of all runs around the number of their family.

    Args:
        runs: that measure; those under a stack without a family describe themselves and are left out.
    """
    runs = [one for one in runs if one.family]
    everywhere = float(np.median(np.log([one.slowdown for one in runs])))
    numbers: dict[str, tuple[float, int]] = {}
    for family in sorted({one.family for one in runs}):
        own = np.log([one.slowdown for one in runs if one.family == family and one.is_named])
        drawn = (np.median(own) * own.size if own.size else 0.0) + PRIOR_RUNS * everywhere
        numbers[family] = float(np.exp(drawn / (own.size + PRIOR_RUNS))), own.size
    around = [one.slowdown / (numbers[one.family][0] if one.is_named else np.exp(everywhere)) for one in runs]
    low, high = np.quantile(around, [(1.0 - HELD) / 2.0, (1.0 + HELD) / 2.0], method="weibull")  # of the next run, too
    months = sorted(one.published for one in runs)
    return {
        "num_runs": len(runs),
        "since": months[0],
        "until": months[-1],
        "generations": sorted({one.generation for one in runs}),
        "families": [
            {
                "family": family,
                "slowdown": round(middle, 3),
                "low": round(middle * float(low), 3),
                "high": round(middle * float(high), 3),
                "of_family": count,
            }
            for family, (middle, count) in numbers.items()
        ],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRunScore:
    """Errors of predicted chip-hours.

    Args:
        num_runs: [count].
        median, p90, bias: of |predicted / published - 1|, and its signed median [1].
        within: share within 35 % [1].
        held: share inside the interval, of those that have one [1].
    """

    num_runs: int
    median: float
    p90: float
    bias: float
    within: float
    held: float


Paces: TypeAlias = Mapping[str, tuple[float, float, float]]
"""Family → (slowdown, low, high)."""


def paces(practice: Mapping[str, Any]) -> Paces:
    """The numbers of `measured_practice` by family."""
    return {one["family"]: (one["slowdown"], one["low"], one["high"]) for one in practice["families"]}


def whole_run_score(runs: Sequence[WholeRun], by_family: Paces) -> WholeRunScore:
    """Errors of runs at the pace of their families; tuned where a run has none."""
    errors = np.array(
        [one.predicted_hours(by_family.get(one.family, (1.0,))[0]) / one.chip_hours - 1.0 for one in runs]
    )
    banded = [(by_family[one.family], one.slowdown) for one in runs if one.family in by_family]
    size = np.abs(errors)
    return WholeRunScore(
        num_runs=len(runs),
        median=float(np.median(size)),
        p90=float(np.quantile(size, 0.9)),
        bias=float(np.median(errors)),
        within=float(np.mean(size <= 0.35)),
        held=float(np.mean([low <= ratio <= high for (_, low, high), ratio in banded])) if banded else float("nan"),
    )

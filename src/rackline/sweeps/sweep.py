"""`sweep`: a design space as one file, run in chunks that survive interruptions, and what is printed of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

from rich.console import Group, RenderableType
from rich.text import Text

from rackline.api.answer import Answer, Watch, asks
from rackline.api.question import MaybeWhole, Number, Question, option, question, whole
from rackline.api.verbs import Entry
from rackline.display.column import facts
from rackline.display.wording import written
from rackline.errors import InputError
from rackline.files import check_outputs, write_text
from rackline.late import late, load_optional
from rackline.sweeps.shown import value_text
from rackline.units import format_bytes, format_seconds, format_usd, several

with late:
    from rackline.sweeps import optimum, read, run, workers as sweeps_workers


_MOST_WORKERS = 100_000
_CORE_PRICE = "0.05"  # USD per core and hour, an assumption that `core_price` replaces


@question
class SweepQuestion(Question):
    """What do many combinations of a question's options give?"""

    ask: ClassVar[str] = "sweep"

    file: str | Mapping[str, Any] | None = option(
        "object",
        "the sweep: a TOML file, see `new`; in Python also the same as tables",
        default=None,
        kw_only=False,
    )
    new: str | None = option(
        "text",
        "write a commented example to FILE.toml, which runs as it is, and stop",
        default=None,
        output=True,
    )
    out: str | None = option(
        "text",
        "folder of the results, or an address of fsspec such as s3://bucket/folder; by default the file's name "
        "without .toml",
        default=None,
        short="o",
        output=True,
    )
    dry_run: bool = option(
        "switch", "report points, tables, bytes, time and dollars; run only a small part", default=False
    )
    workers: MaybeWhole = whole(
        "processes, or tasks of Ray at a time; by default one for each core",
        default=None,
        maximum=_MOST_WORKERS,
    )
    ray: str | None = option(
        "text",
        "run on Ray: the address of a cluster, or local for one on this machine; needs the extra ray",
        default=None,
    )
    search: bool = option(
        "switch",
        "look for the best point of the first objective in place of all points; writes nothing",
        default=False,
    )
    evaluations: MaybeWhole = whole(
        "points that `search` looks at, at most; 100,000 by default, 200 where each is a question",
        default=None,
    )
    core_price: Number = option(
        "usd_per_hour",
        "price of a core for `dry_run` in USD per hour",
        default=_CORE_PRICE,
        unit="USD/h",
        zero=True,
    )

    def __post_init__(self) -> None:
        """Keep tables as the text of their JSON, so that a question stays data."""
        if isinstance(self.file, Mapping):
            object.__setattr__(self, "file", json.dumps(self.file))
        # a slotted dataclass is made anew, which super() without arguments does not see
        Question.__post_init__(self)


def _text(answer: Answer[SweepQuestion, Any], width: int) -> Iterable[Any]:
    yield sweep_report(answer.result)


def _summary(answer: Answer[SweepQuestion, Any]) -> str:
    return sweep_line(answer.result)


def _rows(answer: Answer[SweepQuestion, Any]) -> Any:
    found = answer.result
    if isinstance(found, run.Ran):
        return read.Results.of(found.out).scan()
    return [found]


def _status(answer: Answer[SweepQuestion, Any]) -> int:
    return 130 if isinstance(answer.result, run.Ran) and answer.result.interrupted else 0


@asks(
    SweepQuestion,
    text=_text,
    summary=_summary,
    rows=_rows,
    status=_status,
    entry=Entry(
        group="Explore",
        place=0,
        line="A design space as one file: billions of points, resumable.",
        elsewhere="writes a folder of results",
        examples="""
    rackline sweep --new space.toml
    rackline sweep space.toml --dry-run
    rackline sweep space.toml --out results
    rackline sweep space.toml --search
    rackline sweep space.toml --out s3://bucket/results --ray auto
""",
    ),
)
def sweep(question: SweepQuestion, watch: Watch) -> run.Forecast | run.Ran | Example | optimum.Optimum:
    """Ask a question over a design space: ranges in place of values, results as Parquet shards.

    Passes are compiled to grids, millions of points per second; other questions are asked once per combination. Shards
    that are there are not run again: after an interruption, or with values added to the file, the same command goes on.

    Example:
        >>> import rackline as rl
        >>> space = {"options": {"model": "llama-3.1-8b", "on": "l40s-8", "layout": "tp=1",
        ...                      "batch": [1, 8, 64], "context": ["2k", "8k"]}}
        >>> found = rl.sweep(space, out="my-sweep")
        >>> found.result.new_rows
        6
        >>> found.to_frame().collect().height
        6
    """
    if question.new is not None:
        return _example(question.new)
    if question.file is None:
        raise InputError(what="file", given="nothing", allowed="a TOML file, or `new` FILE for an example")
    load_optional("polars", what="rackline sweep")  # before anything is written
    if question.ray is not None:
        sweeps_workers.library()
    given = sweep_data(cast("str", question.file))
    if question.search:
        return optimum.optimum(given, question.evaluations, watch)
    if question.evaluations is not None:
        raise InputError(what="evaluations", given=question.evaluations, allowed="together with `search`")
    workers = question.workers
    with watch.moving("reading the sweep"):
        prepared = run.prepare(given)
    if question.dry_run:
        with watch.moving("running a small part"):
            at = question.out or (None if isinstance(given, Mapping) else _folder(given))
            return run.forecast(prepared, at, workers=workers, usd_per_core_hour=question.core_price)
    return run.run(prepared, (question.out or _folder(given)), workers=workers, ray=question.ray, watch=watch)


def sweep_data(given: str) -> str | Mapping[str, Any]:
    """The file of a question, or the tables whose JSON it holds."""
    if not given.lstrip().startswith("{"):
        return given
    try:
        return cast("Mapping[str, Any]", json.loads(given))
    except (ValueError, RecursionError):
        raise InputError(what="file", given=given, allowed="a TOML file, or tables") from None


def _folder(given: str | Mapping[str, Any]) -> str:
    """The folder of a sweep that was given none: the name of its file."""
    if isinstance(given, Mapping):
        raise InputError(what="out", given="nothing", allowed="a folder for the results of tables without a file")
    path = Path(given)
    if not path.suffix:
        raise InputError(what="out", given="nothing", allowed="a folder, since the file's name has no ending")
    return str(path.with_suffix(""))


def _example(name: str) -> Example:
    target = Path(name)
    if target.suffix != ".toml":
        raise InputError(what="new", given=name, allowed="a name that ends in .toml", nearest=f"{name}.toml")
    if target.exists():
        raise InputError(what="new", given=name, allowed="a file that does not exist yet")
    check_outputs({"new": target})
    write_text(target, EXAMPLE, what="new")
    return Example(file=str(target))


EXAMPLE = """\
# A sweep of rackline. Run it:    rackline sweep FILE --out FOLDER      (first: --dry-run says what it takes)
# Read it:                        rackline sweep show FOLDER

title = "Llama 3.1 70B on three clusters: what does a token cost at which speed?"

# The question that is asked at every point. `explain` (one pass) is compiled: millions of points per second.
# plan, train, simulate, price, fit, tiers, budget and encode are asked once per combination.
ask = "explain"

# Options of that question, as on the command line. One value, or a range:
#   [A, B, C]                                a list
#   { linear = [FROM, TO], num = N }         equal steps
#   { log = [FROM, TO], num = N }            equal ratios
#   { uniform = [FROM, TO] }                 drawn, see [sample]; also log_uniform, normal, log_normal
[options]
model = "llama-3.1-70b"
on = ["dgx-h100", "dgx-h200", "dgx-b200"]
precision = "fp8"
batch = { log = [1, 512], num = 40 }
context = ["2k", "8k", "32k"]
# parts such as "tp=8", a list of them, or a rule: smallest (layout that holds the batch), cheapest, fastest, all
layout = "cheapest"

# Numbers of the model, the cluster or the chip, as --set KEY=VALUE; ranges too.
[set]
"levels.scale_up.bytes_per_s_each_way" = ["450GB/s", "900GB/s"]

# Numbers for the expressions below alone; ranges too.
[inputs]
utilisation = 0.6

# How quantities that are drawn are drawn, all together:
# method = "sobol" (or latin-hypercube, random, saltelli for Sobol' indices), num = 1024, seed = 0
# [sample]

# New columns from columns, in SI units: + - * / ** %, comparisons, min, max, sqrt, exp, log, where(test, a, b) ...
[derived]
usd_per_mtok = "usd_per_mtok_output / utilisation"

# What a point must keep; points that do not stay in the tables, with feasible = false.
[constraints]
fast_enough = "server_s <= 0.05"

# What is better, the most important first.
[objectives]
usd_per_mtok = "min"
server_s = "min"

# Columns of results (of explain: server_s, seconds, output_tokens_per_s_per_chip, input_tokens_per_s_per_chip,
# usd_per_mtok_output, usd_per_mtok_input, max_sequences, chips_per_replica), and how they are stored.
[output]
results = ["server_s", "output_tokens_per_s_per_chip", "usd_per_mtok_output", "max_sequences"]
float_bits = 32
rows_per_shard = 1048576
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """An example that was written.

    Args:
        file: its path.
    """

    file: str


def sweep_line(found: Any) -> str:
    """The numbers that matter, in a line."""
    match found:
        case run.Forecast():
            return (
                f"{found.points:,} points, {found.shards:,} shards, {found.missing:,} of them missing; about "
                f"{format_bytes(found.bytes)}, {format_seconds(found.seconds)}, {format_usd(found.usd)}"
            )
        case run.Ran():
            ending = "; stopped before the end" if found.interrupted else ""
            shards = f"{found.new_shards:,} of {found.shards:,} shards"
            return f"{found.new_rows:,} new points in {shards} in {found.out}{ending}"
        case optimum.Optimum():
            if found.best is None:
                return f"nothing feasible among {found.evaluations:,} points evaluated"
            return f"{found.objective} {value_text(found.value)}, the best of {found.evaluations:,} points evaluated"
        case Example():
            return f"{found.file}: run it with rackline sweep {found.file}"
        case _:
            return str(found)


def sweep_report(found: Any) -> RenderableType:
    """Everything that `rackline sweep` prints."""
    match found:
        case run.Forecast():
            return _forecast(found)
        case run.Ran():
            return _ran(found)
        case optimum.Optimum():
            return _optimum(found)
        case _:
            return Text(sweep_line(found))


def _forecast(found: run.Forecast) -> RenderableType:
    each = "questions, each asked by itself" if found.asks_each else "tables"
    rows = f", {found.rows:,} rows" if found.rows != found.points else ""
    words = {
        "table": "question" if found.asks_each else "table (about 10 ms each)",
        "lane": "coefficients of the table",
        "point": "batch",
        "after": "arithmetic of the results",
    }
    known = [
        ("points", f"{found.points:,}{rows}"),
        (each, f"{found.tables:,}"),
        ("shards", f"{found.shards:,}, {found.missing:,} not there yet"),
        ("on disk", f"about {format_bytes(found.bytes)}"),
        ("time", f"about {format_seconds(found.seconds)} ({format_seconds(found.core_s)} of one core)"),
        ("cost", f"about {format_usd(found.usd)}"),
    ]
    for name, level in found.levels.items():
        known.append((name, f"another {words[level]}" if level == "table" else words[level]))
    return facts("forecast", known)


def _ran(found: run.Ran) -> RenderableType:
    lines = Text()
    rate = found.new_rows / found.run_s if found.run_s > 0 else 0.0
    if found.new_shards:
        lines.append(
            f"{found.new_rows:,} points in {format_seconds(found.run_s)} ({written(rate)} a second), "
            f"{format_bytes(float(found.bytes))} in {several(found.new_shards, 'shard')}"
        )
        if found.failed:
            lines.append(f"; {found.failed:,} without a result or with one that does not fit, each with its reason")
    else:
        lines.append(f"nothing new: all {found.shards:,} shards are in {found.out}")
    if found.interrupted:
        lines.append(
            f"\nstopped: {found.left_shards:,} of {found.shards:,} shards are left; the same command goes on", "yellow"
        )
    return Group(lines, Text(f"rackline sweep show {found.out}", style="dim"))


def _optimum(found: optimum.Optimum) -> RenderableType:
    space = f"{found.points:,} points" if found.points else "a continuous space"
    if found.how == "all points":
        how = "all of them were evaluated"
    else:
        how = f"{found.evaluations:,} of them were evaluated; a better one may exist"
    head = Text(f"{sweep_line(found)}\n{space}, {how}")
    if found.best is None:
        return head
    known = [(name, value_text(value)) for name, value in found.best.items() if name not in ("reason", "feasible")]
    return Group(head, facts("best", known))

"""`sweep`: a design space as one file, run in chunks that survive interruptions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from rackline.api.answer import Answer, asks
from rackline.api.option import option, whole
from rackline.api.question import Question, question
from rackline.api.watch import Watch
from rackline.errors import InputError
from rackline.extras import load_optional
from rackline.sweeps.run import Forecast, Ran

if TYPE_CHECKING:
    from rackline.api.option import MaybeWhole, Number
    from rackline.sweeps.example import Example
    from rackline.sweeps.optimum import Optimum

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
    from rackline.sweeps.report import sweep_report

    yield sweep_report(answer.result)


def _summary(answer: Answer[SweepQuestion, Any]) -> str:
    from rackline.sweeps.report import sweep_line

    return sweep_line(answer.result)


def _rows(answer: Answer[SweepQuestion, Any]) -> Any:
    found = answer.result
    if isinstance(found, Ran):
        from rackline.sweeps.read import Results

        return Results.of(found.out).scan()
    return [found]


def _status(answer: Answer[SweepQuestion, Any]) -> int:
    return 130 if isinstance(answer.result, Ran) and answer.result.interrupted else 0


@asks(SweepQuestion, text=_text, summary=_summary, rows=_rows, status=_status)
def sweep(question: SweepQuestion, watch: Watch) -> Forecast | Ran | Example | Optimum:
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
    from rackline.sweeps.run import forecast, prepare, run

    if question.new is not None:
        return _example(question.new)
    if question.file is None:
        raise InputError(what="file", given="nothing", allowed="a TOML file, or `new` FILE for an example")
    load_optional("polars", what="rackline sweep")  # before anything is written
    if question.ray is not None:
        from rackline.sweeps.cluster import library

        library()
    given = sweep_data(cast("str", question.file))
    if question.search:
        from rackline.sweeps.optimum import optimum

        return optimum(given, question.evaluations, watch)
    if question.evaluations is not None:
        raise InputError(what="evaluations", given=question.evaluations, allowed="together with `search`")
    workers = question.workers
    with watch.moving("reading the sweep"):
        prepared = prepare(given)
    if question.dry_run:
        with watch.moving("running a small part"):
            at = question.out or (None if isinstance(given, Mapping) else _folder(given))
            return forecast(prepared, at, workers=workers, usd_per_core_hour=question.core_price)
    out = question.out or _folder(given)
    return run(prepared, out, workers=workers, ray=question.ray, watch=watch)


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
    from rackline.files import check_outputs, write_text
    from rackline.sweeps.example import EXAMPLE, Example

    target = Path(name)
    if target.suffix != ".toml":
        raise InputError(what="new", given=name, allowed="a name that ends in .toml", nearest=f"{name}.toml")
    if target.exists():
        raise InputError(what="new", given=name, allowed="a file that does not exist yet")
    check_outputs({"new": target})
    write_text(target, EXAMPLE, what="new")
    return Example(file=str(target))

"""`sweep show`: what a sweep has found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from rackline.api.answer import Answer, Watch, asks
from rackline.api.question import Question, Texts, Whole, option, question, whole
from rackline.api.verbs import Entry
from rackline.errors import InputError, nearest_name
from rackline.late import late
from rackline.sweeps.file import Sense
from rackline.sweeps.shown import Queried, Reason, Shown

with late:
    from rackline.display import figure
    from rackline.sweeps import read, sensitivity, shown


_MOST_ROWS = 1_000_000
_FEW_VALUES = 3  # from which on a quantity of numbers is one to look along


@question
class SweepShowQuestion(Question):
    """What has a sweep found?"""

    ask: ClassVar[str] = "sweep-show"

    folder: str = option("text", "folder or address of the results of a sweep", kw_only=False)
    objectives: Texts = option(
        "text",
        "columns of the front, such as usd_per_mtok_output=min; may be repeated; those of the file by default",
        default=None,
        several=True,
        repeated=True,
    )
    by: Texts = option(
        "text",
        "columns whose values make groups, of each of which the best row is shown; may be repeated; by default "
        "every quantity of names",
        default=None,
        several=True,
        repeated=True,
    )
    where: str | None = option(
        "text", "only rows that keep a condition in SQL, such as 'context = 32000'", default=None
    )
    along: str | None = option(
        "text",
        "quantity along which options are compared; by default the longest list of numbers",
        default=None,
    )
    options_of: str | None = option(
        "text", "quantity whose values compete along it; by default the first one of names", default=None
    )
    sql: str | None = option(
        "text",
        "SQL over the rows, as the table sweep, in place of all else; DuckDB where installed",
        default=None,
    )
    rows: Whole = whole("rows that are shown of each table", default="12", maximum=_MOST_ROWS)


def _text(answer: Answer[SweepShowQuestion, Any], width: int) -> Iterable[Any]:
    most = answer.question.rows
    found = answer.result
    yield shown.queried_report(found) if isinstance(found, Queried) else shown.shown_report(found, most)


def _summary(answer: Answer[SweepShowQuestion, Any]) -> str:
    found = answer.result
    if isinstance(found, Queried):
        return f"{len(found.values):,} rows of {', '.join(found.columns)}"
    return f"{found.rows:,} points, {found.feasible_rows:,} feasible, {len(found.front):,} on the front"


def _rows(answer: Answer[SweepShowQuestion, Any]) -> Any:
    found = answer.result
    if isinstance(found, Queried):
        return [dict(zip(found.columns, row, strict=True)) for row in found.values]
    return [dict(row) for row in found.front]


def _shown(answer: Answer[SweepShowQuestion, Any]) -> Shown:
    found = answer.result
    if isinstance(found, Queried):
        raise InputError(what="sql", given=answer.question.sql, allowed="no figure of SQL; leave it out")
    return found


def _bands(answer: Answer[SweepShowQuestion, Any]) -> figure.Figure:
    found, question = _shown(answer), answer.question
    results = read.Results.of(question.folder, question.where)
    along = question.along or (found.crossovers.along if found.crossovers else _along(results, None))
    if along is None or not results.drawn:
        raise InputError(what="plot_kind", given="bands", allowed="a sweep with a list of numbers and with draws")
    option = question.options_of or (found.crossovers.option if found.crossovers else None)
    objective = next(iter(found.objectives))
    return shown.bands_figure(
        sensitivity.bands(results, objective, along, option).to_dicts(), found, along, option, objective
    )


@asks(
    SweepShowQuestion,
    text=_text,
    summary=_summary,
    rows=_rows,
    figures={
        "front": lambda answer: shown.front_figure(_shown(answer)),
        "options": lambda answer: shown.options_figure(_shown(answer)),
        "sensitivity": lambda answer: shown.sensitivity_figure(_shown(answer)),
        "tornado": lambda answer: shown.tornado_figure(_shown(answer)),
        "bands": _bands,
    },
    entry=Entry(
        group="Explore",
        place=1,
        line="What a sweep has found; also as rackline sweep show.",
        elsewhere="reads a folder of results",
        examples="""
    rackline sweep show results
    rackline sweep show results --plot front.svg
    rackline sweep show results --by on --along context --plot options.svg --plot-kind options
    rackline sweep show results --sql "SELECT layout, count(*) FROM sweep GROUP BY layout"
""",
    ),
)
def sweep_show(question: SweepShowQuestion, watch: Watch) -> Shown | Queried:
    """What a sweep has found: Pareto front, best of each group, sensitivities, constraints that bind, crossovers.

    Example:
        >>> import rackline as rl
        >>> space = {"options": {"model": "llama-3.1-8b", "on": ["l40s-8", "dgx-h100"], "layout": "tp=1",
        ...                      "batch": [1, 8, 64], "context": ["2k", "8k"]},
        ...          "objectives": {"usd_per_mtok_output": "min", "server_s": "min"}}
        >>> _ = rl.sweep(space, out="my-results")
        >>> rl.sweep_show("my-results").result.front[0]["batch"]
        64
    """
    results = read.Results.of(question.folder, question.where)
    if question.sql is not None:
        columns, rows = results.sql(question.sql, question.rows)
        return Queried(columns=tuple(columns), values=tuple(tuple(map(_value, row)) for row in rows))
    objectives = _objectives(question, results)
    numeric = results.numeric()
    by = list(question.by) or [name for name in results.axes if name not in numeric]
    results.check(by, "by")
    first, sense = next(iter(objectives.items()))
    with watch.moving("reading the shards"):
        rows, feasible = results.counts()
        along = _along(results, question.along)
        option = _option(results, question.options_of, along)
        return Shown(
            title=str(results.index["title"]),
            rows=rows,
            feasible_rows=feasible,
            shards=len(results.index["shards"]),
            missing=len(results.index["shards"]) - len(results.names),
            reasons=tuple(Reason(reason=reason, rows=number) for reason, number in results.reasons()),
            objectives=objectives,
            quantities=tuple(name for name in results.axes if name not in results.drawn),
            front=tuple(_row(row) for row in results.front(objectives).iter_rows(named=True)),
            best=tuple(_row(row) for row in results.best(by, first, sense).iter_rows(named=True)),
            by=tuple(by),
            binding=results.binding(first, sense),
            sensitivities=_sensitivities(results, first),
            tornado=sensitivity.tornado(results, first) if feasible else (),
            crossovers=results.crossovers(option, along, first, sense) if option and along and feasible else None,
        )


def _value(value: Any) -> str | float | bool | None:
    return value if value is None or isinstance(value, str | float | int | bool) else str(value)


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _value(value) for name, value in row.items()}


def _sensitivities(results: read.Results, objective: str) -> tuple[sensitivity.Sensitivity, ...]:
    try:
        return sensitivity.sensitivities(results, objective)
    except InputError:
        return ()


def _objectives(question: SweepShowQuestion, results: read.Results) -> dict[str, Sense]:
    """The objectives that are asked for, or those of the file.

    Raises:
        InputError: none, or a column that is not one of numbers.
    """
    given = question.objectives
    found: dict[str, Sense] = {} if given else results.objectives
    for text in given:
        name, _, word = text.partition("=")
        sense: Sense | None = next((one for one in ("min", "max") if one == (word or "min")), None)
        if sense is None:
            raise InputError(what="objectives", given=text, allowed="COLUMN=min or COLUMN=max", nearest=f"{name}=min")
        found[name.strip()] = sense
    if not found:
        known = ", ".join(results.index["results"])
        raise InputError(what="objectives", given="nothing", allowed=f"COLUMN=min or COLUMN=max, such as of {known}")
    results.check(list(found), "objectives")
    numeric = results.numeric()
    for name in found:
        if name not in numeric:
            raise InputError(
                what="objectives", given=name, allowed="a column of numbers", nearest=nearest_name(name, numeric)
            )
    return found


def _along(results: read.Results, given: str | None) -> str | None:
    """The quantity of numbers to look along: the longest list that comes with the result, or the one that is given."""
    numeric = results.numeric()
    if given is not None:
        results.check([given], "along")
        if given not in numeric:
            raise InputError(what="along", given=given, allowed=", ".join(sorted(numeric)))
        return given
    listed = [name for name in results.axes if name in numeric and name not in results.drawn]
    if not listed:
        return None
    name, number = max(results.num_values(listed).items(), key=lambda one: one[1])
    return name if number >= _FEW_VALUES else None


def _option(results: read.Results, given: str | None, along: str | None) -> str | None:
    """The quantity whose values compete: the first of names, or the one that is given."""
    if given is not None:
        results.check([given], "options_of")
        if given == along:
            raise InputError(what="options_of", given=given, allowed="another quantity than `along`")
        return given
    numeric = results.numeric()
    return next((name for name in results.axes if name not in numeric), None)

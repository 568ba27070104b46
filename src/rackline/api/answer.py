"""A question and the engine's result: how a question is answered, and how an answer is presented."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import update_wrapper
from importlib import import_module
from inspect import Parameter, Signature, signature
from io import StringIO
from pathlib import Path
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast

from rackline.api.question import Option, Question, check_names, options
from rackline.api.verbs import Entry, entries
from rackline.errors import InputError, nearest_name, require, unknown_name
from rackline.late import late
from rackline.plain import plain

with late:
    from rackline import arch
    from rackline.display import column, figure, wording
    from rackline.report import exports
    from rackline.simulation import native

Counted = Callable[[str, int, int], None]
Computed = Callable[[int, int, int], None]
Served = Callable[[int, int, float], None]


class Watch:
    """Notes what was read and draws nothing; the command line has one that draws bars.

    Args:
        found: models by what was asked for, so that one question reads each once.
        origins: what models were read from, in order.
        warnings: what the answer must say beside its numbers.
        defaults: what was taken where the question says nothing.
        media: images and sound of each request.
        adapter: that all tokens go through.
    """

    def __init__(self) -> None:
        self.found: dict[tuple[str, ...], arch.FoundModel] = {}
        self.origins: list[arch.Origin] = []
        self.warnings: list[str] = []
        self.defaults: list[str] = []
        self.media: tuple[arch.MediaPart, ...] = ()
        self.adapter: arch.AppliedAdapter | None = None

    def uses(self, model: arch.AnyModel) -> None:
        """Note where a model comes from and what is to be said of it, once."""
        if model.origin is not None and model.origin not in self.origins:
            self.origins.append(model.origin)
            for text in model.origin.warnings:
                self.warn(text)

    def warn(self, text: str) -> None:
        """Note what the answer must say, once."""
        if text not in self.warnings:
            self.warnings.append(text)

    def takes(self, text: str) -> None:
        """Note what is taken where the question says nothing, once."""
        if text not in self.defaults:
            self.defaults.append(text)

    def agrees(self, what: str) -> bool:
        """Ask whether something that costs may be done; nobody is asked here, so it may not."""
        return False

    def announces(self, what: str) -> None:
        """Say what is about to be done, or what is done so far."""

    def says(self, *parts: Any) -> None:
        """Show a part of a conversation."""

    def asks(self, what: str) -> str | None:
        """Ask for a line; nobody is asked here, and nobody answers."""
        return None

    def estimated(self, result: Any) -> None:
        """Take the result by estimates, before it is simulated."""

    def moving(self, what: str) -> AbstractContextManager[None]:
        """Work of unknown length."""
        return nullcontext()

    def counting(self, first: str, then: str) -> AbstractContextManager[Counted]:
        """Work in parts: call what is entered with (part, finished, all)."""
        return nullcontext(lambda what, finished, total: None)

    def serving(self, what: str) -> AbstractContextManager[Served | None]:
        """Requests: call what is entered with (done, all, simulated seconds); None when nobody watches."""
        return nullcontext()

    def computing(self, what: str) -> AbstractContextManager[Computed]:
        """Points: call what is entered with (done, all, failed)."""
        return nullcontext(lambda done, total, failed: None)


P = ParamSpec("P")
Q = TypeVar("Q", bound=Question)
R = TypeVar("R")

SCHEMA_VERSION = 4  # of the JSON of questions and answers; a key that goes or changes its meaning raises it
_HTML = '<pre style="font-family:ui-monospace,Menlo,Consolas,monospace;line-height:normal;white-space:pre">{code}</pre>'


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Answer(Generic[Q, R]):
    """A question with the engine's own result.

    Args:
        question: what was asked, in SI units.
        result: what the engine found.
        elapsed_s: how long that took [s].
        origins: what the models were read from.
        warnings: what must be said beside the numbers, such as assumptions about a model.
        defaults: what was taken where the question says nothing, such as the serving engine.
        media: images and sound of each request.
        adapter: low-rank adapter that all tokens go through.
        compiled_loop: whether simulations could use the compiled loop; only where a question may need simulations.
    """

    question: Q
    result: R
    elapsed_s: float = 0.0
    origins: tuple[arch.Origin, ...] = ()
    warnings: tuple[str, ...] = ()
    defaults: tuple[str, ...] = ()
    media: tuple[arch.MediaPart, ...] = ()
    adapter: arch.AppliedAdapter | None = None
    compiled_loop: bool | None = None

    @property
    def verb(self) -> Verb[Q, R]:
        """How such answers are shown."""
        return cast("Verb[Q, R]", find_verb(self.question.ask))

    def __repr__(self) -> str:
        """The numbers that matter, in a line or two."""
        return f"<{self.question.ask}: {self.verb.summary(self)}>"

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints: plain data in SI units, with stable keys."""
        noted = {
            "model_origins": self.origins,
            "warnings": self.warnings,
            "defaults": self.defaults,
            "media": self.media,
            "adapter": self.adapter,
        }
        loop = {} if self.compiled_loop is None else {"compiled_loop": self.compiled_loop}
        return {
            "schema_version": SCHEMA_VERSION,
            "question": self.question.to_data(),
            **loop,
            **plain({name: value for name, value in noted.items() if value}),
            **plain(self.verb.data(self)),
        }

    def to_frame(self, table: str | None = None) -> Any:
        """The rows of the answer as a table of polars, or of pandas where polars is not installed.

        Args:
            table: one of those that the command prints, by its name in `tables`; the rows of the answer by default.

        Raises:
            InputError: neither is installed; a table that the answer does not have.
        """
        if table is None:
            return exports.frame(self.verb.rows(self))
        known = self.tables()
        if table not in known:
            raise InputError(
                what="table",
                given=table,
                allowed=", ".join(known) or "an answer that has tables",
                nearest=nearest_name(table, known),
            )
        return exports.frame(known[table])

    def tables(self) -> dict[str, dict[str, list[Any]]]:
        """What the command prints as tables, by name: columns by their key, SI units."""
        found: dict[str, dict[str, list[Any]]] = {}
        for sheet in column.sheets_of(self.text()):
            columns = sheet.data()
            if sheet.name in found and list(found[sheet.name]) == list(columns):  # of the next value of a what-if
                for key, values in columns.items():
                    found[sheet.name][key] += values
            else:
                found[sheet.name] = columns
        return found

    def text(self, width: int = 110) -> Sequence[Any]:
        """What the command prints, as objects of rich.

        Args:
            width: of the lines [characters].
        """
        noted = (*self.origins, *self.media, *((self.adapter,) if self.adapter else ()))
        lines = [wording.Prose(text, style="dim") for text in self.defaults]
        lines += [wording.Prose(one.line, style="dim") for one in noted if one.line]
        warned = [wording.Prose(f"warning: {text}", style="yellow") for text in self.warnings]
        return [*self.verb.text(self, width), *lines, *warned]

    def plot(self, kind: str | None = None) -> figure.Figure:
        """The figure that `--plot` draws; notebooks show it, `save` writes it.

        Args:
            kind: which one, where there are several; the first by default.

        Raises:
            InputError: this answer has no figure, or not of that kind.
        """
        figures = self.verb.figures
        require(figures, what="plot()", given=self.question.ask, allowed="an answer that has a figure")
        if kind is not None and kind not in figures:
            raise unknown_name("plot_kind", kind, figures)
        return figures[kind or next(iter(figures))](self)

    def _repr_html_(self) -> str:
        """What the command prints, for notebooks."""
        from rich.console import Console

        console = Console(record=True, width=120, file=StringIO(), highlight=False)
        for part in self.text(120):
            console.print(part)
        return console.export_html(inline_styles=True, code_format=_HTML)


@dataclass(frozen=True, slots=True)
class Verbatim:
    """A text that is printed unchanged, without wrapping to the terminal's width."""

    text: str

    def __rich__(self) -> str:
        """The text that notebooks and terminals show."""
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class SideFile:
    """A file that a command writes beside its answer.

    Args:
        option: the flag that names it.
        write: writes it: the answer, the path, and the kind before the file; empty where the flag has none.
        check: turns the name into a path, before any work is done.
        needs: fields that the question must have for it.
        folders: whether a folder may be named as well, one of whose pages is written.
    """

    option: Option
    write: Callable[[Any, Path, str], None]
    check: Callable[[str, str], Path] | None = None
    needs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    folders: bool = False


def _result(answer: Answer[Any, R]) -> R:
    return answer.result


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb(Generic[Q, R]):
    """How one kind of question is answered and how its answers are shown.

    Args:
        question: the class of the question.
        solve: finds the result.
        text: what is printed, for a width of lines [characters].
        summary: the numbers that matter, in a line or two.
        rows: what `to_frame` makes rows of.
        data: what is written as JSON; the result by default.
        figures: draw the answer, by kind, the usual one first.
        files: what a command can write beside the answer, by the names of the flags.
        documents: texts to be copied from a page, by title.
        interval: a sentence that says how far off the numbers may be; empty where nothing is known.
        card: the numbers of a decision in large type, as a page shows them; empty where there is none.
        origins: rows whose numbers a page opens to what they are made of, such as those of `row_origins` of `report`.
        notes: lines for standard error.
        status: exit status of the command that has printed its answer.
        refuse: refuses outputs (by name) that the question does not have, before any work is done.
        simulates: whether its answers may take simulations, so that they say whether these had the compiled loop.
        entry: what stands of it in the help, the HTTP API, sweeps and the page.
    """

    question: type[Q]
    solve: Callable[[Q, Watch], R]
    text: Callable[[Answer[Q, R], int], Iterable[Any]]
    summary: Callable[[Answer[Q, R]], str]
    rows: Callable[[Answer[Q, R]], Iterable[Any] | Mapping[str, Any]]
    data: Callable[[Answer[Q, R]], Any]
    figures: Mapping[str, Callable[[Answer[Q, R]], figure.Figure]]
    files: Mapping[str, SideFile]
    documents: Callable[[Answer[Q, R]], Mapping[str, str]]
    interval: Callable[[Answer[Q, R]], str]
    card: Callable[[Answer[Q, R]], Mapping[str, Any]]
    origins: Callable[[Answer[Q, R]], Sequence[Mapping[str, Any]]]
    notes: Callable[[Answer[Q, R]], Iterable[str]]
    status: Callable[[Answer[Q, R]], int]
    refuse: Callable[[Q, frozenset[str]], None]
    simulates: bool
    entry: Entry


class Asks(Protocol[P, Q, R]):
    """A function whose keywords are the options of a question."""

    verb: Verb[Q, R]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Answer[Q, R]: ...


def asks(  # noqa: PLR0913
    question: Callable[P, Q],
    *,
    text: Callable[[Answer[Q, R], int], Iterable[Any]],
    summary: Callable[[Answer[Q, R]], str],
    rows: Callable[[Answer[Q, R]], Iterable[Any] | Mapping[str, Any]],
    data: Callable[[Answer[Q, R]], Any] = _result,
    figures: Mapping[str, Callable[[Answer[Q, R]], figure.Figure]] | None = None,
    files: Mapping[str, SideFile] | None = None,
    documents: Callable[[Answer[Q, R]], Mapping[str, str]] = lambda answer: {},
    interval: Callable[[Answer[Q, R]], str] = lambda answer: "",
    card: Callable[[Answer[Q, R]], Mapping[str, Any]] = lambda answer: {},
    origins: Callable[[Answer[Q, R]], Sequence[Mapping[str, Any]]] = lambda answer: (),
    notes: Callable[[Answer[Q, R]], Iterable[str]] = lambda answer: (),
    status: Callable[[Answer[Q, R]], int] = lambda answer: 0,
    refuse: Callable[[Q, frozenset[str]], None] = lambda question, outputs: None,
    simulates: bool = False,
    entry: Entry,
) -> Callable[[Callable[[Q, Watch], R]], Asks[P, Q, R]]:
    """Make the function that solves a question one that is called with its options.

    Args:
        question: the class of the question.
        text, summary, rows, data, figures, files, documents: as in `Verb`.
        interval, card, origins, notes, status, refuse, simulates, entry: as in `Verb`.

    Returns:
        A decorator for a function of the question and a watch.
    """
    kind = cast("type[Q]", question)

    def decorate(solve: Callable[[Q, Watch], R]) -> Asks[P, Q, R]:
        def ask(*args: Any, **options_given: Any) -> Answer[Q, R]:
            return answer_of(question_of(kind, args, options_given), solve)

        update_wrapper(ask, solve)
        made = signature(kind)
        ask.__signature__ = made.replace(return_annotation=Answer)  # pyright: ignore[reportFunctionMemberAccess]
        ask.__doc__ = _documented(solve.__doc__ or "", kind, made)
        asked = cast("Asks[P, Q, R]", ask)
        asked.verb = Verb(
            question=kind,
            solve=solve,
            text=text,
            summary=summary,
            rows=rows,
            data=data,
            figures=figures or {},
            files=files or {},
            documents=documents,
            interval=interval,
            card=card,
            origins=origins,
            notes=notes,
            status=status,
            refuse=refuse,
            simulates=simulates,
            entry=entry,
        )
        return asked

    return decorate


def question_of(kind: type[Q], args: tuple[Any, ...], given: dict[str, Any]) -> Q:
    """The question of the arguments of a call.

    Raises:
        InputError: as `check_names`; too many arguments without a name.
    """
    positional = [name for name, one in options(kind).items() if one.positional]
    require(
        len(args) <= len(positional),
        what=kind.ask,
        given=f"{len(args)} arguments without a name",
        allowed=f"{len(positional)} ({', '.join(positional)}); give the others by name",
    )
    return kind(**check_names(kind, {**dict(zip(positional, args, strict=False)), **given}))


def find_verb(name: str) -> Verb[Any, Any]:
    """How a kind of question is answered.

    Raises:
        InputError: there is no such question.
    """
    known = name.replace("_", "-")
    if known not in entries():
        raise InputError(what="ask", given=name, allowed=", ".join(entries()), nearest=nearest_name(known, entries()))
    one = entries()[known]
    return cast("Verb[Any, Any]", getattr(import_module(one.module), one.function).verb)


def answer(question: Q, watch: Watch | None = None) -> Answer[Q, Any]:
    """Answer a question.

    Args:
        question: any of the questions of `rackline.api`.
        watch: is told how far a long answer is.

    Example:
        >>> from rackline.api.explain import FitQuestion
        >>> answer(FitQuestion("llama-3.1-8b", on="dgx-h100", context="32k"))
        <fit: ...>
    """
    return answer_of(question, cast("Callable[[Q, Watch], Any]", find_verb(question.ask).solve), watch)


def answer_of(question: Q, solve: Callable[[Q, Watch], R], watch: Watch | None = None) -> Answer[Q, R]:
    """Answer a question with the function that solves it.

    Raises:
        InputError: options that contradict or miss each other, before any work is done.
    """
    start = time.perf_counter()
    question.check_options()
    watch = watch or Watch()
    return noted(question, solve(question, watch), watch, time.perf_counter() - start)


def noted(question: Q, result: R, watch: Watch, elapsed_s: float) -> Answer[Q, R]:
    """A result with what was noted on the way to it."""
    return Answer(
        question=question,
        result=result,
        elapsed_s=elapsed_s,
        origins=tuple(watch.origins),
        warnings=tuple(watch.warnings),
        defaults=tuple(watch.defaults),
        media=tuple(watch.media),
        adapter=watch.adapter,
        compiled_loop=native.library() is not None if find_verb(question.ask).simulates else None,
    )


def _documented(doc: str, kind: type[Question], made: Signature) -> str:
    """The docstring with a line for each option, before its example."""
    known = options(kind)
    lines = ["Args:"]
    for name, parameter in made.parameters.items():
        one = known[name]
        unit = f" [{one.unit}]" if one.unit != "-" else ""
        usual = "" if parameter.default in (Parameter.empty, None, False) else f"; {parameter.default} by default"
        lines.append(f"    {name}: {one.help}{usual}{unit}")
    before, example, after = doc.partition("    Example:")
    indented = "\n".join(f"    {line}" for line in lines)
    return f"{before.rstrip()}\n\n{indented}\n\n{example}{after}"

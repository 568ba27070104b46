"""Any question as a command: its options are the question's fields, its text and JSON come from the same answer."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

from cyclopts import Group, Parameter

from rackline.api.answer import Answer, Verb, Verbatim, Watch, answer_of, find_verb
from rackline.api.question import Option, Question, flag_of, options, written_defaults
from rackline.cli.screen import (
    Bars,
    FailedCheckError,
    asked,
    print_json,
    print_then_write,
    screen,
)
from rackline.errors import InputError
from rackline.files import check_outputs, is_file
from rackline.late import late
from rackline.processes import held

with late:
    from rackline.display import figure
    from rackline.simulation import native

_JSON = Option(kind="switch", help="print only JSON, in SI units")
_PLOT = Option(
    kind="text",
    help="write a figure to FILE.svg, .png, .pdf, .html (self-contained) or .json (Vega-Lite); all but .json "
    "need the extra plot",
)
_PLOT_THEME = Option(
    kind="text",
    help="colours of the figure: light, dark, or auto (pages follow the reader's system, images are light)",
    choices=("auto", "light", "dark"),
)


class ScreenWatch(Bars, Watch):
    """Draws bars on standard error, if that is a terminal, and talks on standard output.

    Args:
        json: whether standard output is for a program, so that talk goes to standard error, if that is a terminal.
    """

    def __init__(self, *, json: bool = False) -> None:
        super().__init__()
        self._talk = screen(stderr=json)
        self._silent = json and not sys.stderr.isatty()

    def agrees(self, what: str) -> bool:
        """Ask on the terminal; where there is none, nobody agrees."""
        return asked(what)

    def announces(self, what: str) -> None:
        """A line on standard error."""
        print(what, file=sys.stderr)

    def says(self, *parts: Any) -> None:
        """Print parts of a conversation."""
        for part in () if self._silent else parts:
            self._talk.print(part)

    def asks(self, what: str) -> str | None:
        """A line of standard input; None at its end, and where it is closed or cannot be read."""
        if not self._silent:
            self._talk.print(what, end="", markup=False)
            self._talk.file.flush()
        try:
            line = sys.stdin.readline() if sys.stdin else ""
        except (OSError, ValueError):
            line = ""
        if not self._silent and not (line and sys.stdin.isatty()):
            self._talk.print()  # nobody typed the end of the line
        return line.rstrip("\n") if line else None


class RefusedOptionError(InputError):
    """Bad input, named as the command line spells it."""


def command(name: str, *, all_options: bool) -> Callable[..., None]:
    """The function of a command, with the signature that cyclopts reads.

    Args:
        name: of the command.
        all_options: whether its help shows every option, not the usual ones alone.
    """
    verb = find_verb(name)
    outputs = _outputs(verb)

    def run(*given: Any, **named: Any) -> None:
        wanted = {key: named.pop(key) for key in outputs if key in named}
        for key in outputs:
            if wanted.get(key) is not None and key in verb.files:
                named.update(verb.files[key].needs)
        answer_command(verb, _values(verb, given, named), wanted)

    flags = {key: flag_of(key, one) or key for key, one in options(verb.question).items()}
    usual = {key: False if one.kind == "switch" else None for key, one in outputs.items()}
    usual.update(written_defaults(verb.question))
    shown = None if all_options else verb.entry.usual or None
    parameters: list[inspect.Parameter] = []
    for key, one in {**options(verb.question), **outputs}.items():
        # a required option is always shown, and so are --json and --plot
        hidden = one.hidden or (shown is not None and key in usual and key not in (*shown, "json", "plot"))
        group = one.group if shown is None else ""
        spelled = replace(one, help=with_flags(one.help, flags), hidden=hidden, group=group)
        parameters.append(_parameter(key, spelled, usual))
    parameters.sort(key=lambda one: one.kind)
    run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__doc__ = (verb.solve.__doc__ or "").partition("Example:")[0].strip()
    run.__name__ = name
    return run


def answer_command(verb: Verb[Any, Any], values: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Ask, print the answer, write the files beside it.

    A file that cannot be written loses neither the answer nor the other files; nor does an output that cannot, nor an
    interruption that comes when the answer is there.

    Args:
        values: of the question's options, as they were typed.
        wanted: outputs by name: json, plot, plot_kind and the files of the question.

    Raises:
        RefusedOptionError: bad input.
        OSError: standard output or a file cannot be written, after all others were.
        FailedCheckError: a check of the answer failed.
    """
    try:
        question = verb.question(**values)
        paths = _paths(verb, question, wanted)
        verb.refuse(question, frozenset(paths))
        watch = ScreenWatch(json=bool(wanted.get("json")))
        if verb.simulates and native.slow_because():
            watch.announces(native.slow_because())
        found = answer_of(question, verb.solve, watch)
    except InputError as error:
        raise spoken(error, verb) from error
    outputs = _outputs(verb)
    files = [
        (flag_of(key, outputs[key]), path, partial(_write, verb, found, key, path, wanted))
        for key, path in paths.items()
    ]
    with held() as hold:
        print_then_write(partial(show, found, json=bool(wanted.get("json"))), files, lambda error: spoken(error, verb))
    if hold.pressed:
        raise KeyboardInterrupt
    for line in verb.notes(found):
        print(line, file=sys.stderr)
    status = verb.status(found)
    if status:
        raise FailedCheckError(status)


def _write(verb: Verb[Any, Any], found: Answer[Any, Any], key: str, path: Path, wanted: Mapping[str, Any]) -> None:
    """Write one of the files beside an answer."""
    if key == "plot":
        found.plot(wanted.get("plot_kind")).save(path, wanted.get("plot_theme") or "auto")
    else:
        verb.files[key].write(found, path, wanted[key][0] if verb.files[key].option.before_file else "")


def show(found: Answer[Any, Any], *, json: bool) -> None:
    """Print an answer, for readers or for programs."""
    if json:
        print_json(found.to_dict())
        return
    out = screen()
    for part in found.text(out.width):
        if isinstance(part, Verbatim):
            sys.stdout.write(part.text)
        else:
            out.print(part)


def spoken(error: InputError, verb: Verb[Any, Any]) -> InputError:
    """An error that names fields, with the flags in their place."""
    flags = {key: flag_of(key, one) or key for key, one in {**options(verb.question), **_outputs(verb)}.items()}
    first, space, rest = error.what.partition(" ")
    where = "" if first in flags and error.where.isidentifier() else error.where  # the function that a value went to
    what = f"{flags[first]}{space}{rest}" if first in flags and not where else error.what
    return RefusedOptionError(
        what=with_flags(what, flags),
        given=error.given,
        allowed=with_flags(error.allowed, flags),
        where=where,
        nearest=with_flags(error.nearest, flags) if error.nearest else None,
    )


def with_flags(text: str, flags: Mapping[str, str]) -> str:
    """A text in which names of options in backticks become flags; what this command lacks is not offered."""
    for key, flag in flags.items():
        text = text.replace(f"`{key}`", flag)
    return re.sub(r"( or|, see) `\w+`", "", text)


def _outputs(verb: Verb[Any, Any]) -> dict[str, Option]:
    """What a command can do with an answer beside printing it."""
    found = {"json": _JSON}
    if verb.figures:
        found |= {"plot": _PLOT, "plot_theme": _PLOT_THEME}
    if len(verb.figures) > 1:
        first, *others = verb.figures
        kinds = f"{', '.join([f'{first} (default)', *others[:-1]])} or {others[-1]}"
        found["plot_kind"] = Option(kind="text", help=kinds, choices=tuple(verb.figures))
    return {**found, **{key: one.option for key, one in verb.files.items()}}


def _paths(verb: Verb[Any, Any], question: Question, wanted: Mapping[str, Any]) -> dict[str, Path]:
    """The files of the outputs, checked before any work is done.

    Raises:
        InputError: a file that cannot be written, is read or is written twice; a kind or theme of no figure.
    """
    if wanted.get("plot_kind") is not None and wanted.get("plot") is None:
        raise InputError(what="plot_kind", given=wanted["plot_kind"], allowed="together with `plot` FILE")
    outputs = _outputs(verb)
    for key in ("plot_kind", "plot_theme"):
        if wanted.get(key) is not None:
            outputs[key].read(wanted[key], key)
    paths: dict[str, Path] = {}
    for key, text in wanted.items():
        if text is None or not (key == "plot" or key in verb.files):
            continue
        kind, name = text if outputs[key].before_file else (None, text)
        if kind is not None:
            outputs[key].read(kind, key)
        if key == "plot":
            paths[key] = figure.check_plot_path(name, what="plot")
        else:
            check = verb.files[key].check
            paths[key] = Path(name) if check is None else check(name, key)
    pages = {key for key, one in verb.files.items() if one.folders and key in paths and paths[key].is_dir()}
    check_outputs({key: path for key, path in paths.items() if key not in pages}, files_read(question))
    return paths


def files_read(question: Question) -> dict[str, str]:
    """The files that a question names, by option."""
    found: dict[str, str] = {}
    for key, value in question.given(*options(type(question))).items():
        for one in cast("tuple[Any, ...]", value) if isinstance(value, tuple) else (value,):
            if isinstance(one, str) and is_file(one):
                found[f"{key} {one}"] = one
    return found


def _parameter(name: str, option: Option, usual: Mapping[str, Any]) -> inspect.Parameter:
    """The parameter of an option, as cyclopts reads it: always texts, which our own parsers judge."""
    default = usual.get(name, inspect.Parameter.empty)
    more: dict[str, Any] = {"help": option.help, "allow_leading_hyphen": option.kind != "switch"}
    kind: Any = bool if option.kind == "switch" else tuple[str, str] if option.before_file else str
    if option.is_tuple and (option.repeated or option.positional or not option.several):
        kind = list[str]
        default = None if isinstance(default, str) else default
    if kind is not str:
        more["negative"] = ()
    if default is False:
        more["show_default"] = False
    if option.hidden:
        more["show"] = False
    if option.group or not option.positional:
        more["group"] = Group(option.group, sort_key=1) if option.group else Group("Options", sort_key=0)
    where = inspect.Parameter.POSITIONAL_ONLY if option.positional else inspect.Parameter.KEYWORD_ONLY
    if not option.positional:
        more["name"] = [flag_of(name, option), *([f"-{option.short}"] if option.short else [])]
    elif option.several and default is inspect.Parameter.empty:
        return inspect.Parameter(name, inspect.Parameter.VAR_POSITIONAL, annotation=Annotated[str, Parameter(**more)])
    annotation = Annotated[kind | None if default is None else kind, Parameter(**more)]
    return inspect.Parameter(name, where, default=default, annotation=annotation)


def _values(verb: Verb[Any, Any], given: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the question from what was typed; what was not typed is left to its default.

    Raises:
        RefusedOptionError: nothing was given for several arguments.
    """
    values = {key: value for key, value in named.items() if value is not None}
    defaults = written_defaults(verb.question)
    for key, one in options(verb.question).items():
        if not one.positional:
            continue
        if one.several and key not in defaults:
            values[key] = list(given)
            if not given:
                raise spoken(InputError(what=key, given="nothing", allowed=one.help), verb)
            break
        if given and given[0] is not None:
            values[key] = given[0]
        given = given[1:]
    return values

"""What stands of each question in the help, the HTTP API, sweeps and the page, read without importing its module.

A question is one file of `api` or `sweeps`: the function that `@asks(..., entry=Entry(...))` decorates. Nobody keeps a
list of them. `bench/public_names.py` writes what their files declare to an index, so that the command line starts
without reading any; a file that is not in the index yet is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

GROUPS = ("Decide", "Explore", "Understand", "Measure", "Learn", "Catalogue", "Programs")
"""Headings of `rackline --help`."""

INDEX = Path(__file__).with_name("entries.json")
_FOLDERS = ("api", "sweeps")
# as ruff writes a decorator: the entry's arguments, and the function that the decorator belongs to
_ENTRY = re.compile(r"^    entry=Entry\(\n(.*?)^    \),$.*?^def (\w+)\(", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What is said of a question beside its answer; literals alone, since they are read from the text of the file.

    Args:
        group: heading of `rackline --help` under which it stands.
        place: there, the most used first.
        line: what it answers, in one line.
        examples: of its command, for the help.
        usual: options that `--help` shows beside the required ones, the others are shown by `--help-all`; all where
            it is empty.
        name: of the command, where it is not that of the function.
        request: the body of a `POST`, as an example; tests ask it.
        elsewhere: why it has no endpoint: what it touches is no business of a reader's request.
        is_long: whether it may take longer than a second: it never takes the last worker from the others.
        sweep_s: about what it takes on one core [s], to choose the size of chunks of a sweep before any was asked; 0
            where sweeps do not ask it.
        sweep_results: where the numbers lie in its answer that are columns of a sweep by default.
        view: of the page: its `id`, its `place` among the views, `title`, `question` and `claims` as all views have
            them; `figures` are drawn, `fields` are options with what they are at first, `stops` the values of the
            field `stop` whose answers a page without a server holds; `presets` are examples by name, of which it holds
            the answers instead, but for those that are `live`. `sliders` are fields that move between two ends;
            without a server the page interpolates between `points` of them (`web/grids.py`). `drawn` are the titles of
            its figures there, `suggested` kinds of names that a field proposes, `optional` fields are left out until
            they are switched on.
        function, module: what answers it; found, not given.
    """

    group: str
    place: int
    line: str
    examples: str
    usual: tuple[str, ...] = ()
    name: str = ""
    request: Mapping[str, Any] = field(default_factory=dict[str, Any])
    elsewhere: str = ""
    is_long: bool = False
    sweep_s: float = 0.0
    sweep_results: str = ""
    view: Mapping[str, Any] = field(default_factory=dict[str, Any])
    function: str = ""
    module: str = ""


@cache
def entries() -> dict[str, Entry]:
    """All questions by the name of their command, in the order of the help."""
    stored: dict[str, list[dict[str, Any]]] = json.loads(INDEX.read_text("utf-8"))
    found: list[Entry] = []
    for module, file in _files():
        declared = stored[module] if module in stored else entries_in(file.read_text("utf-8"), module)
        found += [Entry(**one) for one in declared]
    return {one.name: one for one in sorted(found, key=order)}


def index() -> dict[str, list[dict[str, Any]]]:
    """What the index holds: the entries of each file, read from its text."""
    return {module: entries_in(file.read_text("utf-8"), module) for module, file in _files()}


def _files() -> list[tuple[str, Path]]:
    """The modules that may answer questions, with their files."""
    place = Path(__file__).parents[1]
    files = (
        (f"rackline.{package}.{file.stem}", file) for package in _FOLDERS for file in (place / package).glob("*.py")
    )
    return sorted(files)


def order(entry: Entry) -> tuple[int, int, str]:
    """Where an entry stands in the help."""
    return GROUPS.index(entry.group), entry.place, entry.name


def entries_in(text: str, module: str) -> list[dict[str, Any]]:
    """The entries that a file declares, as arguments of `Entry`."""
    import ast

    found: list[dict[str, Any]] = []
    for arguments, function in _ENTRY.findall(text) if "entry=Entry(" in text else ():
        call = cast("ast.Call", ast.parse(f"dict({arguments})", mode="eval").body)
        given = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
        found.append({"name": function.replace("_", "-"), **given, "function": function, "module": module})
    return found


def functions() -> dict[str, Entry]:
    """All questions by the name of the function in Python: "infer-prices" is `infer_prices`."""
    return {one.function: one for one in entries().values()}

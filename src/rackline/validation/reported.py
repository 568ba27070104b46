"""Results that somebody reports: rows of CSV, Markdown and HTML tables and of result files, as quantities in SI units.

The heading of a column says which quantity it holds, and in which unit; both are guessed from its words and shown, and
a mapping replaces a guess. Objects of JSON are rows whose keys are headings.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np

from rackline.errors import InputError, nearest_name, unknown_name
from rackline.files import read_text
from rackline.validation.cases import Case, case_from, length_share, read_line
from rackline.validation.forms import parse_layout
from rackline.validation.importers import Given, import_results, result_rows
from rackline.validation.observed import requests_from

_TIMES = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "min": 60.0}
TEXTS = ("id", "model", "chip", "stack", "stack_version", "precision", "layout", "machine", "speculative")
SIZES = ("num_chips", "input_len", "output_len", "concurrency")
TIMES = ("tpot_s", "ttft_s", "e2e_s", "duration_s")
RATES = (
    "output_tokens_per_s", "total_tokens_per_s", "input_tokens_per_s", "user_tokens_per_s", "tokens_per_s_per_chip",
    "requests_per_s",
)  # fmt: skip
COUNTS = ("requests", "input_tokens", "output_tokens", "peak_concurrency")
QUANTITIES = (*TEXTS, *SIZES, *TIMES, *RATES, *COUNTS)

_PATTERNS: Sequence[tuple[str, str]] = (
    ("", r"p\d\d|std|max_tpot|min_|goodput|error|fail|warm|date|note|url|cost|price|usd|power|watt|joule|itls|ttfts"),
    ("user_tokens_per_s", r"(tok\w*|tps|(?<!ou)tput|throughput).*(user|stream|request_stream)|interactivity|intvty"),
    ("tokens_per_s_per_chip", r"(tok\w*|tps|(?<!ou)tput|throughput).*(gpu|chip|accelerator|device)"),
    ("requests_per_s", r"req\w*_?(throughput|per_s|s$|rate_achieved)|throughput_req|rps$|qps$"),
    ("total_tokens_per_s", r"total.*(throughput|tps|(?<!ou)tput|tok\w*_(per_)?s)"),
    ("input_tokens_per_s", r"(input|prompt|prefill).*(throughput|tps|(?<!ou)tput|tok\w*_(per_)?s$)"),
    ("output_tokens_per_s", r"throughput|(?<!ou)tput|tok\w*_(per_)?s(ec\w*)?$|tps$"),
    ("ttft_s", r"ttft|time_to_first|first_token"),
    ("tpot_s", r"tpot|itl|inter_?token|time_per_(output_)?token|ms_token"),
    ("e2e_s", r"e2e|end_to_end|request_latency|mean_latency|^latency"),
    ("duration_s", r"duration|wall|elapsed|total_time"),
    ("peak_concurrency", r"(peak|max\w*_(seen|observed|reached)).*(concurren|in_flight|running)"),
    ("concurrency", r"concurren|^conc$|^users?$|in_flight|max_batch|^batch"),
    ("input_tokens", r"total_(input|prompt)"),
    ("output_tokens", r"total_(output|generated)|generated_tokens"),
    ("input_len", r"^isl|input|prompt_?(len|tok|size)|prompts?$"),
    ("output_len", r"^osl|output|answer|generation_len"),
    ("requests", r"completed|num_prompts|num_requests|^requests|successful"),
    ("num_chips", r"(num|n|number)_?(of_)?(gpu|chip|accelerator|device)s?|^(gpus|chips)$"),
    ("layout", r"layout|parallelism|^tp$|^tp_size|tensor_parallel"),
    ("machine", r"machine|host|node|server$"),
    ("stack_version", r"version"),
    ("stack", r"engine|framework|stack|backend|software"),
    ("precision", r"precision|quant|dtype"),
    ("speculative", r"spec\w*|draft|mtp|eagle"),
    ("chip", r"gpu|chip|hardware|^hw$|accelerator|device"),
    ("model", r"model"),
    ("id", r"^id$|^name$|^run$|^case$"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """What a column is read as.

    Args:
        heading: of the column, as it is written.
        quantity: that it holds, one of `QUANTITIES`; empty where it is not read.
        unit: in which it is, in SI units.
        given: whether the user said so.
    """

    json_keys: ClassVar = ("heading", "quantity", "unit", "given")

    heading: str
    quantity: str
    unit: float = 1.0
    given: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """One row of somebody's results.

    Args:
        row_id: its name, else its place.
        where: file and row.
        values: quantity → value in SI units.
        texts: names as the row writes them.
        case: the deployment and its load, None where the row does not say it.
        lacks: why there is no case; empty where there is one.
    """

    row_id: str
    where: str
    values: Mapping[str, float]
    texts: Mapping[str, str]
    case: Case | None = None
    lacks: str = ""

    @property
    def machine(self) -> tuple[str, ...]:
        """Rows of equal machines belong together."""
        named = self.texts.get("machine") or (self.case.source if self.case else "") or self.where.partition(",")[0]
        return (named, *(self.texts.get(name, "") for name in ("chip", "stack", "model")))


def _key(heading: str) -> str:
    return re.sub(r"[^a-z0-9µ]+", "_", heading.lower().replace("#", "num ")).strip("_")


def guessed(heading: str) -> Mapped:
    """What a column holds, by the words of its heading; times without a unit are in seconds.

    >>> guessed("Mean TTFT (ms)").quantity, guessed("Mean TTFT (ms)").unit
    ('ttft_s', 0.001)
    """
    key = _key(heading)
    quantity = next((name for name, words in _PATTERNS if re.search(words, key)), "")
    unit = next((_TIMES[word] for word in reversed(key.split("_")) if word in _TIMES), 1.0)
    return Mapped(heading=heading, quantity=quantity, unit=unit if quantity in TIMES else 1.0)


def mappings(given: Iterable[str]) -> dict[str, Mapped]:
    """Columns that the user maps: HEADING=QUANTITY, or HEADING=QUANTITY:UNIT of a time or a factor.

    Raises:
        InputError: another form, or an unknown quantity or unit.
    """
    found: dict[str, Mapped] = {}
    for one in given:
        heading, equals, said = one.rpartition("=")
        quantity, _, unit = said.partition(":")
        if not equals or not heading:
            raise InputError(what="--map", given=one, allowed='HEADING=QUANTITY, such as "Latency (ms)=ttft_s:ms"')
        if quantity not in (*QUANTITIES, ""):
            raise unknown_name("quantity of --map", quantity, QUANTITIES)
        factor = _TIMES.get(unit or "s")
        if factor is None:
            try:
                factor = float(unit)
            except ValueError:
                factor = 0.0
            if not 0.0 < factor < 1e12:
                raise InputError(what="unit of --map", given=unit, allowed=f"{', '.join(_TIMES)} or a factor above 0")
        found[heading.strip()] = Mapped(heading=heading.strip(), quantity=quantity, unit=factor, given=True)
    return found


class _Tables(HTMLParser):
    """The tables of a page as lists of rows of texts."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.tables.append([])
            self.inside = False
        elif tag == "tr" and self.tables:
            self.tables[-1].append([])
        elif tag in ("td", "th") and self.tables and self.tables[-1]:
            self.tables[-1][-1].append("")
            self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag not in ("td", "th", "table")

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.tables[-1][-1][-1] += data


def tables_of(text: str, suffix: str) -> list[list[list[str]]]:
    """Tables of a text, each a heading and rows of cells.

    Args:
        suffix: of the file: ".csv" and ".tsv", ".html" and ".htm"; others are Markdown.
    """
    if suffix in (".csv", ".tsv"):
        try:
            rows = list(csv.reader(io.StringIO(text), delimiter="\t" if suffix == ".tsv" else ","))
        except csv.Error as error:
            raise InputError(what="results", given=f"a broken table ({error})", allowed="rows of cells") from None
        found = [[row for row in rows if any(cell.strip() for cell in row)]]
    elif suffix in (".html", ".htm"):
        page = _Tables()
        page.feed(text)
        found = page.tables
    else:
        found = [list[list[str]]()]
        for line in text.splitlines():
            if line.strip().startswith("|"):
                cells = [one.replace("\\|", "|") for one in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
                if not all(re.fullmatch(r"\s*:?-+:?\s*", one) for one in cells):
                    found[-1].append(cells)
            elif found[-1]:
                found.append([])
    return [[[cell.strip() for cell in row] for row in table] for table in found if len(table) > 1]


_NUMBER = re.compile(r"[-+]?\d[\d,]*(\.\d+)?([eE][-+]?\d+)?\s*([kM]?)")


def _number(text: object) -> float | None:
    """A number with separators of thousands, a suffix or a unit; None where there is none."""
    if isinstance(text, bool) or text is None:
        return None
    if isinstance(text, int | float):
        return float(text)
    match = _NUMBER.match(str(text).strip().strip("*`~"))
    if match is None:
        return None
    return float(match[0].rstrip("kM ").replace(",", "")) * {"k": 1e3, "M": 1e6}.get(match[3], 1.0)


def _row(cells: Mapping[str, object], columns: Mapping[str, Mapped], name: str, where: str) -> Reported:
    values: dict[str, float] = {}
    texts: dict[str, str] = {}
    for heading, cell in cells.items():
        column = columns[heading]
        if column.quantity in TEXTS:
            if cell in (None, ""):
                continue
            ways = _number(cell) if column.quantity == "layout" and "=" not in str(cell) else None
            texts[column.quantity] = f"tp={ways:g}" if ways is not None else str(cell)
            continue
        number = _number(cell) if column.quantity else None
        first = column.quantity not in values or column.given or "mean" in heading.lower()
        if number is not None and 0.0 < number < 1e15 and first:
            values[column.quantity] = number * column.unit
    return Reported(row_id=texts.get("id", name), where=where, values=values, texts=texts)


def completed(row: Reported, given: Given) -> Reported:
    """A row with what the user states, and the case that it then describes."""
    stated = {key: value for key, value in asdict(given).items() if value is not None}
    values = {**row.values, **{key: float(stated[key]) for key in SIZES if key in stated}}
    texts = {**row.texts, **{key: str(stated[key]) for key in TEXTS if key in stated}}
    row = replace(row, values=values, texts=texts)
    missing = [key for key in ("model", "chip") if not texts.get(key)]
    missing += [key for key in ("input_len", "output_len", "concurrency") if key not in values]
    if missing:
        return replace(row, lacks=f"not said: {', '.join(missing)}")
    try:
        layout = parse_layout(texts.get("layout", ""), row.where)
    except InputError as error:
        return replace(row, lacks=str(error))
    chips = values.get("num_chips") or float(np.prod(list(layout.values()) or [1]))
    layout = layout or {"tp": int(chips)}  # none is said: the one with the fastest tokens, so that bounds hold
    case = case_from(
        {
            "id": row.row_id, "kind": "serve", "model": texts["model"], "chip": texts["chip"].lower(),
            "num_chips": int(chips), "layout": layout, "stack": texts.get("stack", "unknown").lower(),
            "stack_version": texts.get("stack_version", ""), "precision": texts.get("precision", "native").lower(),
            "input_len": values["input_len"], "output_len": values["output_len"],
            "concurrency": max(round(values["concurrency"]), 1),
            "speculative": texts.get("speculative", "unknown"), "measured": {"tpot_s": 1.0},
        },
        row.where,
        {},
    )  # fmt: skip
    if not isinstance(case, Case):
        return replace(row, lacks=case.cause)
    return replace(row, case=case, values={**values, "num_chips": float(case.num_chips)})


def of_case(case: Case) -> Reported:
    """A measured case as a row; mean lengths where its lengths are spread."""
    values = dict(case.measured)
    for key in (*SIZES, "requests"):
        held = case.values.get({"requests": "num_prompts"}.get(key, key))
        if isinstance(held, int | float):
            values[key] = float(held)
    if case.kind in ("serve", "serve-disaggregated", "max-throughput"):
        try:
            share = length_share(case)
        except InputError as error:
            return Reported(row_id=case.case_id, where=case.where, values={}, texts={}, lacks=str(error))
        values |= {key: values[key] * share for key in ("input_len", "output_len")}
    values["num_chips"] = float(case.num_chips)
    if case.kind == "observed":
        values |= _observed(case)
    names = {"model": case.model, "chip": case.chip, "stack": case.stack, "precision": case.precision}
    texts = {**names, "speculative": case.text("speculative", "unknown")}
    return Reported(row_id=case.case_id, where=case.where, values=values, texts=texts, case=case)


def _observed(case: Case) -> dict[str, float]:
    """Means, rates and the largest number in flight of a run, from its requests."""
    done = [one for one in requests_from(case) if one.outcome == "finished" and one.sent_s is not None and one.token_s]
    if len(done) < 2:
        return {}
    start, end = np.array([one.sent_s for one in done]), np.array([one.token_s[-1] for one in done])
    made, asked = (np.array(column, dtype=float) for column in zip(*((one.tokens, one.prompt_len) for one in done),
                                                                   strict=True))  # fmt: skip
    flying = np.concatenate([np.ones(len(done)), -np.ones(len(done))])[np.argsort(np.concatenate([start, end]))]
    duration_s = float(end.max() - start.min())
    found = {
        "ttft_s": float(np.mean([one.ttft_s for one in done])),
        "tpot_s": float(np.mean([one.tpot_s for one in done if one.tokens > 1 and len(one.token_s) > 1] or [0.0])),
        "e2e_s": float((end - start).mean()), "duration_s": duration_s, "requests": float(len(done)),
        "input_tokens": float(asked.sum()), "output_tokens": float(made.sum()),
        "input_len": float(asked.mean()), "output_len": float(made.mean()),
        "output_tokens_per_s": float(made.sum()) / duration_s, "peak_concurrency": float(flying.cumsum().max()),
    }  # fmt: skip
    users = cast("Mapping[str, Any]", case.values.get("load") or {}).get("users")
    found |= {"concurrency": float(users)} if isinstance(users, int | float) else {}
    return {key: value for key, value in found.items() if value > 0.0}


def read_reported(
    paths: Iterable[str | Path], form: str | None, given: Given, maps: Mapping[str, Mapped]
) -> tuple[tuple[Reported, ...], tuple[Mapped, ...]]:
    """Rows of result files and tables, with what their columns were read as.

    Args:
        form: of a load generator, as `import_results` knows; None for tables, cases and JSON with plain keys.
        maps: heading → what the user says it is.

    Raises:
        InputError: a file cannot be read, or holds no row; a mapped heading is in none.
    """
    rows: list[Reported] = []
    columns: dict[str, Mapped] = {}
    for path in map(Path, paths):
        if form is not None:
            lines = import_results([path], form, given).splitlines()
            cases = [one for line in lines if isinstance(one := read_line(line, str(path)), Case)]
            plain = result_rows(path) if len(cases) == len(result_rows(path)) else []
            for at, case in enumerate(cases):
                found = of_case(case)
                if plain:  # rates and totals that a case does not hold
                    more = _rows_of([plain[at]], columns, maps, str(path), Given())
                    found = replace(found, values={**(more[0].values if more else {}), **found.values})
                rows.append(found)
            continue
        suffix = path.suffix.lower()
        if suffix in (".json", ".jsonl"):
            plain = result_rows(path)
            cases = [case_from(row, f"{path.name}, line {n}", {}) for n, row in enumerate(plain, 1) if "kind" in row]
            rows += [of_case(one) for one in cases if isinstance(one, Case)]
            rows += [Reported(row_id=one.case_id, where=one.where, values={}, texts={}, lacks=one.cause)
                     for one in cases if not isinstance(one, Case)]  # fmt: skip
            rows += _rows_of([row for row in plain if "kind" not in row], columns, maps, path.name, given)
            continue
        text = read_text(path, what="results", allowed="a table in CSV, Markdown or HTML, or results in JSON")
        for head, *body in tables_of(text, suffix):
            rows += _rows_of([dict(zip(head, row, strict=False)) for row in body], columns, maps, path.name, given)
    for heading in maps:
        if heading not in columns:
            raise InputError(
                what="heading of --map", given=heading, allowed=", ".join(columns) or "none in these files",
                nearest=nearest_name(heading, columns),
            )  # fmt: skip
    rows = [row for row in rows if row.values or row.lacks]
    if not rows:
        allowed = "a table with a heading and rows, or results in JSON"
        raise InputError(what="results", given=", ".join(map(str, paths)), allowed=allowed)
    return tuple(rows), tuple(columns.values())


def _rows_of(
    cells: Sequence[Mapping[str, object]],
    columns: dict[str, Mapped],
    maps: Mapping[str, Mapped],
    file: str,
    given: Given,
) -> list[Reported]:
    for row in cells:
        for heading, cell in row.items():
            if heading not in columns and not isinstance(cell, list | dict):
                columns[heading] = maps.get(heading) or guessed(heading)
    flat = [{key: value for key, value in row.items() if key in columns} for row in cells]
    found = [_row(row, columns, f"row {n}", f"{file}, row {n}") for n, row in enumerate(flat, 1)]
    return [completed(row, given) for row in found if row.values]

"""Answers as they are sent: the JSON of `--json`, what a page shows besides, and published measurements."""

from __future__ import annotations

import functools
import importlib.resources
import json
import tomllib
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any

from rackline.api.answer import Answer, Verbatim, answer_of, find_verb, noted
from rackline.api.question import options
from rackline.api.verbs import MODULES
from rackline.api.watch import Watch
from rackline.errors import shown
from rackline.web.offered import OFFERED, offered, taken
from rackline.web.problem import problem

if TYPE_CHECKING:
    from rackline.parallel import Deployment


TEXT_COLUMNS = 80


def question_body(question: Mapping[str, Any], watch: Watch, *, view: bool, figures: Sequence[str] | None) -> bytes:
    """Ask, and write the answer.

    Args:
        question: as `Question.to_data` writes it.
        watch: is told how far it is.
        view: with all that a page shows.
        figures: kinds that are drawn in a view; the first by default.

    Raises:
        RacklineError: bad input, or a kind of figure that the answer does not have.
    """
    verb = find_verb(str(question["ask"]))
    if verb.question.ask == "ask":
        _check_questions(str(question["file"]))
    found = answer_of(verb.question.from_data(question), verb.solve, watch)
    return as_json(view_of(found, figures) if view else found.to_dict())


def script_body(question: Mapping[str, Any], watch: Watch) -> bytes:
    """What `explain` is asked, at any batch and context, as the script that the page computes with.

    Args:
        question, watch: as above.

    Raises:
        RacklineError: as `rackline explain`; a part of it cannot be written as a script.
    """
    from rackline.web.scenario import asked_script

    verb = find_verb(str(question["ask"]))
    return asked_script(answer_of(verb.question.from_data(question), verb.solve, watch)).encode()


def estimate_body(question: Mapping[str, Any], result: Any, watch: Watch, figures: Sequence[str] | None) -> bytes:
    """An answer by estimates as a page shows it.

    Args:
        question, figures: as above.
        result: by estimates.
        watch: has noted what was read.
    """
    asked = find_verb(str(question["ask"])).question.from_data(question)
    return as_json(view_of(noted(asked, result, watch, 0.0), figures))


def _check_questions(file: str) -> None:
    """Refuse a file with questions, or options, that have no endpoint.

    Raises:
        ProblemError: it has such.
    """
    from rackline.api.ask import read_questions

    for number, one in enumerate(read_questions(file), start=1):
        name = str(one.get("ask", ""))
        if name in MODULES and name not in OFFERED:
            offered(name)
        for key in one:
            if name in OFFERED and key in options(find_verb(name).question) and key not in taken(name):
                detail = f"question {number}: {key}: the server writes no files"
                raise problem("bad-input", detail, what=key, given=shown(one[key]), allowed="nothing")


def openapi_body() -> bytes:
    """The description of all endpoints."""
    from rackline.web.openapi import description

    return as_json(description())


def as_json(data: Any) -> bytes:
    """Plain data as it is sent."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def view_of(found: Answer[Any, Any], figures: Sequence[str] | None) -> dict[str, Any]:
    """The answer: its summary, how far off it may be, its text, rows and figures, and how it is asked elsewhere.

    Args:
        found: the answer.
        figures: kinds that are drawn; the first by default.
    """
    from rackline.api.question import command_of, python_of
    from rackline.plain import plain
    from rackline.report.exports import columns_of, csv_text

    kinds = list(found.verb.figures)[:1] if figures is None else figures
    columns = plain(columns_of(found.verb.rows(found)))
    return {
        "answer": found.to_dict(),
        "summary": found.verb.summary(found),
        "interval": found.verb.interval(found),
        "text": _text(found),
        "columns": columns,
        "csv": csv_text(columns),
        "figures": {kind: _figure(found, kind) for kind in kinds},
        "documents": dict(found.verb.documents(found)),
        "command": command_of(found.question),
        "python": python_of(found.question),
    }


def _figure(found: Answer[Any, Any], kind: str) -> dict[str, Any]:
    """Vega-Lite without its look, which the page sets."""
    spec = found.plot(kind).to_dict()
    del spec["config"]
    return spec


def _text(found: Answer[Any, Any]) -> str:
    from rich.console import Console

    console = Console(width=TEXT_COLUMNS, file=StringIO(), highlight=False, color_system=None)
    with console.capture() as written:
        for part in found.text(TEXT_COLUMNS):
            if isinstance(part, Verbatim):
                console.out(part.text, end="")
            else:
                console.print(part)
    return written.get()


_MOSTLY_OUTPUT = 4.0  # output over prompt tokens from which on a server's time per output token is about a decode step


@functools.cache
def _cases() -> dict[str, dict[str, Any]]:
    """The cases as they are written, by id."""
    from rackline.validation.published import published

    lines = published().read_text(encoding="utf-8").splitlines()
    return {case["id"]: case for case in map(json.loads, lines)}


@functools.cache
def beside(kind: str) -> list[dict[str, Any]]:
    """Published measurements that stand beside curves: entries of a kind of `measured.toml`."""
    file = importlib.resources.files("rackline.web").joinpath("measured.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))[kind]


def parity() -> dict[str, Any]:
    """Every measured value with the predicted one."""
    from rackline.catalog import canonical_name
    from rackline.validation import validate
    from rackline.validation.published import published

    rows: list[dict[str, Any]] = []
    for score in validate([published()]).scores:
        case = _cases()[score.case_id]
        rows.append(
            {
                "id": score.case_id,
                "kind": case["kind"],
                "metric": score.metric,
                "measured": score.measured,
                "predicted": score.predicted,
                "model": canonical_name("models", score.groups["model"]) or score.groups["model"],
                "chip": score.groups["chip"],
                "stack": score.groups["stack"],
                "version": case.get("stack_version", ""),
                "precision": score.groups["precision"],
                "chips": case["num_chips"],
                "source": case["source"],
            }
        )
    return {"rows": rows}


def asked_prices() -> dict[str, Any]:
    """What hosts of open models ask for a million tokens of short prompts [USD]."""
    from rackline.pricing import all_sheets

    rows: list[dict[str, Any]] = []
    for sheet in all_sheets():
        tier = sheet.standard
        if sheet.model is not None and tier is not None:
            usd = {"input": tier.input_usd, "cached": tier.cached_input_usd, "output": tier.output_usd}
            per_mtok = {name: None if one is None else 1e6 * one for name, one in usd.items()}
            rows.append({"model": sheet.model, "provider": sheet.provider, "date": sheet.date, **per_mtok})
    return {"rows": rows}


def decode_points(deployment: Deployment) -> list[dict[str, Any]]:
    """Measured decode steps of a deployment: sequences, their mean context [tokens], the step [s].

    A static batch's time per token is its mean step. A server's time per output token contains the prefill of others:
    it counts where requests have at least four output tokens for each prompt token.
    """
    return [
        {
            "id": case["id"],
            "batch_size": case.get("batch_size") or case["concurrency"],
            "context_len": case["input_len"] + case["output_len"] / 2,
            "seconds": case["measured"].get("token_s") or case["measured"]["tpot_s"],
            "stack": f"{case['stack']} {case.get('stack_version', '')}".strip(),
            "source": case["source"],
        }
        for case in _cases().values()
        if _is_of(case, deployment) and _is_decode(case)
    ]


def _is_of(case: dict[str, Any], deployment: Deployment) -> bool:
    from rackline.catalog import model_record
    from rackline.errors import RacklineError
    from rackline.parallel import precision

    layout, chip = deployment.layout, deployment.cluster.chip
    if (case["chip"], case["num_chips"]) != (chip.name, layout.chips_per_replica):
        return False
    try:
        named = model_record(case["model"]).name
    except RacklineError:  # a model that only the case describes
        return False
    if named != deployment.model.name:
        return False
    types = precision(case["precision"], deployment.model, chip)
    degrees = {"tp": 1, "pp": 1, "attention_dp": 1, "ep": 1, **case["layout"]}
    same = all(getattr(layout, name) == degrees[name] for name in ("tp", "pp", "attention_dp", "ep"))
    return same and types.short() == deployment.precision.short()


def _is_decode(case: dict[str, Any]) -> bool:
    if case["kind"] == "static-batch":
        return "token_s" in case["measured"] and bool(case.get("output_len"))
    return case["kind"] == "serve" and case["output_len"] >= _MOSTLY_OUTPUT * case["input_len"]

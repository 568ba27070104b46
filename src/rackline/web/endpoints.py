"""`/api/v1`: one endpoint for each question."""

from __future__ import annotations

import json
from typing import Any, cast

from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool

from rackline.api.answer import Answer, answer_of, find_verb
from rackline.api.verbs import MODULES
from rackline.errors import RacklineError
from rackline.files import parse_json
from rackline.web.problem import problem, problem_of
from rackline.web.settings import Settings

PREFIX = "/api/v1"


def add_endpoints(app: FastAPI, settings: Settings) -> None:
    """Add an endpoint for each question."""

    @app.post(f"{PREFIX}/{{name}}")
    async def answer(name: str, request: Request) -> Response:
        body = await request.body()
        return await run_in_threadpool(_respond, name, body, view=False)

    @app.post(f"{PREFIX}/{{name}}/view")
    async def view(name: str, request: Request) -> Response:
        body = await request.body()
        return await run_in_threadpool(_respond, name, body, view=True)


def _respond(name: str, body: bytes, *, view: bool) -> Response:
    if name not in MODULES:
        raise problem("not-found", f"no question {name}", allowed=", ".join(MODULES))
    try:
        data = parse_json(body.decode())
    except ValueError as error:
        raise problem("bad-json", str(error)) from None
    if not isinstance(data, dict):
        raise problem("bad-json", "not an object")
    given = cast("dict[str, Any]", data)
    figures = given.pop("figures", None)
    verb = find_verb(name)
    try:
        found = answer_of(verb.question.from_data(given), verb.solve)
        data = view_of(found, figures) if view else found.to_dict()
    except RacklineError as error:
        raise problem_of(error) from None
    return Response(json.dumps(data, ensure_ascii=False, allow_nan=False), media_type="application/json")


def view_of(found: Answer[Any, Any], figures: list[str] | None) -> dict[str, Any]:
    """What a page shows of an answer."""
    from rackline.plain import plain

    kinds = list(found.verb.figures)[:1] if figures is None else figures
    drawn: dict[str, Any] = {}
    for kind in kinds:
        spec = found.plot(kind).to_dict()
        drawn[kind] = {key: value for key, value in spec.items() if key != "config"}
    return {
        "answer": found.to_dict(),
        "summary": found.verb.summary(found),
        "rows": plain(list(found.verb.rows(found))),
        "figures": drawn,
    }

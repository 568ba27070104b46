"""Every question over HTTP gives the JSON of `--json`, in every form that is offered."""

from __future__ import annotations

import csv
import json
import shlex
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from rackline.api.answer import answer_of, find_verb
from rackline.api.question import command_of, options, python_of, written_defaults
from rackline.api.verbs import entries
from rackline.cli.main import run
from rackline.web.asked import offered_names

OFFERED = offered_names()
EXAMPLES = {name: one.request for name, one in entries().items()}
SLOW = {"plan", "price", "budget"}
QUICK = [name for name in OFFERED if name not in SLOW]
NAMES = [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in OFFERED]
_FOUND: dict[str, Any] = {}
EXPLAIN = {"model": "llama-3.1-8b", "on": "dgx-h100", "batch": 8, "context": "2k", "layout": "tp=1"}


def here(name: str, body: Mapping[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The answer to an example in this process, computed once, with its files in the current folder."""
    folder = folder / "uploads"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for file, text in body.get("uploads", {}).items():
        Path(file).write_text(text)
    if name not in _FOUND:
        verb = find_verb(name)
        data = {key: value for key, value in body.items() if key != "uploads"}
        _FOUND[name] = answer_of(verb.question.from_data(data), verb.solve)
    return _FOUND[name]


def written_required(name: str) -> set[str]:
    """The options without which a question cannot be asked."""
    kind = find_verb(name).question
    return {*options(kind)} - {*written_defaults(kind)}


def timeless(answer: Mapping[str, Any]) -> Any:
    """An answer as it is sent, without the time that it took."""
    found = json.loads(json.dumps(answer))
    found.pop("elapsed_s", None)
    return found


def test_every_question_has_an_endpoint_and_an_example_or_a_reason_to_have_none() -> None:
    for name, one in entries().items():
        assert bool(one.elsewhere) != (name in OFFERED)
        assert one.request or one.elsewhere or not written_required(name), name
        assert not (one.elsewhere and (one.request or one.is_long)), name


@pytest.mark.parametrize("name", NAMES)
def test_the_answer_is_that_of_the_command(
    name: str, client: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = client.post(f"/api/v1/{name}", json=EXAMPLES[name])
    assert found.status_code == 200, found.text
    assert found.headers["content-type"] == "application/json"
    expected = here(name, EXAMPLES[name], tmp_path, monkeypatch)
    assert timeless(found.json()) == timeless(expected.to_dict())


@pytest.mark.parametrize("name", QUICK)
def test_a_view_has_what_a_page_shows(
    name: str, client: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {"pipeline", "over-time", "concurrency", "classes"}  # the example has one stage, and a steady rate
    kinds = [kind for kind in find_verb(name).figures if kind not in others]
    found = client.post(f"/api/v1/{name}/view", json={**EXAMPLES[name], "figures": kinds})
    assert found.status_code == 200, found.text
    view = found.json()
    expected = here(name, EXAMPLES[name], tmp_path, monkeypatch)
    assert timeless(view["answer"]) == timeless(expected.to_dict())
    assert view["summary"] == expected.verb.summary(expected)
    assert list(view["figures"]) == kinds
    for kind in kinds:
        drawn = json.loads(expected.plot(kind).json())
        del drawn["config"]
        assert view["figures"][kind] == drawn
    rows = list(csv.DictReader(StringIO(view["csv"])))
    assert list(rows[0] if rows else view["columns"]) == list(view["columns"])
    assert {len(column) for column in view["columns"].values()} <= {len(rows)}
    assert view["command"] == command_of(expected.question)
    assert view["python"] == python_of(expected.question)
    assert view["text"].strip()
    if name != "schema":
        assert max(map(len, view["text"].splitlines())) <= 80


@pytest.mark.parametrize("name", QUICK)
def test_command_and_call_of_a_view_ask_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = here(name, EXAMPLES[name], tmp_path, monkeypatch)
    words = shlex.split(command_of(expected.question))
    assert run([*words[1:], "--json"]) in (0, 1)
    assert timeless(json.loads(capsys.readouterr().out)) == timeless(expected.to_dict())
    import rackline as rl

    called = eval(python_of(expected.question), {"rl": rl})
    assert called.question == expected.question


@pytest.mark.parametrize("name", [name for name in QUICK if "uploads" not in EXAMPLES[name]])
def test_an_address_asks_the_same_as_a_body(name: str, client: httpx.Client) -> None:
    params = find_verb(name).question.from_data(EXAMPLES[name]).to_params()
    by_address = client.get(f"/api/v1/{name}", params=params)
    assert by_address.status_code == 200, by_address.text
    assert timeless(by_address.json()) == timeless(client.post(f"/api/v1/{name}", json=EXAMPLES[name]).json())


def test_an_equal_question_has_an_equal_tag_and_is_not_sent_again(client: httpx.Client) -> None:
    params = {"model": "llama-3.1-8b", "on": "dgx-h100", "batch": "8", "context": "2k", "layout": "tp=1"}
    first = client.get("/api/v1/explain", params=params)
    same = client.get("/api/v1/explain", params={**params, "context": "2000"})
    other = client.get("/api/v1/explain", params={**params, "batch": "9"})
    assert first.headers["etag"] == same.headers["etag"] != other.headers["etag"]
    again = client.get("/api/v1/explain", params=params, headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304
    assert again.content == b""
    changed = client.get("/api/v1/explain", params=params, headers={"If-None-Match": other.headers["etag"]})
    assert changed.status_code == 200


def test_figures_that_an_answer_does_not_have_are_refused(client: httpx.Client) -> None:
    found = client.post("/api/v1/explain/view", json={**EXPLAIN, "figures": ["pie"]})
    assert found.status_code == 422
    assert found.json()["allowed"] == "waterfall, roofline, memory, batch"
    assert client.post("/api/v1/explain/view", json={**EXPLAIN, "figures": "pie"}).json()["what"] == "figures"


def test_the_description_describes_requests_and_answers(client: httpx.Client) -> None:
    found = client.get("/api/v1/openapi.json").json()
    asked = {f"/api/v1/{name}{end}" for name in OFFERED for end in ("", "/view")}
    assert set(found["paths"]) == {*asked, "/api/v1/explain/script"}
    parts = found["components"]
    for name in OFFERED:
        for end in ("", "/view"):
            post = found["paths"][f"/api/v1/{name}{end}"]["post"]
            body = post["requestBody"]["content"]["application/json"]
            jsonschema.validate(body["example"], {**body["schema"], "components": parts})
            written = {key for key, one in options(find_verb(name).question).items() if one.output}
            assert not written & set(resolved(body["schema"], parts)["properties"])
    for name in QUICK:
        post = found["paths"][f"/api/v1/{name}/view"]["post"]
        schema = post["responses"]["200"]["content"]["application/json"]["schema"]
        answer = client.post(f"/api/v1/{name}/view", json=EXAMPLES[name]).json()
        jsonschema.validate(answer, {**schema, "components": parts})
    refused = client.post("/api/v1/explain", json={**EXPLAIN, "batch": "many"}).json()
    jsonschema.validate(refused, {"$ref": "#/components/schemas/problem", "components": parts})


def resolved(schema: Mapping[str, Any], parts: Mapping[str, Any]) -> Any:
    return parts["schemas"][schema["$ref"].rsplit("/", 1)[1]]

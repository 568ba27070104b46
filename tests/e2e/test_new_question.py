"""A question is one file: put beside the others it is in the help, Python, schemas, HTTP and files of questions."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rackline
from rackline.api.answer import find_verb
from rackline.api.verbs import entries
from scripts import load_script

PACKAGE = Path(rackline.__file__).parent
PAGE = PACKAGE.parents[1] / "docs" / "how-to" / "add-a-question.md"
KV_BYTES = 32 * 2 * 8 * 128 * 2 * 32_000  # layers, keys and values, heads, their size, bytes, tokens of Llama-3.1-8B


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with the diffs that the how-to shows, one file each."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(PACKAGE, folder / "src" / "rackline")
    shown = re.findall(r"^```diff\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert [one.count("+++ ") for one in shown] == [1, 1]  # a question and an option: a file each
    for one in shown:
        subprocess.run(["git", "apply", "-"], input=one, text=True, check=True, cwd=folder)
    assert (folder / "src" / "rackline" / "api" / "kv.py").is_file()
    return folder / "src"


def run(program: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], env={**os.environ, "PYTHONPATH": str(program), "COLUMNS": "100"},
        capture_output=True, text=True, check=False, cwd=program,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_in_the_help_and_answers_as_a_command(program: Path) -> None:
    assert re.search(r"│ kv +What the KV cache of one sequence takes\. +│", run(program, "-m", "rackline", "--help"))
    text = run(program, "-m", "rackline", "kv", "--help")
    assert "--context" in text
    assert "rackline kv llama-3.1-8b --context 8k,128k" in text
    found = json.loads(run(program, "-m", "rackline", "kv", "llama-3.1-8b", "--context", "32k", "--json"))
    assert found["question"] == {"ask": "kv", "model": "llama-3.1-8b", "context": [32000.0]}
    assert found["rows"] == [{"context_len": 32000.0, "kv_bytes": KV_BYTES}]


def test_it_is_a_function_and_has_schemas(program: Path) -> None:
    script = (
        "import rackline as rl; print(rl.kv('llama-3.1-8b', context='32k').result.rows[0].kv_bytes, hasattr(rl, 'kv'))"
    )
    assert run(program, "-c", script).split() == [f"{KV_BYTES:.1f}", "True"]
    asked = json.loads(run(program, "-m", "rackline", "schema", "kv", "--json"))
    assert asked["$defs"]["kv"]["properties"]["context"]["unit"] == "token"
    answers = json.loads(run(program, "-m", "rackline", "schema", "kv", "--answers", "--json"))
    assert "rows" in answers["$defs"]["kv"]["properties"]


def test_it_has_an_endpoint_and_is_asked_in_files(program: Path) -> None:
    script = """
import json
from starlette.testclient import TestClient
from rackline.web.app import create_app
from rackline.web.asked import Settings
if __name__ == "__main__":
    with TestClient(create_app(Settings()), base_url="http://127.0.0.1:8321") as client:
        print(client.post("/api/v1/kv", json={"model": "llama-3.1-8b", "context": "32k"}).text)
        print(json.dumps("/api/v1/kv/view" in client.get("/api/v1/openapi.json").json()["paths"]))
"""
    (program / "served.py").write_text(script)
    answer, described = run(program, "served.py").splitlines()
    assert json.loads(answer)["rows"][0]["kv_bytes"] == KV_BYTES
    assert json.loads(described)
    (program / "questions.toml").write_text('[[questions]]\nask = "kv"\nmodel = "llama-3.1-8b"\ncontext = "32k"\n')
    found = json.loads(run(program, "-m", "rackline", "ask", "questions.toml", "--json"))
    assert found["answers"][0]["answer"]["rows"][0]["kv_bytes"] == KV_BYTES


def test_an_option_is_one_field_and_a_line_where_it_acts(program: Path) -> None:
    assert "--most" in run(program, "-m", "rackline", "fit", "--help-all")
    words = ["-m", "rackline", "fit", "llama-3.1-8b", "--on", "dgx-h100", "--json"]
    whole, short = (json.loads(run(program, *words, *more)) for more in ([], ["--most", "2"]))
    assert short["rows"] == whole["rows"][:2]
    assert len(whole["rows"]) > 2
    assert short["question"]["most"] == 2
    asked = json.loads(run(program, "-m", "rackline", "schema", "fit"))
    assert asked["$defs"]["fit"]["properties"]["most"]["anyOf"][0]["minimum"] == 1


def test_what_is_read_from_the_text_of_the_files_is_what_they_declare() -> None:
    for name, one in entries().items():
        verb = find_verb(name)
        assert verb.question.ask == name
        declared = verb.entry
        for key in ("group", "place", "line", "examples", "usual", "request", "view", "sweep_s", "is_long"):
            expected, got = getattr(declared, key), getattr(one, key)
            assert (tuple(got) if key == "usual" else got) == expected, (name, key)
    decorated = sum(file.read_text("utf-8").count("\n@asks(") for file in PACKAGE.rglob("*.py"))
    assert decorated == len(entries())


def test_the_index_and_what_type_checkers_read_are_up_to_date() -> None:
    script = load_script("public_names")
    assert script.STUB.read_text("utf-8") == script.stub(), "run bench/public_names.py"
    assert script.INDEX.read_text("utf-8") == script.index_text(), "run bench/public_names.py"

"""A command whose extra is not installed says in one line which one it needs and what works without it."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

import rackline as rl
from rackline.cli.main import run
from rackline.errors import InputError
from rackline.late import _EXTRA_OF, load_optional, missing_extra

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
SPACE = """
[options]
model = "llama-3.1-8b"
on = "dgx-h100"
layout = "tp=1"
batch = [1, 2]
context = "4k"

[objectives]
usd_per_mtok_output = "min"
"""
PLAN = "plan llama-3.1-8b --on dgx-h100 --tpot 50ms"
SIMULATE = "simulate llama-3.1-8b --on dgx-h100 --layout tp=1 --rate 1 --requests 10"


@pytest.mark.parametrize(
    ("module", "extra", "command"),
    [
        ("polars", "sweep", "sweep space.toml"),
        ("polars", "sweep", "sweep space.toml --dry-run"),
        ("polars", "sweep", "sweep space.toml --search"),
        ("polars", "sweep", "sweep show space"),
        ("polars", "sweep", f"{SIMULATE} --series run.parquet"),
        ("fsspec", "sweep", "sweep space.toml --out memory://here"),
        ("ray", "ray", "sweep space.toml --ray local"),
        ("vl_convert", "plot", f"{PLAN} --plot front.svg"),
        ("jax", "lab", "lab cipher --quick"),
        ("jax", "lab", "measure --output machine.toml"),
        ("fastapi", "web", "web --no-browser"),
        ("uvicorn", "web", "web --no-browser"),
        ("jinja2", "web", "web --export page"),
    ],
)
def test_a_missing_extra_names_itself(
    module: str, extra: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "space.toml").write_text(SPACE)
    for loaded in [name for name in sys.modules if name.startswith("rackline.web.")]:
        monkeypatch.delitem(sys.modules, loaded)  # as in a new process
    monkeypatch.setitem(sys.modules, module, None)
    assert run(command.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"no {module} in this environment" in err
    assert f"pip install 'rackline[{extra}]'" in err
    assert f"uv run --extra {extra} rackline" in err
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["space.toml"]


def test_from_python_it_is_an_input_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    space = {"options": {"model": "llama-3.1-8b", "on": "dgx-h100", "layout": "tp=1"}}
    with pytest.raises(InputError, match="the extra sweep"):
        rl.sweep(space, out=str(tmp_path / "out"))


def test_the_table_is_that_of_the_project() -> None:
    extras = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(_EXTRA_OF.values()) == set(extras) - {"fast"}
    brought_along = {"starlette": "fastapi", "vl_convert": "vl-convert-python"}
    for module, extra in _EXTRA_OF.items():
        assert any(one.startswith(brought_along.get(module, module)) for one in extras[extra]), module


def test_what_no_extra_brings_stays_the_error_that_it_is() -> None:
    error = ModuleNotFoundError("No module named 'nothing'", name="nothing")
    assert missing_extra(error, what="rackline plan") is error
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        load_optional("no_such_module", what="rackline plan")

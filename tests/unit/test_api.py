"""Questions from Python: the same answers, defaults and errors as the commands."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

import rackline as rl
from helpers import call_json
from rackline.api.answer import SCHEMA_VERSION, find_verb
from rackline.api.verbs import functions
from rackline.plain import plain


def test_python_and_the_command_line_give_the_same_json(capsys: pytest.CaptureFixture[str]) -> None:
    said = call_json(capsys, "fit", "llama-3.1-70b", "--on", "dgx-h100", "--context", "32k", "--chips", "4")
    answer = rl.fit("llama-3.1-70b", on="dgx-h100", context=32000, chips=4)
    assert json.loads(json.dumps(answer.to_dict())) == said
    assert said["schema_version"] == SCHEMA_VERSION
    assert rl.answer(answer.question).to_dict() == answer.to_dict()


def test_objects_stand_for_names() -> None:
    cluster, model = rl.cluster("dgx-h100"), rl.model("llama-3.1-70b")
    by_name = rl.explain("llama-3.1-70b", on="dgx-h100", batch=64, context=8000, layout="tp=8").to_dict()
    numbers = rl.calibration(by_name["calibration"], cluster.chip)
    assert by_name.pop("defaults")
    by_object = rl.explain(
        model, on=cluster, batch=64, context="8k", layout=rl.Layout(tp=8), calibration=numbers
    ).to_dict()
    assert by_object.pop("question")["model"] == by_name.pop("question")["model"] == "llama-3.1-70b"
    assert by_object == by_name


def test_settings_need_something_with_a_name() -> None:
    with pytest.raises(rl.RacklineError, match="by name"):
        rl.fit(rl.model("llama-3.1-8b"), on=rl.cluster("dgx-h100"), set={"hbm_bytes": 1e12})


def test_answers_are_short_and_become_tables() -> None:
    answer = rl.explain("llama-3.1-70b", on="dgx-h100", batch=64, context="8k", layout="tp=8")
    assert len(repr(answer).splitlines()) <= 2
    assert "ms a pass" in repr(answer)
    table = answer.to_frame()
    assert table.shape[0] == len(answer.to_dict()["rows"])
    assert "seconds" in table.columns
    assert "llama-3.1-70b" in answer._repr_html_()


def test_frame_without_a_library_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = rl.fit("llama-3.1-8b", on="dgx-h100")
    monkeypatch.setattr("rackline.report.exports.find_spec", lambda name: None)
    with pytest.raises(rl.RacklineError, match="pip install polars"):
        answer.to_frame()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"contxt": "8k"}, "nearest: context"),
        ({"context": "-1"}, "context: got '-1'"),
        ({"chips": 2.5}, "a whole number"),
        ({"memory_fraction": 1.5}, "nearest: 100 %"),
        ({"model": "twice"}, "model"),
    ],
)
def test_errors_are_of_the_one_tree_and_name_the_keyword(wrong: dict[str, object], words: str) -> None:
    with pytest.raises((rl.RacklineError, TypeError), match=words):
        rl.fit("llama-3.1-8b", **{"on": "dgx-h100", **wrong})  # type: ignore[arg-type]
    with pytest.raises(rl.RacklineError, match="on: got 'nothing'"):
        rl.fit("llama-3.1-8b")  # type: ignore[call-arg]


def test_names_of_the_package_are_the_public_ones() -> None:
    assert dir(rl) == sorted(rl.__all__)
    for name, one in functions().items():
        function = getattr(rl, name)
        assert inspect.signature(function).parameters, name
        assert ">>> " in (function.__doc__ or ""), name
        assert find_verb(one.name).question.ask == one.name


def test_the_package_is_typed() -> None:
    assert (Path(rl.__file__).parent / "py.typed").is_file()


@pytest.mark.parametrize("command", [[], ["fit"], ["explain"]])
def test_help_imports_nothing_heavy(command: list[str]) -> None:
    program = (
        "import sys; from rackline.cli.main import run; "
        f"run([*{command!r}, '--help']); "
        "found = {'numpy', 'scipy', 'pydantic', 'polars'} & set(sys.modules); "
        "sys.exit(' '.join(found) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=1200)
    assert result.returncode == 0, result.stderr


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inner:
    seconds: float
    hidden: int = 0

    json_keys: ClassVar = ("seconds", "twice=doubled()")

    def doubled(self) -> float:
        return 2 * self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outer:
    name: str
    inner: _Inner | None
    several: tuple[_Inner, ...] = ()

    json_keys: ClassVar = ("name", "first=several.0", "part.s=inner.seconds", "part.missing=inner.hidden", "*inner")


def test_plain_follows_what_a_class_declares() -> None:
    inner = _Inner(seconds=1.5)
    found = plain(_Outer(name="a", inner=inner, several=(inner,)))
    assert found == {
        "name": "a",
        "first": {"seconds": 1.5, "twice": 3.0},
        "part": {"s": 1.5, "missing": 0},
        "seconds": 1.5,
        "twice": 3.0,
    }
    assert plain(_Outer(name="a", inner=None)) == {"name": "a", "first": None, "part": {"s": None, "missing": None}}
    assert plain([float("nan"), float("inf"), {1: {2}}]) == [None, None, {"1": [2]}]
    with pytest.raises(TypeError, match="no plain form"):
        plain(object())


def test_nothing_is_the_default_of_a_field_that_is_never_nothing() -> None:
    from rackline.api.models import ModelsQuestion

    usual = ModelsQuestion()
    assert ModelsQuestion.from_params({"on": "", "dtype": ""}) == usual
    assert ModelsQuestion.from_data({"on": None}) == usual
    assert ModelsQuestion.from_data({"name": None}) == usual

"""Help fits a screen, shows what is used most, and the rest on request."""

from __future__ import annotations

import re

import pytest

from rackline.api.verbs import GROUPS
from rackline.cli.main import commands, run


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run([*words]) == 0
    return capsys.readouterr().out


def test_every_command_stands_under_one_heading_with_one_line_and_examples(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = shown(capsys, "--help")
    for title in GROUPS:
        assert f"─ {title} ─" in text
    for name, one in commands().items():
        assert one.group in GROUPS
        assert re.search(rf"│ {name} +{re.escape(one.line)} +│", text), name
        assert f"rackline {name.replace('-show', ' show')}" in one.examples
    for word in ("tp, pp, ep", "attention_dp", "ttft, tpot"):
        assert word in text


@pytest.mark.parametrize("name", sorted(commands()))
def test_the_help_of_a_command_fits_a_screen(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    short = shown(capsys, name, "--help")
    everything = shown(capsys, name, "--help-all")
    assert len(short.splitlines()) <= 42
    assert f"rackline {name}" in short
    flags = re.compile(r"(?m)^│ +\*? *(--[a-z-]+)")
    few, all_of_them = set(flags.findall(short)), set(flags.findall(everything))
    assert few <= all_of_them
    if commands()[name].usual:
        assert few < all_of_them
        assert f"rackline {name} --help-all" in short
        assert "ttft, tpot" in everything
    else:
        assert few == all_of_them

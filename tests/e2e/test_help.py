"""Help fits a screen, shows what is used most, and the rest on request."""

from __future__ import annotations

import re

import pytest

from rackline.cli.help import COMMANDS, EXAMPLES, GROUPS, USUAL
from rackline.cli.main import run


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run([*words]) == 0
    return capsys.readouterr().out


def test_every_command_stands_under_one_heading_with_one_line_and_examples(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(COMMANDS)
    assert set(EXAMPLES) == {"", *COMMANDS}
    text = shown(capsys, "--help")
    for title in GROUPS:
        assert f"─ {title} ─" in text
    for name, line in COMMANDS.items():
        assert re.search(rf"│ {name} +{re.escape(line)} +│", text), name
    for word in ("tp, pp, ep", "attention_dp", "ttft, tpot"):
        assert word in text


@pytest.mark.parametrize("name", sorted(COMMANDS))
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
    if name in USUAL:
        assert few < all_of_them
        assert f"rackline {name} --help-all" in short
        assert "ttft, tpot" in everything
    else:
        assert few == all_of_them

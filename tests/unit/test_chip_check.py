"""`chips FILE --check`: one command says all that is missing or doubtful in the record of a chip."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

import rackline as rl
from rackline.catalog import names
from rackline.cli.main import run
from rackline.errors import InputError, RacklineError
from rackline.hardware import chip_record
from rackline.hardware.chip_check import check_chip

BARE = """
name = "bare"
full_name = "Bare"
vendor = "Acme"
generation = "acme-1"
hbm_bytes = 103_079_215_104
hbm_bytes_per_s = 4e12

[peak_flop_per_s]
bf16 = 1e15

[[sources]]
fields = ["*"]
kind = "vendor"
citation = "data sheet"
"""


def found(text: str, folder: Path, **changes: str) -> Mapping[str, str]:
    """Key and state of each finding, of a file in which values were replaced."""
    for key, value in changes.items():
        text, count = re.subn(rf"^{key} = .*$", f"{key} = {value}", text, flags=re.M)
        assert count == 1, key
    path = folder / "bare.toml"
    path.write_text(text)
    return {finding.key: finding.state for finding in rl.chips(str(path), check=True).result.findings}


def test_a_bare_chip_lacks_what_it_does_not_state(tmp_path: Path) -> None:
    states = found(BARE, tmp_path)
    assert set(states.values()) == {"missing"}
    assert {"power_w", "cores", "usd_per_chip_hour", "driver_bytes", "generation", "peak_flop_per_s.fp8"} <= set(states)
    assert "rents" not in states, "said of the price already"


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"hbm_bytes": "96e9"}, "hbm_bytes"),  # decimal, as in a data sheet
        ({"hbm_bytes_per_s": "4e9"}, "hbm_bytes_per_s"),  # GB for TB
        ({"bf16": "1e15\nfp8 = 4e15"}, "peak_flop_per_s.fp8"),  # with structured sparsity
        ({"bf16": "1e12"}, "peak_flop_per_s"),  # TFLOP for PFLOP
        ({"generation": '"acme-1"\npower_w = 1.0'}, "power_w"),  # kW for W
        ({"generation": '"acme-1"\nusd_per_chip_hour = 300.0'}, "usd_per_chip_hour"),  # a day for an hour
    ],
)
def test_slips_are_doubtful(changes: dict[str, str], key: str, tmp_path: Path) -> None:
    assert key not in {name for name, state in found(BARE, tmp_path).items() if state == "doubtful"}
    assert found(BARE, tmp_path, **changes).get(key) == "doubtful"


def test_numbers_of_the_template_are_doubtful_until_they_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rl.new("chip", "my-chip", like="b200")
    doubtful = [one for one in rl.chips("my-chip.toml", check=True).result.findings if one.state == "doubtful"]
    (finding,) = doubtful
    assert "numbers of b200-sxm" in finding.why
    assert "hbm_bytes" in finding.key


def test_a_measured_chip_has_its_kernels_and_a_sibling_says_whose_it_takes() -> None:
    assert "measured kernels" not in {one.key for one in check_chip(chip_record("h100-sxm"))}
    (of_sibling,) = [one for one in check_chip(chip_record("h800-sxm")) if one.key == "measured kernels"]
    assert "h100-sxm" in of_sibling.why
    (of_stranger,) = [one for one in check_chip(chip_record("tpu-v7")) if one.key == "generation"]
    assert "tens of percent" in of_stranger.effect


def test_every_missing_key_was_not_stated() -> None:
    """A finding names a key that the record does not set, and most chips of the catalogue lack little."""
    for name in names("chips"):
        record = chip_record(name)
        for finding in check_chip(record):
            if finding.state == "missing" and finding.key in type(record).model_fields and finding.key != "generation":
                assert finding.key not in record.numbers()


def test_what_is_required_is_refused_in_one_message(tmp_path: Path) -> None:
    """`--check` on a file without required keys names all of them at once."""
    path = tmp_path / "bare.toml"
    path.write_text(re.sub(r"^(vendor|hbm_bytes|hbm_bytes_per_s) = .*\n", "", BARE, flags=re.M))
    with pytest.raises(RacklineError) as refused:
        rl.chips(str(path), check=True)
    for key in ("vendor", "hbm_bytes", "hbm_bytes_per_s"):
        assert key in str(refused.value)


def test_command_line_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bare.toml"
    path.write_text(BARE)
    assert run(["chips", str(path), "--check"]) == 0
    shown = capsys.readouterr().out
    assert "bare can be used: " in shown
    assert "power_w" in shown
    assert run(["chips", str(path), "--check", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["chip"] == "bare"
    assert {"key", "state", "why", "effect"} == set(answer["findings"][0])


def test_check_needs_one_chip() -> None:
    with pytest.raises(InputError, match="name of one chip"):
        rl.chips(check=True)
    with pytest.raises(InputError, match="name of one chip"):
        rl.chips("h100", check=True, ridge=True)

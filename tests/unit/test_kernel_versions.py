"""Kernels of older versions of a stack: what is fitted to their tables, and which version a question gets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import deploy
from rackline.catalog import apart, calibration_record
from rackline.cli.main import run
from rackline.errors import InputError
from rackline.fitting.amounts import amounts
from rackline.fitting.fit import KernelFit, groups_of, seconds
from rackline.fitting.run import calibrate_class
from rackline.fitting.tables import FEWEST_ROWS, read_tables
from rackline.hardware import chip
from rackline.passes import Batch, calibration
from rackline.passes.fallback import at_version, split_version
from rackline.validation.cases import Case, case_from
from rackline.validation.resolve import Resolver

H100, B200 = chip("h100-sxm"), chip("b200-sxm")
TRUTH = {"overhead_s": 5e-6, "eta_compute": 0.7, "eta_memory": 0.8, "exposed": 0.2, "depth_s": 3e-10}


def fitted(folder: Path, **older: dict[str, float]) -> KernelFit:
    """The fit of products of vLLM 1.2, with tables of older versions ("v1_1") that follow these numbers, 2 % noise."""
    shapes = [(m, n, k) for m in (1, 16, 64, 512, 4096) for n in (1024, 8192) for k in (1024, 4096, 16384)]
    header = "chip,stack,stack_version,dtype,m,n,k,seconds"
    path = folder / "gemm.csv"
    rows = [f"h100-sxm,vllm,1.2,bfloat16,{m},{n},{k},1" for m, n, k in shapes]
    path.write_text("\n".join([header, *rows]))
    (table,) = read_tables([path], (H100.name,))
    sizes = list(zip(*(table.columns[name] for name in "mnk"), strict=True))
    lines = [header]
    draw = np.random.default_rng(3)
    for version, numbers in {"v1_2": {}, **older}.items():
        times = seconds({**TRUTH, **numbers}, amounts(table, H100)) * np.exp(draw.normal(0.0, 0.02, len(sizes)))
        name = version.removeprefix("v").replace("_", ".")
        lines += [
            f"h100-sxm,vllm,{name},bfloat16,{m:.0f},{n:.0f},{k:.0f},{time!r}"
            for (m, n, k), time in zip(sizes, times.tolist(), strict=True)
        ]
    path.write_text("\n".join(lines))
    (fit,) = calibrate_class(groups_of(read_tables([path], (H100.name,)), {H100.name: H100})).fits
    return fit


def test_a_slower_older_version_has_numbers_of_its_own(tmp_path: Path) -> None:
    fit = fitted(tmp_path, v1_1={"eta_compute": 0.69}, v1_0={"eta_compute": 0.4, "eta_memory": 0.5})
    assert (fit.group.stack_version, fit.oldest_version) == ("1.2", "1.1")
    (older,) = fit.older
    assert (older.stack_version, older.oldest_version, older.rows) == ("1.0", "1.0", 30)
    assert older.values["eta_compute"] == pytest.approx(0.4, rel=0.06)
    assert older.values["eta_memory"] == pytest.approx(0.5, rel=0.06)
    assert older.median_error < 0.05 < 0.2 < older.newer_error


def test_ten_shared_shapes_tell_that_versions_run_the_same_kernel(tmp_path: Path) -> None:
    """Shapes that only an older version measured count for the newest one, if ten others took both the same time."""
    header, path = "chip,stack,stack_version,dtype,m,n,k,seconds", tmp_path / "gemm.csv"
    for shared, counted in ((FEWEST_ROWS - 1, 0), (FEWEST_ROWS, 5)):
        newest = [f"h100-sxm,vllm,1.2,bfloat16,{m},1024,4096,{m * 1e-6!r}" for m in range(1, 21)]
        older = [f"h100-sxm,vllm,1.1,bfloat16,{m},1024,4096,{m * 1e-6!r}" for m in range(21 - shared, 26)]
        path.write_text("\n".join([header, *newest, *older]))
        (table,) = read_tables([path], (H100.name,))
        assert len(table.seconds) == 20 + counted


def test_versions_that_take_the_same_time_share_numbers(tmp_path: Path) -> None:
    fit = fitted(tmp_path, v1_1={}, v1_0={"overhead_s": 5.1e-6})
    assert fit.oldest_version == "1.0"
    assert fit.older == ()


def test_numbers_of_a_commit_serve_every_version() -> None:
    mi355x = chip("mi355x")
    newest, found = calibration("atom", mi355x), calibration("atom=0.18", mi355x)
    assert found.version == "0.18"
    assert found.nearest == ()
    assert {key: one.eta_memory for key, one in found.operations.items()} == {
        key: one.eta_memory for key, one in newest.operations.items()
    }
    with pytest.raises(InputError, match="AITER"):
        apart("0.18", "AITER e4048607", "AITER e4048607")


def step_s(name: str) -> float:
    """A decode step of DeepSeek-V3, whose products are block-scaled fp8, on 8 B200 [s]."""
    one = deploy("deepseek-v3", "tp=8", on="dgx-b200", label="native", calibration=name)
    return float(one.table().time(Batch(decode_sequences=64.0, context_len=1000.0, group_tokens=64.0)).seconds)


def test_the_nearest_version_counts() -> None:
    record = calibration_record("trtllm")
    older = {one.stack_version for one in record.older_operation if one.chip == B200.name}
    assert older == {"1.3.0rc15"}
    for version, said in (("1.2.0", True), ("1.3.0rc15", True), ("1.3.0rc20", False), ("1.4.0", False)):
        changed, nearest = at_version(record, B200.name, version)
        assert bool(nearest) is said, version
        (entry,) = [
            one
            for one in changed.operation
            if (one.chip, one.operation_class, one.dtype) == (B200.name, "gemm", "fp8_block")
        ]
        assert entry.stack_version == ("1.3.0rc15" if said else "1.3.0rc20")
    newest, old = (calibration(name, B200) for name in ("trtllm", "trtllm=1.2.0"))
    assert old.label == "trtllm=1.2.0"
    assert "gemm fp8_block of 1.3.0rc15" in old.of_versions
    assert old.operations["gemm", "bf16"] == newest.operations["gemm", "bf16"]
    assert step_s("trtllm=1.2.0") > 1.02 * step_s("trtllm")
    assert step_s("trtllm=1.3.0rc20") == step_s("trtllm")


def test_of_two_as_near_the_newer_counts_and_other_chips_are_as_they_are() -> None:
    record = calibration_record("trtllm")
    assert at_version(record, H100.name, "1.2.0") == (record, ())
    h200 = chip("h200-sxm")
    (said,) = at_version(calibration_record("vllm"), h200.name, "0.14.1")[1]
    assert said == "all-reduce of 0.14.0"
    assert at_version(calibration_record("vllm"), h200.name, "0.18.0")[1] == ()


@pytest.mark.parametrize(
    ("given", "expected"),
    [("vllm=0.11.1", ("vllm", "0.11.1")), ("auto", ("auto", "")), ("a=b.toml", ("a=b.toml", ""))],
)
def test_a_version_is_read_from_a_name(given: str, expected: tuple[str, str]) -> None:
    assert split_version(given) == expected


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("generic=1.0", "allowed: a version only of"),
        ("vlm=0.11", "nearest: vllm"),
        ("vllm=new", "allowed: a version such as"),
    ],
)
def test_what_has_no_version_is_refused(given: str, error: str) -> None:
    with pytest.raises(InputError, match=error):
        split_version(given)


def case(version: str) -> Case:
    data: dict[str, Any] = {
        "id": f"x{version}",
        "kind": "serve",
        "model": "deepseek-v3",
        "chip": B200.name,
        "num_chips": 8,
        "stack": "trtllm",
        "stack_version": version,
        "precision": "fp8_block",
        "layout": {"tp": 8},
        "input_len": 1000,
        "output_len": 100,
        "concurrency": 8,
        "measured": {"tpot_s": 0.01},
    }
    found = case_from(data, "x, line 1", {})
    assert isinstance(found, Case)
    return found


def test_a_case_gets_the_kernels_of_its_version() -> None:
    resolver = Resolver()
    old, newest = resolver.calibration(case("1.2.0"), B200), resolver.calibration(case("1.3.0rc20"), B200)
    assert old.nearest == ("gemm fp8_block of 1.3.0rc15",)
    assert newest is resolver.calibration(case(""), B200)
    assert newest.nearest == ()
    # release numbers of Dynamo are not those of the engine inside
    given = case("1.2.0")
    of_dynamo = replace(given, values={**given.values, "image": "nvcr.io/nvidia/ai-dynamo/x:1.2.0"})
    assert resolver.calibration(of_dynamo, B200) is newest
    assert Resolver(calibration_name="vllm").calibration(case("1.2.0"), B200).name == "vllm"


def test_explain_says_which_versions(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["explain", "deepseek-v3", "--on", "dgx-b200", "--layout", "tp=8", "--batch", "8", "--context", "1k"]
    assert run([*words, "--engine", "trtllm=1.2.0", "--calibration", "trtllm"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "calibration trtllm=1.2.0, measured on b200-sxm up to 1.3.0rc20 (1.2.0 launched: versions left out 6" in text
    assert "; gemm fp8_block of 1.3.0rc15 (nearest version" in text
    assert run([*words, "--calibration", "trtllm=latest"]) == 2
    assert "version of trtllm: got 'latest'" in " ".join(capsys.readouterr().err.split())

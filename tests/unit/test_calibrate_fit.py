"""Known parameters are found again; bad fits are rejected; collectives; files."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rackline.catalog.calibrations import CalibrationRecord
from rackline.fitting.amounts import amounts
from rackline.fitting.collectives import calibrate_collectives, custom_seconds, ring_seconds, wire_bytes
from rackline.fitting.fit import TERMS, fit_line, seconds, slopes, terms_of
from rackline.fitting.run import CalibrationResult, alone_against_siblings, calibrate, gross_outliers
from rackline.fitting.tables import Measurements, read_tables
from rackline.fitting.write import generic_file, merged_file, stack_file
from rackline.hardware import Chip, chip

CHIPS = {name: chip(name) for name in ("h100-sxm", "h200-sxm")}
TRUTH = {"overhead_s": 5e-6, "eta_compute": 0.7, "eta_memory": 0.8, "exposed": 0.2, "depth_s": 3e-10}
LINKS = {"h100-sxm": 450e9, "h200-sxm": 450e9}


def gemm(on: Chip, stack: str = "vllm", dtype: str = "bfloat16", **truth: float) -> Measurements:
    """A table whose times follow the line exactly, but for 3 % noise."""
    shapes = np.array([(m, n, k) for m in (1, 16, 64, 512, 4096) for n in (1024, 8192) for k in (1024, 4096, 16384)])
    columns = {name: shapes[:, i].astype(float) for i, name in enumerate("mnk")}
    count = len(shapes)
    table = Measurements(
        table="gemm",
        chip=on.name,
        stack=stack,
        stack_version="1.0",
        labels=(dtype,),
        columns=columns,
        words={},
        seconds=np.ones(count),
        families=(shapes[:, 1] * 7 + shapes[:, 2]).astype(np.int64),
    )
    noise = np.exp(np.random.default_rng(1).normal(0.0, 0.03, count))
    times = seconds({**TRUTH, **truth}, amounts(table, on)) * noise
    from dataclasses import replace

    return replace(table, seconds=times)


def run(*tables: Measurements) -> CalibrationResult:
    return calibrate(tables, chips=CHIPS, links=LINKS, models=[], processes=1)


def test_known_parameters_are_recovered() -> None:
    table = gemm(CHIPS["h100-sxm"])
    start = {term.name: term.start for term in TERMS["gemm"]}
    found = fit_line(TERMS["gemm"], amounts(table, CHIPS["h100-sxm"]), table.seconds, start, 0.001)
    for name, value in TRUTH.items():
        assert found[name] == pytest.approx(value, rel=0.25 if name == "exposed" else 0.1), name


def test_shares_stay_below_one_where_the_table_beats_the_peak() -> None:
    table = gemm(CHIPS["h100-sxm"], eta_memory=1.6, eta_compute=1.3)
    start = {term.name: term.start for term in TERMS["gemm"]}
    found = fit_line(TERMS["gemm"], amounts(table, CHIPS["h100-sxm"]), table.seconds, start, 0.01)
    assert found["eta_memory"] <= 1.0
    assert found["eta_compute"] <= 1.0


@pytest.mark.parametrize("op_class", [*sorted(TERMS), "attention_decode", "sparse_prefill"])
def test_transforms_are_inverse(op_class: str) -> None:
    terms = terms_of(replace(amounts(gemm(CHIPS["h100-sxm"], dtype="fp8"), CHIPS["h100-sxm"]), op_class=op_class))
    start = {term.name: term.start for term in terms}
    assert {term.name: term.decode(term.encode(term.start)) for term in terms} == pytest.approx(start)


@pytest.mark.parametrize("cached", [0.3, 1e9])
@pytest.mark.parametrize("exposed", [0.0, 0.4])
def test_slopes_are_those_of_the_times(cached: float, exposed: float) -> None:
    """Of every parameter, with and without bytes that the cache holds, and of a row that is fitted with another."""
    one = amounts(gemm(CHIPS["h100-sxm"], dtype="fp8"), CHIPS["h100-sxm"])
    rows = np.linspace(1.0, 2.0, len(one.depth))
    one = replace(one, tiles=rows, permute_memory_s=1e-6 * rows, cache_s=1e-6 * rows)
    work = replace(one, others=(replace(one, op_class="other"),))
    values = {term.name: term.start for name in ("gemm", "moe") for term in TERMS[name]}
    values |= {"exposed": exposed, "cached": cached, "quantise_s": 1e-6}
    values |= {f"other.{name}": 1.3 * value for name, value in values.items()}
    found = slopes(values, work)
    assert found.keys() == values.keys()
    for name, value in values.items():
        step = 1e-6 * (value or 1.0)
        more, less = (np.log(seconds({**values, name: value + by}, work)) for by in (step, -step))
        assert found[name] == pytest.approx((more - less) / (2.0 * step), rel=1e-4, abs=1e-8 / (value or 1.0)), name


def test_a_small_table_leans_on_its_parent() -> None:
    table = gemm(CHIPS["h100-sxm"])
    keep = np.zeros(len(table.seconds), dtype=np.bool_)
    keep[:2] = True  # two memory-bound rows say nothing of eta_compute
    parent = {**TRUTH, "eta_compute": 0.43}
    work = amounts(table, CHIPS["h100-sxm"]).take(keep)
    found = fit_line(TERMS["gemm"], work, table.seconds[keep], parent, 0.01)
    assert found["eta_compute"] == pytest.approx(0.43, rel=0.05)


def test_errors_are_of_rows_that_were_not_fitted() -> None:
    result = run(gemm(CHIPS["h100-sxm"]), gemm(CHIPS["h200-sxm"]))
    for fit in result.kernels:
        assert fit.errors.median_error is not None
        assert 0.005 < fit.errors.median_error < 0.06  # 3 % noise
        assert fit.errors.family_median_error is not None
        assert fit.errors.ideal_median_error > 0.2
    assert result.rejected == {}


def test_a_host_bound_table_is_rejected_and_parents_do_not_learn_from_it() -> None:
    good = [gemm(CHIPS["h100-sxm"], stack) for stack in ("sglang", "trtllm")]
    result = run(*good, gemm(CHIPS["h100-sxm"], "vllm", overhead_s=2e-4))
    reason = result.rejected["h100-sxm", "vllm", "gemm", "bf16"]
    assert "host-bound" in reason
    assert result.parents["gemm"]["bf16"].everywhere["overhead_s"] < 1e-5


def test_an_outlier_needs_to_be_far_above_its_kind() -> None:
    result = run(gemm(CHIPS["h100-sxm"], "vllm"), gemm(CHIPS["h100-sxm"], "trtllm", overhead_s=1.5e-5))
    assert gross_outliers([(fit.group, fit.values) for fit in result.kernels]) == {}


def test_a_stack_alone_against_two_siblings() -> None:
    ones = np.ones(5)
    assert alone_against_siblings({"a": ones, "b": 2 * ones}) == {}
    assert alone_against_siblings({"a": ones, "b": 2 * ones, "c": 4 * ones}) == {}
    assert list(alone_against_siblings({"a": ones, "b": 1.2 * ones, "c": 3 * ones})) == ["c"]


def collective(name: str, size: int, times: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Measurements:
    custom = name.endswith("graph")
    return Measurements(
        table="custom_all_reduce" if custom else "collective",
        chip="h100-sxm",
        stack="vllm" if custom else "nccl",
        stack_version="2.29",
        labels=(name, str(size)),
        columns={"message_bytes": MESSAGES},
        words={},
        seconds=times,
        families=np.zeros(len(times), dtype=np.int64),
    )


MESSAGES = 2.0 ** np.arange(9, 30)


def test_a_ring_is_recovered() -> None:
    truth = {"overhead_s": 2e-5, "eta_link": 0.8, "ramp": 0.5}
    times = ring_seconds(truth, wire_bytes("all_reduce_ring", MESSAGES, 8) / 450e9)
    (fit,) = calibrate_collectives([collective("all_reduce", 8, times)], LINKS)
    assert fit.op_class == "all_reduce_ring"
    assert fit.values == pytest.approx(truth, rel=0.05)
    assert fit.errors.median_error is not None
    assert fit.errors.median_error < 0.02


def test_a_custom_all_reduce_is_the_faster_of_two() -> None:
    truth = {"overhead_s": 5e-6, "eta_link": 0.6, "extra_s": 4e-6, "eta_link_two": 0.8, "ramp_two": 0.3}
    one, two = (wire_bytes(f"all_reduce_{name}_shot", MESSAGES, 8) / 450e9 for name in ("one", "two"))
    times = custom_seconds(truth, one, two)
    (fit,) = calibrate_collectives([collective("vllm_graph", 8, times)], LINKS)
    assert np.abs(custom_seconds(fit.values, one, two) / times - 1).max() < 0.1
    assert fit.values["extra_s"] > 0


def test_files_are_records_of_the_catalogue() -> None:
    times = ring_seconds({"overhead_s": 2e-5, "eta_link": 0.8}, wire_bytes("all_reduce_ring", MESSAGES, 8) / 450e9)
    bad = gemm(CHIPS["h200-sxm"], "vllm", overhead_s=3e-4)
    good = [gemm(CHIPS[name], stack) for name in CHIPS for stack in ("trtllm", "sglang")]
    result = run(*good, bad, collective("all_reduce", 8, times))
    for text in (stack_file(result, "trtllm"), generic_file(result), merged_file(result, "mine")):
        data = tomllib.loads(text)
        record = CalibrationRecord.model_validate(_tuples(data))
        assert record.operation
    assert "operation" not in tomllib.loads(stack_file(result, "vllm"))
    assert "# Rejected" in stack_file(result, "vllm")
    merged = tomllib.loads(merged_file(result, "mine"))
    entry = next(e for e in merged["operation"] if e["chip"] == "h200-sxm")
    assert entry["note"] in ("trtllm", "sglang")
    assert entry["evidence"] == "measured"
    assert {e["chip"] for e in merged["operation"] if e.get("evidence") == "derived"} == {"*", "hopper"}  # the parents
    assert [e["class"] for e in merged["collective"] if e["chip"] == "h100-sxm"] == ["all_reduce_ring"]


def test_files_of_all_stacks_and_of_one_hold_collectives_alike() -> None:
    """What the host limited is of chips without peer access; an exchange says nothing of other chips."""
    wire = [wire_bytes("all_reduce_ring", MESSAGES, size) / 450e9 for size in (2, 8)]
    fast, slow = (
        ring_seconds({"overhead_s": 2e-5, "eta_link": eta}, one) for eta, one in zip((0.8, 0.1), wire, strict=True)
    )
    fits = calibrate_collectives([collective("all_reduce", 2, fast), collective("all_reduce", 8, slow)], LINKS)
    own = replace(fits[0], stack="vllm", op_class="dispatch_low_latency", group_size=8, chip="h200-sxm")
    result = replace(run(gemm(CHIPS["h100-sxm"])), collectives=(*fits, own))
    merged, generic = (tomllib.loads(text) for text in (merged_file(result, "mine"), generic_file(result)))
    classes = {(e["chip"], e["class"]) for e in merged["collective"]}
    assert ("h100-sxm", "all_reduce_ring_staged") in classes
    assert {"dispatch_low_latency"} == {name for where, name in classes if where == "h200-sxm"}
    parents = [[e for e in data["collective"] if e["chip"] == "*"] for data in (merged, generic)]
    assert parents[0] == parents[1]
    assert {e["class"] for e in parents[0]} == {"all_reduce_ring_staged"}
    assert "limited by the host" in merged_file(result, "mine")


def _tuples(value: object) -> object:
    if isinstance(value, dict):
        return {str(k): _tuples(v) for k, v in value.items()}
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    return value


def test_the_command_writes_nothing_on_a_bad_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rackline.cli.main import run as run_command

    table = tmp_path / "gemm.csv"
    table.write_text("chip,stack,stack_version,dtype,m,n,k,seconds\nh100-sxm,vllm,1,bfloat16,1,1,1,-1\n")
    out = tmp_path / "c.toml"
    assert run_command(["calibrate", str(table), "-o", str(out)]) == 2
    assert "gemm.csv:2: seconds: got '-1'" in capsys.readouterr().err
    assert not out.exists()


def test_the_command_writes_a_calibration_that_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rackline.catalog import calibration_record
    from rackline.cli.main import run as run_command

    measured = gemm(CHIPS["h100-sxm"])
    lines = ["chip,stack,stack_version,dtype,m,n,k,seconds"]
    lines += [
        f"h100-sxm,vllm,1,bfloat16,{m:.0f},{n:.0f},{k:.0f},{t!r}"
        for m, n, k, t in zip(*measured.columns.values(), measured.seconds.tolist(), strict=True)
    ]
    table, out = tmp_path / "any.csv", tmp_path / "mine.toml"
    table.write_text("\n".join(lines) + "\n")
    assert run_command(["calibrate", str(table), "-o", str(out), "--processes", "1"]) == 0
    assert "gemm bf16" in capsys.readouterr().out
    record = calibration_record(str(out))
    own = next(entry for entry in record.operation if entry.chip == "h100-sxm")
    assert own.eta_memory == pytest.approx(TRUTH["eta_memory"], rel=0.1)


def test_a_table_of_collectives_is_read_and_fitted(tmp_path: Path) -> None:
    header = "chip,stack,stack_version,collective,num_chips,message_bytes,seconds"
    times = ring_seconds({"overhead_s": 1e-5, "eta_link": 0.7}, wire_bytes("all_gather", MESSAGES, 4) / 450e9)
    rows = [f"h100-sxm,nccl,2,all_gather,4,{b:.0f},{t!r}" for b, t in zip(MESSAGES, times.tolist(), strict=True)]
    path = tmp_path / "c.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    result = calibrate(read_tables([path], list(CHIPS)), chips=CHIPS, links=LINKS, models=[], processes=1)
    assert [(fit.op_class, fit.group_size) for fit in result.collectives] == [("all_gather", 4)]
    assert result.rows == len(MESSAGES)

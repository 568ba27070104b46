"""Reading cases: what is accepted, and how everything else is reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rackline.errors import InputError
from rackline.validation import Case, read_cases

SERVE: dict[str, Any] = {
    "id": "a",
    "kind": "serve",
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "chip": "h100-sxm",
    "num_chips": 1,
    "stack": "vllm",
    "precision": "fp8",
    "layout": {"tp": 1},
    "input_len": 1024,
    "output_len": 128,
    "concurrency": 4,
    "measured": {"tpot_s": 0.006, "ttft_s": 0.05},
}


def write(folder: Path, *lines: dict[str, Any] | str, name: str = "cases.jsonl") -> Path:
    path = folder / name
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return path


def only_reason(folder: Path, **changes: Any) -> str:
    """The reason of one serve case with some keys replaced, or left out where the value is ...."""
    data = {key: value for key, value in {**SERVE, **changes}.items() if value is not ...}
    found = read_cases([write(folder, data)])
    assert not found.cases
    assert len(found.unsupported) == 1
    assert found.unsupported[0].bad_input
    return found.unsupported[0].reason


def test_case_keeps_what_the_line_says(tmp_path: Path) -> None:
    found = read_cases([write(tmp_path, {**SERVE, "source": "x", "stack_version": 1.2})])
    (case,) = found.cases
    assert isinstance(case, Case)
    assert (case.case_id, case.kind, case.where) == ("a", "serve", "cases.jsonl, line 1")
    assert case.measured == {"tpot_s": 0.006, "ttft_s": 0.05}
    assert case.number("concurrency") == 4
    assert case.stack_version == "1.2"
    assert not found.unknown_keys


def test_unknown_keys_are_ignored_and_counted(tmp_path: Path) -> None:
    data = {**SERVE, "colour": "red", "measured": {"tpot_s": 0.01, "power_w": 300}}
    found = read_cases([write(tmp_path, data, data)])
    assert len(found.cases) == 2
    assert found.unknown_keys == {"colour": 2, "measured.power_w": 2}
    assert found.cases[0].measured == {"tpot_s": 0.01}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"concurrency": ...},
            "concurrency: got 'nothing', allowed: a whole number of at least 1 (required",
        ),
        ({"model": ...}, "model: got 'nothing', allowed: a name, or config, or architecture"),
        ({"kind": "served"}, "kind: got 'served', allowed: serve, "),
        ({"kind": ...}, "kind: got 'no such key'"),
        ({"num_chips": 1.5}, "num_chips: got 1.5, allowed: a whole number of at least 1"),
        ({"num_chips": True}, "num_chips: got True"),
        ({"input_len": "1k"}, "input_len: got '1k', allowed: a number of tokens of at least 1"),
        ({"input_len": 1e12}, "input_len: got 1000000000000.0"),
        ({"concurrency": 10**400}, "concurrency: got 1000"),
        ({"measured": {"tpot_s": float("nan")}}, "measured.tpot_s: got nan"),
        ({"measured": {"ttft_s": float("inf")}}, "measured.ttft_s: got inf"),
        ({"input_len": -3}, "input_len: got -3"),
        ({"output_len": 1}, "output_len: got 1, allowed: at least 2 tokens"),
        ({"layout": {"tp": 0}}, "layout: got {'tp': 0}"),
        ({"measured": ...}, "measured: got 'nothing', allowed: an object with any of tpot_s, ttft_s"),
        ({"measured": {}}, "measured: got 'nothing', allowed: any of tpot_s, ttft_s"),
        ({"measured": {"power_w": 3}}, "measured: got 'power_w', allowed: any of tpot_s, ttft_s"),
        ({"measured": {"tpot_s": 0}}, "measured.tpot_s: got 0, allowed: a plain number above 0, in SI units"),
        ({"measured": {"tpot_s": -0.1}}, "measured.tpot_s: got -0.1"),
        ({"measured": {"tpot_s": "6 ms"}}, "measured.tpot_s: got '6 ms', allowed: a plain number above 0"),
        ({"measured": {"tpot_s": 0.006, "ttft_s": None}}, "measured.ttft_s: got None"),
    ],
)
def test_bad_case_is_reported_with_file_line_and_key(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    reason = only_reason(tmp_path, **changes)
    assert reason.startswith("cases.jsonl, line 1: ")
    assert expected in reason


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ({"tpot_ms": 6.0, "ttft_s": 0.05}, "measured.tpot_ms: got 'tpot_ms', allowed: tpot_s, in SI units"),
        (
            {"tpot_s": 12.5, "ttft_s": 0.05},
            "measured.tpot_s: got 12.5, allowed: at most 10, in SI units (another",
        ),
    ],
)
def test_mixed_units_are_noticed(tmp_path: Path, measured: dict[str, float], expected: str) -> None:
    assert expected in only_reason(tmp_path, measured=measured)


def test_static_batch_whose_parts_exceed_the_total_mixes_units(tmp_path: Path) -> None:
    data = {**SERVE, "kind": "static-batch", "batch_size": 4, "measured": {"prefill_s": 25.0, "total_s": 1.2}}
    (bad,) = read_cases([write(tmp_path, data)]).unsupported
    assert "measured.total_s: got 1.2, allowed: about prefill_s + (output_len - 1) token_s" in bad.reason
    assert bad.metrics == ("prefill_s", "total_s")


def test_static_batch_needs_an_output_length_only_for_tokens(tmp_path: Path) -> None:
    data = {key: value for key, value in SERVE.items() if key not in ("output_len", "concurrency")}
    data |= {"kind": "static-batch", "batch_size": 4}
    found = read_cases(
        [write(tmp_path, {**data, "measured": {"prefill_s": 1.0}}, {**data, "measured": {"token_s": 0.1}})]
    )
    assert len(found.cases) == 1
    assert "output_len: got 'nothing'" in found.unsupported[0].reason


def test_broken_lines_do_not_stop_the_rest(tmp_path: Path) -> None:
    truncated = json.dumps(SERVE)[:-20]
    path = write(tmp_path, SERVE, truncated, "", "[1, 2]", '{"id": NaN', SERVE)
    found = read_cases([path])
    assert [case.where for case in found.cases] == ["cases.jsonl, line 1", "cases.jsonl, line 6"]
    assert [case.where for case in found.unsupported] == [f"cases.jsonl, line {n}" for n in (2, 4, 5)]
    assert "truncated or broken JSON object" in found.unsupported[0].reason
    assert "got 'list', allowed: one complete JSON object" in found.unsupported[1].reason


def test_line_separators_inside_a_text_do_not_split_it(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text(json.dumps({**SERVE, "source": "a\u2028b"}, ensure_ascii=False), encoding="utf-8")
    assert len(read_cases([path]).cases) == 1


def test_kinds_that_wait_for_an_engine_say_so(tmp_path: Path) -> None:
    found = read_cases([write(tmp_path, {**SERVE, "kind": "requests"})])
    assert [(case.kind, case.reason) for case in found.unsupported] == [
        ("requests", "is read from a runs.json with a requests.csv beside it"),
    ]
    assert not any(case.bad_input for case in found.unsupported)


@pytest.mark.parametrize("name", ["missing.jsonl", "."])
def test_file_that_cannot_be_read_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="case file"):
        read_cases([tmp_path / name])


def test_bytes_that_are_no_text_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(InputError, match="UTF-8"):
        read_cases([path])


def test_empty_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no case"):
        read_cases([write(tmp_path, "")])


TABLE = "chip,stack,stack_version,kernel,dtype,m,n,k,seconds\n"


def test_operation_table_keeps_the_fastest_kernel(tmp_path: Path) -> None:
    row = "h100-sxm,vllm,1,{},bfloat16,16,4096,4096,{}\n"
    path = tmp_path / "gemm.csv"
    path.write_text(TABLE + row.format("a", 2e-5) + row.format("b", 1.5e-5) + row.format("c", 3e-5))
    (case,) = read_cases([path]).cases
    assert case.measured == {"seconds": 1.5e-5}
    assert case.text("op") == "gemm"
    assert case.where == "gemm.csv, line 3"


def test_operation_table_reports_bad_rows(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    good = "h100-sxm,vllm,1,a,bfloat16,16,4096,4096,2e-5\n"
    path.write_text(TABLE + good + good.replace("2e-5", "-1") + good.replace(",16,", ",x,") + "h100-sxm,vllm\n")
    found = read_cases([path])
    assert len(found.cases) == 1
    reasons = [case.reason for case in found.unsupported]
    assert "mine.csv, line 3: measured.seconds: got -1" in reasons[0]
    assert "mine.csv, line 4: m: got 'x'" in reasons[1]
    assert "mine.csv, line 5: line: got 2 values, allowed: 9" in reasons[2]


def test_table_of_no_operation_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("chip,seconds\nh100-sxm,1\n")
    with pytest.raises(InputError, match=r"other\.csv:1: columns of a .* table: got 'chip, seconds'"):
        read_cases([path])

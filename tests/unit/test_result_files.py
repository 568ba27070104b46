"""Result files of other load generators: what is written is read back, and files in their documented form are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rackline.cli.main import run
from rackline.errors import InputError
from rackline.validation import Case, read_cases
from rackline.validation.importers import Given, import_results
from rackline.validation.observed import ObservedRequest, ObservedRun, requests_from
from rackline.validation.observed_report import result_text

RUN = ObservedRun(
    run_id="x",
    started="2026-11-22T10:00:00+00:00",
    served_name="llama-3.1-8b",
    load={"rate": "2"},
    requests=(
        ObservedRequest(arrival_s=0.0, outcome="finished", input_len=100, output_len=3, sent_s=0.001, end_s=0.31,
                        token_s=(0.1, 0.2, 0.3), prompt_tokens=101, output_tokens=3, status=200),
        ObservedRequest(arrival_s=0.5, outcome="rate_limited", input_len=50, output_len=4, sent_s=0.5, end_s=0.6,
                        status=429, error="429 slow down"),
        ObservedRequest(arrival_s=1.0, outcome="finished", input_len=70, output_len=4, sent_s=1.002, end_s=1.5,
                        token_s=(1.25, 1.5), prompt_tokens=70, output_tokens=4, status=200),
        ObservedRequest(arrival_s=9.0, outcome="not_sent", input_len=50, output_len=4),
    ),
)  # fmt: skip
GIVEN = Given(model="llama-3.1-8b", chip="h100-sxm", num_chips=1, stack="vllm", input_len=80, output_len=4)

WRITTEN = ("vllm", "aiperf", "genai-perf", "inference-perf")


def imported(path: Path, form: str, given: Given = GIVEN) -> tuple[Case, tuple[ObservedRequest, ...]]:
    lines = import_results([path], form, given)
    target = path.with_suffix(".cases.jsonl")
    target.write_text(lines)
    (case,) = read_cases([target]).cases
    assert case.kind == "observed"
    return case, requests_from(case)


@pytest.mark.parametrize("form", WRITTEN)
def test_what_is_written_is_read(form: str, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(result_text(RUN, form))
    case, found = imported(path, form)
    assert (case.model, case.chip) == ("llama-3.1-8b", "h100-sxm")
    done = [one for one in found if one.outcome == "finished"]
    before = [one for one in RUN.requests if one.outcome == "finished"]
    for one, other in zip(done, before, strict=True):
        assert one.ttft_s == pytest.approx(other.ttft_s, abs=2e-6)
        assert one.e2e_s == pytest.approx(other.e2e_s, abs=2e-6)
        assert len(one.token_s) == len(other.token_s)
        if form != "genai-perf":  # which counts no tokens
            assert (one.prompt_len, one.tokens) == (other.prompt_len, other.tokens)
            assert one.tpot_s == pytest.approx(other.tpot_s, abs=2e-6)
    assert done[1].sent_s is not None
    assert done[0].sent_s is not None
    assert done[1].sent_s - done[0].sent_s == pytest.approx(1.001, abs=2e-6)
    if form != "genai-perf":  # which holds no failures
        failed = [one for one in found if one.outcome != "finished"]
        assert failed[0].outcome == "rate_limited"
        assert "slow down" in failed[0].error


GUIDELLM: dict[str, Any] = {
    "benchmarks": [
        {
            "requests": {
                "successful": [
                    {
                        "prompt_tokens": 256, "output_tokens": 5,
                        "info": {"timings": {"targeted_start": 1000.0, "request_start": 1000.01, "request_end": 1000.6,
                                             "first_token_iteration": 1000.2, "last_token_iteration": 1000.6,
                                             "token_iterations": 5}},
                    }
                ],
                "errored": [
                    {"prompt_tokens": 9, "output_tokens": None,
                     "info": {"error": "boom", "timings": {"request_start": 1001.0, "request_end": 1001.1}}}
                ],
                "incomplete": [],
            }
        }
    ]
}  # fmt: skip


def test_guidellm(tmp_path: Path) -> None:
    """The form of src/guidellm/schemas/base/request_stats.py and info.py at 31c74ea and 1053a03."""
    path = tmp_path / "benchmarks.json"
    path.write_text(json.dumps(GUIDELLM))
    _, found = imported(path, "guidellm")
    assert found[0].ttft_s == pytest.approx(0.19)
    assert found[0].tpot_s == pytest.approx(0.1)
    assert found[0].late_s == pytest.approx(0.01)
    assert (found[1].outcome, found[1].error) == ("server_error", "boom")


def test_aiperf_as_documented(tmp_path: Path) -> None:
    """The example of docs/tutorials/working-with-profile-exports.md at 13992db, shortened."""
    record = {
        "metadata": {"request_start_ns": 1759813207532900363, "request_end_ns": 1759813207838764604,
                     "was_cancelled": False},
        "metrics": {"input_sequence_length": {"value": 550, "unit": "tokens"},
                    "time_to_first_token": {"value": 255.88656799999998, "unit": "ms"},
                    "inter_chunk_latency": {"value": [4.898437, 5.316006], "unit": "ms"},
                    "output_sequence_length": {"value": 3, "unit": "tokens"}},
        "error": None,
    }  # fmt: skip
    path = tmp_path / "profile_export.jsonl"
    path.write_text(json.dumps(record) + "\n")
    _, (one,) = imported(path, "aiperf")
    assert one.ttft_s == pytest.approx(0.255886568, abs=2e-6)
    assert one.tpot_s == pytest.approx((4.898437e-3 + 5.316006e-3) / 2, abs=2e-6)
    assert one.prompt_tokens == 550


def test_older_inference_perf(tmp_path: Path) -> None:
    """Counts stood in info itself before there were metrics of requests and responses."""
    row = {"start_time": 5.0, "end_time": 6.0, "request": "", "response": "", "error": None,
           "info": {"input_tokens": 12, "output_tokens": 2, "output_token_times": [5.5, 6.0]}}  # fmt: skip
    path = tmp_path / "per_request_lifecycle_metrics.json"
    path.write_text(json.dumps([row]))
    _, (one,) = imported(path, "inference-perf")
    assert (one.ttft_s, one.tpot_s, one.prompt_len) == (0.5, 0.5, 12)


def test_closed_loops_of_vllm_stay_means(tmp_path: Path) -> None:
    data = json.loads(result_text(RUN, "vllm")) | {"max_concurrency": 4}
    path = tmp_path / "closed.json"
    path.write_text(json.dumps(data))
    (line,) = import_results([path], "vllm", GIVEN).splitlines()
    assert json.loads(line)["kind"] == "serve"


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("guidellm", "{}"),
        ("inference-perf", "[]"),
        ("guidellm", '{"benchmarks": [{"requests": {"successful": [{"info": {}}]}}]}'),
        ("inference-perf", '[{"start_time": "x", "info": {}}]'),
        ("aiperf", '[{"metadata": {}}]'),
        ("genai-perf", '{"experiments": []}'),
        ("guidellm", "not json"),
    ],
)
def test_other_files_are_refused(form: str, text: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(InputError):
        import_results([path], form, GIVEN)
    assert run(["validate", "--import", form, str(path), "--chip", "h100-sxm", "--model", "llama-3.1-8b"]) == 2
    assert len(capfd.readouterr().err.strip().splitlines()) == 1


def test_lengths_that_are_not_counted_must_be_given(tmp_path: Path) -> None:
    path = tmp_path / "profile_export.json"
    path.write_text(result_text(RUN, "genai-perf"))
    with pytest.raises(InputError, match="--input-len"):
        import_results([path], "genai-perf", Given(model="llama-3.1-8b", chip="h100-sxm"))

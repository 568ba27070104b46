"""Error bands: their quantiles, which group counts, and that they hold what they promise on unseen cases."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rackline.errors import InputError
from rackline.validation import Score, read_cases
from rackline.validation.bands import (
    ANY,
    COVERAGE,
    band,
    coverage,
    find_band,
    halves,
    make_bands,
    precision_class,
    read_bands,
    shipped_bands,
    to_toml,
)
from rackline.validation.run import score_cases

MEASURED = Path(__file__).resolve().parents[2].parent / "shared" / "measured"
SERVED = ("tpot_s", "ttft_s", "request_s")


def score(
    ratio: float, number: int = 0, *, stack: str = "vllm", precision: str = "fp8", metric: str = "tpot_s"
) -> Score:
    """A case whose measured value is `ratio` times the predicted one."""
    groups = {
        "kind": "serve",
        "model": "m",
        "chip": "c",
        "stack": stack,
        "version": "-",
        "precision": precision,
        "op": "",
    }
    return Score(case_id=f"case {number}", where="x", metric=metric, measured=2.0 * ratio, predicted=2.0, groups=groups)


def test_a_band_runs_from_the_5th_to_the_95th_of_99_values() -> None:
    """With 99 values, Weibull's 5 % quantile is the 5th of them."""
    ratios = np.exp(np.linspace(-1.0, 1.0, 99))
    found = make_bands([score(float(ratio)) for ratio in ratios])["tpot_s", "vllm", "fp8"]
    assert found.low == pytest.approx(ratios[4])
    assert found.high == pytest.approx(ratios[94])
    assert found.num_cases == 99


def test_small_groups_fall_back() -> None:
    few = [score(1.0 + 0.01 * n, n, precision="bf16") for n in range(19)]
    many = [score(2.0 + 0.01 * n, n) for n in range(20)]
    other = [score(9.0, n, stack="sglang") for n in range(5)]
    bands = make_bands([*few, *many, *other])
    assert set(bands) == {("tpot_s", "vllm", "fp8"), ("tpot_s", "vllm", ANY), ("tpot_s", ANY, ANY)}
    assert find_band(bands, "tpot_s", "vLLM", "fp8").num_cases == 20
    assert find_band(bands, "tpot_s", "vllm", "bf16").num_cases == 39
    assert find_band(bands, "tpot_s", "sglang", "fp8").num_cases == 44
    assert find_band(bands, "tpot_s", "TensorRT-LLM", "int4").num_cases == 44
    with pytest.raises(InputError, match="tpot_s"):
        find_band(bands, "tpott_s", "vllm", "fp8")


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("bf16", "bf16"),
        ("float16", "bf16"),
        ("fp8", "fp8"),
        ("FP8-block", "fp8"),
        ("nvfp4", "fp4"),
        ("mxfp4", "fp4"),
        ("w4a16", "int4"),
        ("int4-weights", "int4"),
        ("int8-weights", "int8"),
        ("", "native"),
        ("odd", "odd"),
    ],
)
def test_precision_classes(label: str, expected: str) -> None:
    assert precision_class(label) == expected


def test_a_file_of_bands_reads_back() -> None:
    bands = make_bands([score(1.0 + 0.01 * n, n) for n in range(30)])
    again = read_bands(to_toml(bands, ["somewhere/a.jsonl"]))
    assert set(again) == set(bands)
    for key, one in bands.items():
        assert again[key].num_cases == one.num_cases
        assert (again[key].low, again[key].high) == pytest.approx((one.low, one.high), rel=1e-3)


def test_shipped_bands_answer_for_every_stack() -> None:
    for metric in (*SERVED, "output_tokens_per_s"):
        low, high = band(metric)
        assert 0.2 < low < 1.0 < high < 5.0
        assert band(metric, "a stack of tomorrow", "fp2") == (low, high)
    assert band("tpot_s", "vllm", "fp8") != band("tpot_s")
    assert len(shipped_bands()) > 20
    spread = {metric: np.log(band(metric)[1] / band(metric)[0]) for metric in SERVED}
    assert spread["ttft_s"] > 1.5 * spread["tpot_s"]


def test_halves_keep_the_values_of_a_case_together() -> None:
    scores = [score(1.0, n, metric=metric) for n in range(50) for metric in SERVED]
    first, second = halves(scores, 3)
    assert len(first) == len(second) == 75
    assert not {one.case_id for one in first} & {one.case_id for one in second}
    assert halves(scores, 3)[0] == first
    assert halves(scores, 4)[0] != first


def test_bands_of_one_half_hold_nine_tenths_of_the_other() -> None:
    """The 90 % bands made from a random half of the open cases cover 85 to 95 % of the other half."""
    path = MEASURED / "serving.jsonl"
    if not path.exists():
        pytest.skip("the measured cases are not beside this checkout")
    scores = score_cases(read_cases([path]), num_worst=0).scores
    seen, unseen = halves(scores, 20260)
    found = coverage(make_bands(seen), unseen)
    print({metric: f"{share:.1%}" for metric, share in found.items()})
    assert set(found) == set(SERVED)
    for metric, share in found.items():
        assert abs(share - COVERAGE) <= 0.05, f"{metric}: {share:.1%}"

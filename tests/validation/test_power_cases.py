"""Power: what the shipped numbers reach on measured servings, with models left out, and on whole machines."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rackline.arch import model
from rackline.bands.bands import band
from rackline.hardware import chip, cluster
from rackline.parallel import Deployment, parse_layout, precision
from rackline.passes import calibration
from rackline.serving.closed_loop import engine_of
from rackline.serving.fleet import power_at, request_joules
from rackline.serving.stack import stack_of
from rackline.serving.workload import Workload
from rackline.validation.cases import Case, shape_of
from rackline.validation.fit_cases import FITTED, PowerCase, fit_power
from rackline.validation.predict import Predictor
from rackline.validation.resolve import Resolver
from rackline.validation.run import read_cases

SHARED = Path(__file__).resolve().parents[3] / "shared" / "measured"
SERVINGS = SHARED / "serving_power.jsonl"
MACHINES = SHARED / "post_training" / "energy" / "mlperf_power_llm.csv"
CHIPS = ("h100-sxm", "b200-sxm")
LENGTHS = {"llama2-70b": (294.0, 291.0), "llama3.1-8b": (778.0, 128.0)}
"""Mean prompt and output tokens of MLPerf's data sets (Open Orca, CNN/DailyMail)."""
MODELS = {"llama2-70b": ("llama-2-70b", "fp8"), "llama3.1-8b": ("llama-3.1-8b", "fp4")}


def existing(path: Path) -> Path:
    if not path.exists():
        pytest.skip("needs ../shared/measured")
    return path


@pytest.fixture(scope="module")
def servings() -> list[tuple[PowerCase, dict[str, float]]]:
    """Each serving, prepared, with its predicted rate of output under the shipped numbers."""
    predictor = Predictor(resolver=Resolver())
    cases: list[Case] = list(read_cases([existing(SERVINGS)]).cases)
    found: list[tuple[PowerCase, dict[str, float]]] = []
    for case, values in zip(cases, predictor.predict_all(cases), strict=True):
        assert isinstance(values, dict), case.case_id
        prepared = predictor.power(case)
        assert prepared is not None
        found.append((prepared, values))
    return found


@pytest.mark.slow
def test_the_catalogue_holds_the_fit_to_all_servings(servings: list[tuple[PowerCase, dict[str, float]]]) -> None:
    fitted = fit_power(one for one, _ in servings)
    for name in CHIPS:
        shipped = chip(name).power
        assert shipped is not None
        for number in FITTED:
            assert getattr(shipped, number) == pytest.approx(getattr(fitted[name], number), rel=0.05), (name, number)


@pytest.mark.slow
def test_models_left_out(servings: list[tuple[PowerCase, dict[str, float]]]) -> None:
    """Watts 6 / 18 % on H100 and 12 / 35 % on B200, joules of a token 15 %."""
    models = sorted({shape_of(one.case.model) for one, _ in servings})
    errors: dict[tuple[str, str], list[float]] = {}
    off: list[tuple[float, str]] = []
    for left_out in models:
        powers = fit_power(one for one, _ in servings if shape_of(one.case.model) != left_out)
        for one, values in servings:
            if shape_of(one.case.model) == left_out:
                found = one.values(powers[one.chip.name], values["output_tokens_per_s"])
                for name, value in found.items():
                    measured = one.case.measured[name.removesuffix("_at_measured_rate")]
                    errors.setdefault((one.chip.name, name), []).append(abs(value / measured - 1.0))
                    if name == "joules_per_output_token":
                        off.append((measured / value, one.chip.name))
    assert {len(values) for (name, _), values in errors.items() if name == "h100-sxm"} == {94}
    for name, median, most in (("h100-sxm", 0.06, 0.18), ("b200-sxm", 0.12, 0.35)):
        for metric in ("power_w_per_chip", "power_w_per_chip_at_measured_rate"):
            assert np.median(errors[name, metric]) <= median, (name, metric)
            assert np.quantile(errors[name, metric], 0.9) <= most, (name, metric)
        for metric in ("joules_per_output_token", "joules_per_output_token_at_measured_rate"):
            assert np.median(errors[name, metric]) <= 0.15, (name, metric)
    low, high = band("joules_per_output_token")
    assert np.mean([low <= ratio <= high for ratio, _ in off]) >= 0.88  # the shipped band, of 90 %


def machine_w(row: dict[str, str]) -> float:
    """Power at the wall of a machine of eight chips that produces the tokens of a run."""
    on = cluster("dgx-h200" if row["chip"] == "h200-sxm" else "dgx-b200")
    on = replace(on, chip=replace(on.chip, power_cap_w=float(row["gpu_power_limit_w"])))
    name, dtype = next(value for key, value in MODELS.items() if row["benchmark"].startswith(key))
    input_len, output_len = next(value for key, value in LENGTHS.items() if row["benchmark"].startswith(key))
    served = model(name)
    deployment = Deployment(
        model=served,
        cluster=on,
        layout=parse_layout("tp=1", served),
        precision=precision(dtype, served, on.chip),
        calibration=calibration("trtllm", on.chip),
    )
    engine = engine_of(deployment, stack_of(deployment.calibration, on.chip))
    work = Workload(input_len=input_len, output_len=output_len)
    rate = float(row["tokens_per_s"]) / output_len
    found = power_at(on, request_joules(engine, deployment.layout, work, 512.0), rate, 8.0)
    assert found is not None
    return found.wall_w * 8.0


def test_power_of_whole_machines() -> None:
    """MLPerf's raw power at the wall: H200 capped at 500 W and B200 at 1,000 W, within a tenth each."""
    rows = list(csv.DictReader(existing(MACHINES).read_text(encoding="utf-8").splitlines()))
    assert len(rows) == 6
    for row in rows:
        assert machine_w(row) == pytest.approx(float(row["system_w"]), rel=0.10), row["source"]

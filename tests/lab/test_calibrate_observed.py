"""Numbers fitted to observed runs: those that were put in are found, what the data leave open is said, files work."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import rackline as rl
from rackline.errors import InputError, UnknownNameError
from rackline.fitting.solver import SOFT_L1_SCALE
from rackline.passes import calibration
from rackline.serving.stack import stack_of
from rackline.simulation import Requests, poisson
from rackline.validation import Case, read_cases
from rackline.validation.observed import ObservedRequest, ObservedRun, observed_run, served_run
from rackline.validation.observed_fit import PARAMETERS, ObservedFit, fit_observed, with_numbers
from rackline.validation.observed_report import calibration_text
from rackline.validation.requests import ServedRun
from rackline.validation.resolve import Resolver
from scripts import load_script

NAMES = [one.name for one in PARAMETERS]
SERVER = {"model": "llama-3.1-8b", "num_chips": 1, "stack": "vllm", "precision": "bf16"}


def run_of(chip: str, seed: int, rate: float, number: int = 30, **changes: float) -> ObservedRun:
    """A run as a server with these numbers would give it: the simulator's own times, with 1 % of noise."""
    random = np.random.default_rng(seed)
    load = Requests(
        arrival_s=poisson(random, number, rate),
        input_len=random.integers(64, 2048, number),
        output_len=random.integers(8, 64, number),
        name="load",
    )
    asked = tuple(
        ObservedRequest(arrival_s=at, outcome="finished", input_len=a, output_len=b, sent_s=at, token_s=(at + 1.0,))
        for at, a, b in zip(load.arrival_s.tolist(), load.input_len.tolist(), load.output_len.tolist(), strict=True)
    )
    blank = ObservedRun(run_id=f"run {seed}", requests=asked, deployment={**SERVER, "chip": chip})
    shipped = observed_run(Resolver(), case_of(blank))
    slowdown, first_token_s = shipped.stack.graphs.prefill_slowdown, shipped.stack.arrivals.first_token_s
    values = dict(zip(NAMES, [1.0, 1.0, 1.0, slowdown, 0.0, 0.0, first_token_s], strict=True))
    found = with_numbers(replace(shipped, requests=load), values | changes).simulated()
    noise = 1.0 + 0.01 * random.standard_normal((2, number))
    requests = []
    for index, one in enumerate(asked):
        assert one.sent_s is not None
        first = one.sent_s + found.ttft_s[index] * noise[0, index]
        each = found.tpot_s[index] * noise[1, index]
        times = tuple(float(first + step * each) for step in range(one.output_len))
        requests.append(replace(one, token_s=times, output_tokens=one.output_len, prompt_tokens=one.input_len))
    return replace(blank, requests=tuple(requests))


def case_of(run: ObservedRun) -> Case:
    from rackline.validation.cases import read_line

    found = read_line(run.line(), "here")
    assert isinstance(found, Case)
    return found


@pytest.mark.slow
def test_numbers_that_were_put_in_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in = {"host_s_per_step": 2e-3, "first_token_s": 0.08}
    runs = [run_of("h100-sxm", seed, rate, **put_in) for seed, rate in ((1, 2.0), (2, 12.0))]
    later = run_of("h100-sxm", 3, 6.0, **put_in)
    monkeypatch.chdir(tmp_path)
    for name, text in (("observed.jsonl", "".join(run.line() for run in runs)), ("later.jsonl", later.line())):
        (tmp_path / name).write_text(text)
    found = rl.calibrate(observed="observed.jsonl", output="mine.toml")
    fit = found.result.observed
    by_name = {one.name: one for one in fit.estimates}
    assert fit.has_table
    assert (fit.runs, fit.requests) == (2, 60)
    assert 1.2e-3 < by_name["host_s_per_step"].value < 2.8e-3
    assert by_name["first_token_s"].value == pytest.approx(0.08, abs=0.015)
    assert by_name["first_token_s"].determined > 0.5
    for one in fit.errors:
        assert one.held_out_median < 0.05
        assert one.held_out_median < one.shipped_median
    # the proof: a later run, which no fit has seen
    shipped = rl.validate("later.jsonl").result.board.metrics
    mine = rl.validate("later.jsonl", calibration="mine").result.board.metrics
    assert mine["tpot_s"].median_abs_error < 0.3 * shipped["tpot_s"].median_abs_error
    assert mine["tpot_s"].median_abs_error < 0.03
    # by name, wherever a calibration is asked for
    asked = {"on": "dgx-h100", "layout": "tp=1", "precision": "bf16", "calibration": "mine"}
    explained = rl.explain("llama-3.1-8b", batch=8, context="1k", **asked).to_dict()
    usual = rl.explain("llama-3.1-8b", batch=8, context="1k", **{**asked, "calibration": "vllm"}).to_dict()
    assert explained["seconds"] > usual["seconds"] + 1e-3
    rl.simulate("llama-3.1-8b", rate=1, requests=20, input=256, output=16, **asked)
    planned = rl.plan("llama-3.1-8b", on="dgx-h100", input=256, output=64, tpot="50ms", ttft="2s", calibration="mine")
    assert planned.result is not None
    numbers = calibration("mine", rl.chip("h100-sxm"))
    assert stack_of(numbers).arrivals.first_token_s == pytest.approx(fit.stack.arrivals.first_token_s, rel=1e-4)
    with pytest.raises(UnknownNameError, match="h100-sxm"):
        rl.explain("llama-3.1-8b", batch=8, context="1k", on="dgx-h200", calibration="mine")


def test_what_was_not_fitted_is_kept(tmp_path: Path) -> None:
    """The blocks in which an engine reads its cache, and how it splits its passes."""
    chip = rl.chip("h100-sxm")
    shipped = calibration("vllm", chip)
    split = stack_of(shipped).with_values({"scheduler.neighbour_passes": True})
    fit = ObservedFit(
        estimates=(), errors=(), calibration=replace(shipped, context_block=256), stack=split, chip=chip.name,
        has_table=True, runs=1, requests=20, folds=4, clipped=0,
    )  # fmt: skip
    file = tmp_path / "mine.toml"
    file.write_text(calibration_text(fit, "mine"), encoding="utf-8")
    numbers = calibration(str(file), chip)
    assert numbers.context_block == 256
    assert stack_of(numbers).scheduler.neighbour_passes


@pytest.mark.slow
def test_what_the_data_leave_open_is_said() -> None:
    """One request at a time says nothing of the time that each further sequence costs."""
    fit = fit_observed([case_of(run_of("h100-sxm", 5, 0.5, number=16))])
    assert "host_s_per_sequence" in fit.undetermined
    by_name = {one.name: one for one in fit.estimates}
    for one in fit.estimates:
        assert one.low <= one.value <= one.high
        assert 0.0 <= one.determined <= 1.0
    assert by_name["memory"].value == pytest.approx(1.0, abs=0.05)


def test_runs_of_several_servers_are_refused() -> None:
    cases = [case_of(run_of(chip, 1, 2.0, number=4)) for chip in ("h100-sxm", "h200")]
    with pytest.raises(InputError, match="one chip and one stack"):
        fit_observed(cases)
    with pytest.raises(InputError, match="at least 8"):
        fit_observed(cases[:1])
    with pytest.raises(InputError, match="no observed run"):
        fit_observed([])


def test_options_that_do_not_belong_together(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="CSV files"):
        rl.calibrate()
    with pytest.raises(InputError, match="only without"):
        rl.calibrate("gemm.csv", observed="observed.jsonl")
    with pytest.raises(InputError, match="only with"):
        rl.calibrate("gemm.csv", calibration="vllm")


def loss_of(run: ServedRun, values: dict[str, float]) -> float:
    """Soft L1 loss of the logarithmic errors of one run, without the priors."""
    found = with_numbers(run, values).simulated()
    count = len(run.requests)
    weight = 1.0 / (1.0 + 0.02 * (count - 1))  # requests of one run are alike
    predicted = {"ttft_s": found.ttft_s, "tpot_s": found.tpot_s}
    errors = np.concatenate([np.log(np.asarray(predicted[name]) / run.measured[name]) for name in predicted])
    return float(np.sum(np.sqrt(1.0 + weight * (np.nan_to_num(errors) / SOFT_L1_SCALE) ** 2) - 1.0))


@pytest.mark.slow
def test_the_labs_server_is_observed_calibrated_and_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real transformer in JAX behind real HTTP; what comes out is checked, not how fast this machine is."""
    pytest.importorskip("jax", reason="JAX has no wheel on this platform")
    lab = load_script("lab_server")

    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(lab.CONFIG))
    (tmp_path / "here.toml").write_text(MACHINE)
    with lab.lab_server() as server:
        load = {"input": 24, "output": 10, "lengths": "uniform", "yes": True, "model": "config.json",
                "on": "here.toml", "precision": "fp32", "max_num_seqs": 8}  # fmt: skip
        for name, rate, seed in (("observed.jsonl", 30, 0), ("later.jsonl", 15, 1)):
            found = rl.observe(server.url, rate=rate, requests=24, seed=seed, save=name, **load)
            run = found.result.run
            assert run.served_name == lab.NAME
            assert found.to_dict()["outcomes"] == {"finished": 24}
            assert all(one.output_tokens == one.output_len == len(one.token_s) for one in run.requests)
            assert all(one.prompt_tokens == one.input_len for one in run.requests)
        chat = rl.observe(server.url, users=3, requests=6, endpoint="chat", **load)
        assert chat.to_dict()["finished"] == 6
        assert chat.result.run.generator is not None
        assert chat.result.run.generator.in_flight <= 3
    fit = rl.calibrate(observed="observed.jsonl", output="mine.toml").result.observed
    assert not fit.has_table
    assert fit.chip == "a-machine"
    assert all(np.isfinite([one.value, one.low, one.high]).all() for one in fit.estimates)
    assert any(one.determined > 0.5 for one in fit.estimates)
    # what the fit lowers is the loss of all requests; a median of its own may rise with the noise of a busy machine
    run = served_run(Resolver(), read_cases(["observed.jsonl"]).cases[0])
    assert loss_of(run, {one.name: one.value for one in fit.estimates}) <= loss_of(
        run, {one.name: one.shipped for one in fit.estimates}
    )
    board = rl.validate("later.jsonl", calibration="mine").result.board
    assert not board.unsupported
    assert len([score for score in board.scores if score.metric == "e2e_s"]) == 24
    (case,) = read_cases(["later.jsonl"]).cases
    assert Resolver().chip_of(case).hbm_bytes_per_s == 10e9


MACHINE = """
[chip]
name = "a-machine"
full_name = "A machine"
vendor = "test"
generation = "cpu"
peak_flop_per_s = { bf16 = 1e11, fp32 = 1e11 }
hbm_bytes = 4e9
hbm_bytes_per_s = 10e9
cores = 2

[[chip.sources]]
fields = ["*"]
kind = "assumed"
citation = "a machine of a test"

[cluster]
name = "a-machine"
full_name = "A machine"
num_chips = 1
levels = [{ name = "scale_up", size = 1, bytes_per_s_each_way = 1e10, latency_s = 1e-6, topology = "mesh" }]

[[cluster.sources]]
fields = ["*"]
kind = "assumed"
citation = "a machine of a test"
"""

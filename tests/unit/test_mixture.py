"""Several lengths at once: moments, files, the open loop and plans against the simulator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import rackline as rl
from helpers import deploy
from rackline.arch import model
from rackline.errors import InputError
from rackline.hardware import cluster
from rackline.parallel import Deployment, parse_layout, precision
from rackline.passes import calibration
from rackline.serving import Workload, open_loop
from rackline.serving.closed_loop import engine_of
from rackline.serving.mixture_file import mixture_of_file
from rackline.serving.stack import stack
from rackline.serving.workload import Mixture
from rackline.simulation import open_arrivals, pool_of, simulate
from rackline.simulation.traces import mixture_of_trace

TWO = Mixture.of(np.array([0.8, 0.2]), np.array([500.0, 6000.0]), np.array([200.0, 400.0]))
HALVES = Mixture.of(np.array([0.5, 0.5]), np.array([200.0, 4000.0]), np.array([800.0, 50.0]))
ANSWERS = Mixture.of(np.array([0.7, 0.3]), np.array([1000.0, 1000.0]), np.array([100.0, 800.0]))
_MIX = """[[requests]]
share = 0.8
input = 500
output = 200
[[requests]]
share = 0.2
input = "6k"
output = 400
"""


def test_moments_are_those_of_drawn_requests() -> None:
    inputs, _ = TWO.draw(np.random.default_rng(1), 20_000)
    assert inputs.mean() == pytest.approx(1600.0, rel=1e-3)
    assert TWO.input_cv2 == pytest.approx(inputs.var() / inputs.mean() ** 2, rel=1e-2)
    decoding, answers = TWO.draw_decoding(np.random.default_rng(1), 20_000)
    assert TWO.final_context == pytest.approx((decoding + answers).mean(), rel=1e-2)
    assert TWO.mean_context == pytest.approx((decoding + answers / 2).mean(), rel=1e-2)
    # time in flight goes by the answer: two in six of the long requests decode, though one in five is one
    assert (decoding == 6000).mean() == pytest.approx(0.2 * 399 / (0.8 * 199 + 0.2 * 399), rel=1e-2)
    sizes = TWO.prompt_sizes()
    assert float(sizes.shares @ sizes.tokens) == pytest.approx(1600.0)
    assert TWO.slots(100.0) < 100.0
    assert Mixture.of(1.0, np.array([10.0]), np.array([5.0])).slots(7.0) == pytest.approx(7.0)


def test_one_length_is_no_mixture() -> None:
    deployment = deploy("llama-3.1-8b", on="dgx-h100", label="native", calibration="vllm")
    of = stack("vllm")
    engine, batches = engine_of(deployment, of), np.array([0.5, 2.0, 8.0, 32.0])
    same = Mixture.of(np.array([3.0, 1.0]), np.array([1000.0, 1000.0]), np.array([200.0, 200.0]))
    assert same.num_lengths == 1
    plain = open_loop(engine, Workload(input_len=1000, output_len=200), of.scheduler.mode(), batches)
    mixed = open_loop(engine, Workload.of_mixture(same), of.scheduler.mode(), batches)
    for name in ("requests_per_s", "tpot_s", "ttft_s"):
        assert getattr(mixed, name) == pytest.approx(getattr(plain, name), rel=0.02), name


# model, layout, stack, mixture, requests/s: about 0.3 and 0.6 of saturation
CASES = {
    "dense": ("llama-3.1-8b", "tp=1", "vllm", TWO, (4.0, 7.98)),
    "dense, unlike halves": ("llama-3.1-8b", "tp=1", "vllm", HALVES, (3.2, 6.0)),
    "dense, answers": ("llama-3.1-8b", "tp=1", "vllm", ANSWERS, (5.5, 9.0)),
    "prefill first": ("llama-3.1-70b", "tp=4", "sglang", TWO, (1.0, 2.0)),
    "experts": ("gpt-oss-120b", "tp=2", "vllm", TWO, (4.0, 8.0)),
}


@pytest.mark.parametrize(
    ("name", "rate"), [(name, rate) for name, case in CASES.items() for rate in case[4]], ids=lambda value: str(value)
)
def test_an_open_loop_of_a_mixture_agrees_with_the_simulator(name: str, rate: float) -> None:
    """Within 10 % to the first token and 5 % between tokens, as for equal lengths; token by token for the latter."""
    which, layout, of_stack, mixture, _ = CASES[name]
    found = model(which)
    split = parse_layout(layout, found)
    one = cluster("dgx-h100").with_num_chips(split.chips_per_replica)
    of = stack(of_stack).with_values(
        {
            "arrivals.burst_share": 0.0,
            "arrivals.synchrony": 0.0,
            "arrivals.first_token_s": 0.0,
            "arrivals.first_token_equal_s": None,
        }
    )
    deployment = Deployment(
        model=found,
        cluster=one,
        layout=split,
        precision=precision("native", found, one.chip),
        calibration=calibration(of_stack, one.chip),
    )
    pool = pool_of(deployment, of)
    pool = replace(pool, spec=replace(pool.spec, pool_tokens=10**9, max_num_seqs=10**6))
    requests = open_arrivals(np.random.default_rng(7), 6000, rate, mixture)
    result = simulate(requests, pool, compiled=False)
    kept = slice(600, -300)
    decoded_s = (result.finish_s - result.first_s)[kept].sum()
    tpot_s = decoded_s / (requests.output_len - 1)[kept].sum()
    workload = Workload.of_mixture(mixture)
    decoding = rate * (workload.output_len - 1.0) * tpot_s
    state = open_loop(
        engine_of(deployment, of), workload, of.scheduler.mode(), np.geomspace(decoding / 2, decoding * 2, 15)
    )
    ttft_s = float(np.interp(rate, state.requests_per_s, state.ttft_s))
    assert ttft_s == pytest.approx(float(result.ttft_s[kept].mean()), rel=0.10)
    assert float(np.interp(rate, state.requests_per_s, state.tpot_s)) == pytest.approx(tpot_s, rel=0.05)


class TestFiles:
    def test_toml_and_csv_are_the_same(self, tmp_path: Path) -> None:
        (tmp_path / "mix.toml").write_text(_MIX)
        (tmp_path / "mix.csv").write_text("share,input,output\n80%,500,200\n20%,6k,400\n")
        for name in ("mix.toml", "mix.csv"):
            found = mixture_of_file(str(tmp_path / name))
            assert found.shares == pytest.approx(TWO.shares)
            assert (found.input_len == TWO.input_len).all()

    def test_lengths_of_a_trace_need_no_times(self, tmp_path: Path) -> None:
        file = tmp_path / "trace.csv"
        file.write_text("timestamp,input_len,output_len\n0,100,20\n60,300,40\n120,100,20\n")
        found = mixture_of_trace(str(file))
        assert found.num_lengths == 2
        assert found.shares == pytest.approx([2 / 3, 1 / 3])

    @pytest.mark.parametrize(
        ("name", "text", "message"),
        [
            ("a.csv", "share,input,output\n1,500\n", "2 cells"),
            ("a.csv", "share,inputs,output\n1,500,20\n", "nearest: input"),
            ("a.csv", "", "empty file"),
            ("a.csv", "share,input,output\n0,500,20\n", "share"),
            ("a.csv", "input,output\n500,\n", "output"),
            ("a.toml", "[[request]]\ninput=1\n", "requests"),
            ("a.toml", "[[requests]\n", "TOML"),
            ("a.toml", "[[requests]]\ninput = 5\noutput = 0\n", "output"),
        ],
    )
    def test_another_form_is_one_line(self, tmp_path: Path, name: str, text: str, message: str) -> None:
        file = tmp_path / name
        file.write_text(text)
        with pytest.raises(InputError, match=message) as error:
            mixture_of_file(str(file))
        assert len(str(error.value).splitlines()) == 1


class TestPlan:
    def test_a_plan_of_a_mixture_is_what_its_deployment_does(self, tmp_path: Path) -> None:
        file = tmp_path / "mix.toml"
        file.write_text(_MIX)
        asked = {"on": "dgx-h100", "chips": 1, "mix": str(file)}
        limits = {"precision": "fp8", "serving": "aggregated", "ttft": "1s@p99", "tpot": "25ms@p99"}
        plan = rl.plan("llama-3.1-8b", **asked, **limits).result.plan
        best = plan.best
        assert best is not None
        assert best.sustained is not None
        assert plan.demand.workload.longest_context == 6400
        served = [
            rl.simulate(
                "llama-3.1-8b",
                **asked,
                layout=replace(best.layout, dp=1).label(),
                precision=best.precision.label,
                rate=best.requests_per_s,
                requests=4000,
                seed=seed,
                calibration=plan.system.calibration.name,  # of the stack that the plan takes
                policy=best.mode.admission.replace("_", "-"),
                max_num_seqs=best.max_num_seqs,
                max_batched_tokens=best.mode.max_batched_tokens,
            ).to_dict()
            for seed in (1, 2, 3, 4)  # runs that start and end empty
        ]
        simulated = best.sustained.simulated
        means = {name: np.mean([one[name]["mean"] for one in served]) for name in ("ttft_s", "tpot_s")}
        assert means["ttft_s"] == pytest.approx(simulated.ttft_s.mean, rel=0.10)
        assert means["tpot_s"] == pytest.approx(simulated.tpot_s.mean, rel=0.10)
        assert simulated.ttft_s.p99 <= 1.0
        assert simulated.tpot_s.p99 <= 0.025

    @pytest.mark.parametrize("more", [{"input": 500}, {"trace": "other.csv"}])
    def test_two_kinds_of_lengths_are_refused(self, tmp_path: Path, more: dict[str, object]) -> None:
        file = tmp_path / "mix.toml"
        file.write_text(_MIX)
        with pytest.raises(InputError, match="only without `mix`"):
            rl.plan("llama-3.1-8b", on="dgx-h100", mix=str(file), **more)

    def test_the_longest_request_counts_for_the_context_and_the_launch(self, tmp_path: Path) -> None:
        file = tmp_path / "mix.csv"
        file.write_text("share,input,output\n0.999,500,50\n0.001,200000,50\n")
        answer = rl.plan("llama-3.1-8b", on="dgx-h100", chips=1, mix=str(file), use="batch", engine="vllm", launch=True)
        assert any("200,050 tokens" in text for text in answer.warnings)
        assert answer.result.launch is not None
        words = " ".join(answer.result.launch[0].words)
        assert "--max-model-len 200050" in words

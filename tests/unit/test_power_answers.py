"""Power and joules in the answers of plan, price, train, simulate, compare and fleets, from one function."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import rackline as rl
from rackline.cli.main import run
from rackline.errors import InputError
from rackline.hardware import cluster, wall_w
from rackline.search.plan import capped, caps_of, least_energy, ranked_by_energy
from rackline.search.space import SearchSpace, Space
from rackline.serving.fleet import Part, Power, Traffic, fleet
from rackline.serving.workload import Workload, parse_mode
from rackline.system import Constraints, Demand, System

H100 = cluster("dgx-h100").chip
SMALL = {"on": "dgx-h100", "chips": 2, "layout": "tp=1", "serving": "aggregated", "input": 500, "output": 100}


@pytest.fixture(scope="module")
def planned() -> dict[str, object]:
    return rl.plan("llama-3.1-8b", **SMALL, tpot="30ms", traffic="100k/s", pue=1.25).to_dict()


def test_a_plan_says_what_its_chips_draw(planned: dict) -> None:
    best = planned["best"]
    energy = best["energy"]
    assert energy["basis"] == "kernels"
    assert 110.0 < energy["chip_w"] <= 700.0
    assert energy["wall_w"] == pytest.approx(wall_w(cluster("dgx-h100"), energy["chip_w"]))
    # paid units are hosts of eight chips only where hosts are asked for; two chips are paid here
    idle_w = wall_w(cluster("dgx-h100"), 110.0)
    idle = best["billed_chips"] - best["num_chips"]
    assert energy["power_w"] == pytest.approx(energy["wall_w"] * best["num_chips"] + idle_w * idle)
    assert energy["joules_per_request"] == pytest.approx(energy["power_w"] / best["requests_per_s"])
    assert energy["joules_per_output_token"] == pytest.approx(energy["joules_per_request"] / 100.0)


def test_its_fleet_draws_the_same_at_the_site(planned: dict) -> None:
    found, wall = planned["fleet"], planned["best"]["energy"]["wall_w"]
    left = found["billed_chips"] - found["num_chips"]
    idle_w = wall_w(cluster("dgx-h100"), 110.0)
    assert found["power_w"] == pytest.approx((found["num_chips"] * wall + left * idle_w) * 1.25)
    assert found["power_basis"] == "kernels"
    assert found["racks_per_megawatt"] == pytest.approx(found["num_racks"] / found["power_w"] * 1e6)
    assert found["tokens_per_joule"] == pytest.approx(found["copies"] * found["copy_tokens_per_s"] / found["power_w"])


def test_drawn_and_nameplate_power_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--on dgx-h200 --chips 1 --layout tp=1 --mode chunked=2048 --serving aggregated --input 1k --output 50"
    assert run(["plan", "llama-3.1-8b", "--for", "batch", *words.split()]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "W a chip drawn" in said
    assert "nameplate 1.73 kW a chip" in said
    assert run(["clusters", "dgx-h200"]) == 0
    assert "nameplate power of a full rack" in capsys.readouterr().out


def test_a_fleet_pays_for_the_power_of_chips_that_wait() -> None:
    on = cluster("dgx-h100")
    drawn = Power(chip_w=500.0, wall_w=wall_w(on, 500.0), basis="kernels")
    found = fleet(Traffic(tokens_per_s=1e5), 1e5, (Part(cluster=on, replica_chips=3, power=drawn),))
    assert (found.num_chips, found.billed_chips) == (3, 8)
    assert found.power_w == pytest.approx(3 * drawn.wall_w + 5 * wall_w(on, 110.0))


def test_nameplates_have_their_cooling() -> None:
    on = cluster("dgx-h100")
    named = Power(chip_w=1730.0, wall_w=1730.0, basis="nameplate")
    assert (named.site_w(1.5), replace(named, basis="kernels").site_w(1.5)) == (1730.0, 2595.0)
    part = Part(cluster=on, replica_chips=8, power=named)
    plain = Part(cluster=on, replica_chips=8)
    both = [fleet(Traffic(tokens_per_s=1e5), 1e4, (one,), pue=1.5) for one in (part, plain)]
    assert both[0].power_w == both[1].power_w == pytest.approx(80 * 1730.0)
    assert {one.power_basis for one in both} == {"nameplate"}


def test_a_simulated_run_agrees_with_the_estimate_at_its_rate() -> None:
    served = rl.simulate(
        "llama-3.1-8b", on="dgx-h100", chips=1, rate=20, requests=400, input=500, output=100, layout="tp=1"
    ).to_dict()
    energy = served["energy"]
    assert 110.0 < energy["chip_w"] < 700.0
    assert energy["joules_per_output_token"] == pytest.approx(
        energy["wall_w"] / served["output_tokens_per_s"], rel=1e-3
    )


def test_hours_that_are_not_sold_draw_idle_power() -> None:
    """kWh a million tokens grow with idle hours by the idle power, not by the whole."""
    full, half = (
        rl.price("llama-3.1-8b", on="dgx-h100", layout="tp=1", contexts="4k", fast=2, utilisation=share).to_dict()[
            "tiers"
        ][0]
        for share in (1.0, 0.5)
    )
    busy, idle = (wall_w(cluster("dgx-h100"), watts) for watts in (full["chip_w"], 110.0))
    assert half["kwh_per_mtok_output"] / full["kwh_per_mtok_output"] == pytest.approx((busy + idle) / busy)


def test_training_draws_its_limit_and_a_cap_saves_energy() -> None:
    asked = {"on": "dgx-h100", "chips": 8, "global_batch": "512k", "tokens": "1B", "layout": "tp=1", "pace": "tuned"}
    free, low = (rl.train("llama-3.1-8b", **asked, power_cap=cap).to_dict()["best"] for cap in (None, "400W"))
    assert (free["chip_w"], low["chip_w"]) == (700.0, 400.0)
    assert low["step_s"] > 1.2 * free["step_s"]
    assert low["joules_per_token"] < free["joules_per_token"]
    assert free["joules_per_token"] == pytest.approx(free["wall_w"] / free["tokens_per_s_per_chip"])
    assert free["kwh"] == pytest.approx(free["days"] * 24.0 * 8 * free["wall_w"] / 1000.0)


def test_the_least_energy_is_the_least_of_the_caps_that_were_tried() -> None:
    from rackline.arch import model
    from rackline.parallel import parse_layout, precision
    from rackline.passes import calibration

    on = cluster("dgx-h100").with_num_chips(1)
    MODEL, WORK, NUMBERS = model("llama-3.1-8b"), Workload(input_len=500.0, output_len=100.0), calibration("vllm", H100)
    space = SearchSpace(layouts=[parse_layout("tp=1", MODEL)])
    serves = System.of(MODEL, on, calibration=NUMBERS, precisions=[precision("bf16", MODEL, H100)])

    found, tried = least_energy(serves, Demand(workload=WORK), space, prefill=None, served=False)
    joules = [one.joules_per_output_token for one in tried]
    assert [one.cap_w for one in tried] == list(caps_of(on))
    assert tried[0].cap_w is None
    assert found.best is not None
    assert found.best.energy is not None
    assert found.objective == "joules"
    assert found.best.energy.joules_per_output_token == pytest.approx(min(joules))
    assert min(joules) < joules[0]
    own = capped(on, 400.0)
    assert caps_of(own) == (400.0,)
    assert capped(own, 400.0) is own


def test_engines_are_ranked_by_the_energy_of_each_point() -> None:
    """Every layout × batch by hand: idle power and kernels of a request at the plug, over its output."""
    from rackline.arch import model
    from rackline.parallel import parse_layout, precision
    from rackline.passes import calibration
    from rackline.serving.fleet import power_at, request_joules
    from rackline.serving.steady import steady_state

    llama, work, numbers = model("llama-3.1-8b"), Workload(input_len=500.0, output_len=100.0), calibration("vllm", H100)
    on, limits = cluster("dgx-h100").with_num_chips(2), Constraints(tpot_s=0.02)
    among = SearchSpace(
        layouts=[parse_layout(text, llama) for text in ("tp=1", "tp=2")],
        modes=[parse_mode("chunked=2048")],
        batches=np.array([1, 8, 64, 256]),
    )
    serves = System.of(llama, on, calibration=numbers, precisions=[precision("bf16", llama, H100)])
    space = Space.of(serves, work, among)
    best: dict[str, tuple[float, int]] = {}
    for layout in among.layouts or ():
        engine = serves.engine(layout)
        state = steady_state(engine, work, space.modes[0], space.batches)
        for place, batch in enumerate(space.batches.tolist()):
            if state.tpot_s[place] > 0.02 or state.prefill_utilisation[place] >= 1.0:
                continue
            rate = batch / (float(state.hold_s[place]) + 99.0 * float(state.tpot_s[place]))
            joules = request_joules(engine, layout, work, batch)
            power = power_at(on, joules, rate, layout.chips_per_replica)
            assert power is not None
            each = power.wall_w * layout.chips_per_replica / rate / 100.0
            best[layout.label()] = min(best.get(layout.label(), (np.inf, 0)), (each, batch))
    ranked = ranked_by_energy(space, limits, among)
    order = sorted(best, key=lambda label: best[label][0])
    assert [kept.layouts[0].label() for _, kept in ranked] == order
    assert [int(kept.batches[-1]) for _, kept in ranked] == [best[label][1] for label in order]


def test_pools_of_a_run_draw_power() -> None:
    asked = {"on": "dgx-h100", "rate": 10, "requests": 150, "input": "2k", "output": 60, "chips": 3}
    found = rl.simulate("llama-3.1-8b", **asked, layout="tp=1", prefill_replicas=1).to_dict()
    energy = found["energy"]
    host = wall_w(cluster("dgx-h100"), energy["prefill_chip_w"])
    assert energy["power_w"] == pytest.approx(2.0 * energy["wall_w"] + host)
    assert energy["joules_per_request"] == pytest.approx(energy["power_w"] / found["requests_per_s"], rel=0.01)
    assert energy["joules_per_output_token"] == pytest.approx(energy["joules_per_request"] / 60.0)
    assert energy["chip_w"] < 700.0
    busier = rl.simulate("llama-3.1-8b", **{**asked, "rate": 20}, layout="tp=1", prefill_replicas=1).to_dict()["energy"]
    assert busier["prefill_chip_w"] > energy["prefill_chip_w"]
    assert busier["joules_per_output_token"] < energy["joules_per_output_token"]


def test_least_energy_needs_a_power() -> None:
    nameless = replace(cluster("dgx-h100"), chip=replace(H100, power=None))
    with pytest.raises(
        InputError, match="objective: got 'joules', allowed: dollars: nothing is known of h100-sxm's power"
    ):
        caps_of(nameless)


@pytest.mark.parametrize(
    ("cap", "said"),
    [
        ("50W", "error: power cap: got '50 W', allowed: 228 to 700 W on h100-sxm; nearest: 228W"),
        ("fast", "error: --power-cap: got 'fast', allowed: watts such as 500W"),
    ],
)
def test_caps_that_cannot_be(cap: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"explain llama-3.1-8b --on dgx-h100 --batch 8 --context 1k --power-cap {cap}"
    assert run(command.split()) == 2
    assert capsys.readouterr().err.strip() == said


def test_explain_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(
            [
                "explain",
                "llama-3.1-8b",
                "--on",
                "dgx-h100",
                "--batch",
                "8",
                "--context",
                "1k",
                "--layout",
                "tp=1",
                "--json",
            ]
        )
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    rows = sum(row["joules"] for row in found["rows"] if row["used"])
    assert rows == pytest.approx(found["joules"], rel=0.05)
    assert found["chip_w"] == pytest.approx(found["joules"] / found["server_s"])
    assert found["joules_per_token"] == pytest.approx(found["wall_w"] * found["server_s"] / 8)

"""Power of chips: energy of passes, limits and caps, power of machines, and the fit to measured servings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from helpers import cluster, deploy
from rackline.catalog import names
from rackline.errors import InputError
from rackline.hardware import ChipPower, checked_cap, chip, drawn_w, wall_w
from rackline.parallel import Deployment
from rackline.passes import Batch
from rackline.passes.breakdown import joule_numbers, pass_energy
from rackline.passes.features import as_array
from rackline.passes.row import clock_share, converts, feature_names
from rackline.serving.closed_loop import engine_of
from rackline.serving.fleet import mean_step, output_joules, power_at, power_of, prompt_joules, request_joules
from rackline.serving.stack import IDEAL, stack
from rackline.serving.steady import steady_state
from rackline.serving.workload import Mode, Workload
from rackline.validation.cases import Case
from rackline.validation.fit_cases import FITTED, PowerCase, fit_power, power_case, single_numbers

H100 = cluster("dgx-h100").chip
POWER = H100.power
assert POWER is not None


def served(layout: str = "tp=4", *, cap_w: float | None = None) -> Deployment:
    found = deploy("llama-3.1-70b", layout, on="dgx-h100")
    on = replace(found.cluster, chip=replace(found.cluster.chip, power_cap_w=cap_w))
    return replace(found, cluster=on)


TABLE = served().table()


def test_energy_of_a_pass_is_the_sum_of_what_its_rows_do() -> None:
    """The rows' joules, written out by hand from amounts and seconds."""
    table = served().table()
    time = table.time(Batch(decode_sequences=64.0, context_len=4000.0))
    expected = 0.0
    for row in time.used_rows:
        if "scale_up" in row.amounts:
            expected += POWER.joules_per_link_byte * sum(row.amounts.values())
            continue
        expected += POWER.joules_per_flop * row.amounts.get("compute", 0.0)
        expected += POWER.joules_per_hbm_byte * row.amounts.get("hbm", 0.0)
        expected += POWER.busy_w * (row.seconds - row.overhead_s)
    expected += POWER.busy_w * time.host_s
    found = float(table.kernel_joules(Batch(decode_sequences=64.0, context_len=4000.0)))
    assert found == pytest.approx(expected, rel=1e-9)
    energy = pass_energy(time, table.chip, time.seconds)
    assert energy is not None
    assert energy.joules == pytest.approx(found + POWER.idle_w * time.seconds)
    assert sum(energy.rows) == pytest.approx(energy.joules - (POWER.busy_w + POWER.idle_w) * time.host_s, rel=1e-6)
    assert not energy.capped


def test_dense_prompts_run_at_the_limit() -> None:
    table = served().table()
    time = table.time(Batch(prefill_sequences=4.0, chunk_tokens=2048.0))
    energy = pass_energy(time, table.chip, time.seconds)
    assert energy is not None
    assert energy.capped
    assert energy.chip_w == POWER.limit_w
    assert sum(energy.rows) == pytest.approx(POWER.limit_w * time.seconds, rel=0.02)


@given(st.floats(1.0, 500.0), st.floats(10.0, 1e5))
def test_grids_and_breakdowns_agree(sequences: float, context_len: float) -> None:
    table = TABLE
    batch = Batch(decode_sequences=sequences, context_len=context_len)
    time = table.time(batch)
    energy = pass_energy(time, table.chip, 1e9)  # nearly idle, so that no limit cuts it
    assert energy is not None
    kernels = float(table.kernel_joules(batch)) - POWER.busy_w * time.host_s
    idle = POWER.idle_w * sum(row.seconds for row in time.used_rows)
    assert sum(energy.rows) - idle == pytest.approx(kernels, rel=1e-2)  # of kernels for one job, grids take the least


def test_features_and_layouts_stay() -> None:
    """Joules are linear in the features that seconds are."""
    table = served().table()
    rows = joule_numbers(table.numbers(), table.chip).rows
    assert feature_names(one.row for one in rows) == feature_names(table.rows)


def test_chips_without_limit_have_no_power() -> None:
    nameless = replace(H100, power=None)
    assert np.isnan(drawn_w(nameless, 10.0, 1.0))
    bare = replace(cluster("dgx-h100"), chip=nameless)
    found = power_of(bare, float("nan"))
    assert found is not None
    assert (found.basis, found.wall_w) == ("nameplate", bare.power_w_per_chip)
    assert power_of(replace(bare, power_w_per_chip=None), 0.0) is None
    table = replace(served().table(), chip=nameless)
    assert pass_energy(table.time(Batch(decode_sequences=1.0, context_len=10.0)), nameless, 1.0) is None
    assert float(table.kernel_joules(Batch(decode_sequences=1.0, context_len=10.0))) == 0.0


def test_a_generation_shares_its_numbers_and_others_take_shares_of_their_limit() -> None:
    h200, gb200, v5p = (chip(name).power for name in ("h200-sxm", "gb200", "tpu-v5p"))
    assert h200 is not None
    assert gb200 is not None
    assert v5p is not None
    assert (h200.origin, h200.joules_per_flop, h200.other_generation) == ("h100-sxm", POWER.joules_per_flop, False)
    assert gb200.origin == "b200-sxm"
    assert gb200.idle_w / gb200.limit_w == pytest.approx(230.0 / 1000.0)
    assert v5p.other_generation
    share = v5p.joules_per_flop * chip("tpu-v5p").peak_16_bit / v5p.limit_w
    mine = [one.joules_per_flop * chip(name).peak_16_bit / one.limit_w for name, one in OWN.items()]
    assert share == pytest.approx(sum(mine) / len(mine))


OWN = {name: one for name in ("h100-sxm", "b200-sxm") if (one := chip(name).power) is not None}


def test_every_chip_with_a_limit_has_power_below_it_when_idle() -> None:
    for name in names("chips"):
        found = chip(name)
        assert (found.power is None) == (found.power_w is None), name
        if found.power is not None:
            assert 0 < found.power.idle_w < found.power.limit_w, name


def test_what_converts() -> None:
    assert [converts(one) for one in ("fp8_block", "int4_bf16", "fp8", "bf16", "fp4")] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_a_cap_lowers_power_and_costs_dense_products_time() -> None:
    free, capped = served(), served(cap_w=450.0)
    prompts = Batch(prefill_sequences=4.0, chunk_tokens=2048.0)
    slow, fast = capped.table().time(prompts), free.table().time(prompts)
    at_cap = pass_energy(slow, capped.cluster.chip, slow.seconds)
    at_limit = pass_energy(fast, free.cluster.chip, fast.seconds)
    assert at_cap is not None
    assert at_limit is not None
    assert at_cap.chip_w == 450.0
    assert slow.seconds > 1.1 * fast.seconds
    assert at_cap.joules < at_limit.joules
    expected = ((450.0 - POWER.idle_w) / (POWER.limit_w - POWER.idle_w)) ** 0.5
    assert clock_share(capped.cluster.chip, "bf16", "bf16", 700e12) == pytest.approx(expected)
    assert clock_share(free.cluster.chip, "bf16", "bf16", 700e12) == 1.0


def test_a_cap_costs_memory_bound_steps_next_to_nothing() -> None:
    batch = Batch(decode_sequences=4.0, context_len=8000.0)
    free, capped = (served(cap_w=cap).table().time(batch).seconds for cap in (None, 400.0))
    assert free <= capped < 1.05 * free


@pytest.mark.parametrize("cap_w", [100.0, 900.0, -5.0])
def test_caps_that_no_chip_can_be_set_to(cap_w: float) -> None:
    with pytest.raises(InputError, match=r"power cap: got .* allowed: 228 to 700 W on h100-sxm; nearest:"):
        checked_cap(H100, cap_w)
    with pytest.raises(InputError, match="a chip whose power is known"):
        checked_cap(replace(H100, power=None), 300.0)
    assert checked_cap(H100, 300.0) == 300.0


def test_a_cap_may_be_the_lowest_and_the_highest_that_a_chip_takes() -> None:
    least = POWER.idle_w + 0.2 * (POWER.limit_w - POWER.idle_w)
    for cap_w in (least, POWER.limit_w):
        assert checked_cap(H100, cap_w) == cap_w
    for beyond in (least * (1 - 1e-9), POWER.limit_w * (1 + 1e-9)):
        with pytest.raises(InputError, match="power cap"):
            checked_cap(H100, beyond)


def test_a_cap_slows_from_what_a_kernel_draws() -> None:
    """At and above its power a kernel keeps the clock; below, power beyond idle goes with the square of the clock."""
    assert POWER.clock_under(500.0, 500.0) == POWER.clock_under(501.0, 500.0) == 1.0
    assert POWER.clock_under(None, 500.0) == 1.0
    assert POWER.clock_under(POWER.limit_w, 2 * POWER.limit_w) == 1.0, "no kernel draws more than the limit"
    quarter = POWER.idle_w + 0.25 * (500.0 - POWER.idle_w)
    assert POWER.clock_under(quarter, 500.0) == pytest.approx(0.5, rel=1e-12)


def test_a_machine_draws_its_chips_its_host_and_what_supplies_lose() -> None:
    on = replace(cluster("dgx-h100"), host_w_per_chip=100.0, supply_efficiency=0.5)
    assert wall_w(on, 400.0) == 1000.0
    assert wall_w(cluster("dgx-h100"), 500.0) == pytest.approx((500.0 + 200.0) / 0.94)


def test_energy_of_requests_agrees_with_that_of_steps() -> None:
    """Requests per second times joules of a request, over the chips, is joules of a step over its time."""
    deployment = deploy("llama-3.1-70b", "tp=2,pp=2", on="dgx-h100")
    engine, work = engine_of(deployment, IDEAL), Workload(input_len=500.0, output_len=200.0)
    state = steady_state(engine, work, Mode(), 32.0)
    rate, step_s = float(state.requests_per_s), float(state.tpot_s)
    joules = request_joules(engine, deployment.layout, work, 32.0)
    chips = deployment.layout.chips_per_replica
    per_step = float(engine.table.kernel_joules(mean_step(engine, work, 32.0)))
    assert joules * rate / chips == pytest.approx(per_step / step_s, rel=1e-6)
    apart = output_joules(engine, deployment.layout, work, 32.0) + prompt_joules(
        engine, deployment.layout, work, 8192.0
    )
    assert apart == pytest.approx(joules, rel=0.35)  # passes full of prompts, and steps without any
    found = power_at(deployment.cluster, joules, rate, chips)
    assert found is not None
    assert POWER.idle_w < found.chip_w <= POWER.limit_w
    assert found.joules_per_request(chips, rate) == pytest.approx(found.wall_w * chips / rate)


def made_case(sequences: float, power: ChipPower, noise: float = 0.0) -> PowerCase:
    """A serving whose measured power follows from known numbers."""
    deployment = deploy("llama-3.1-8b", "tp=1", on="dgx-h100")
    engine, work = engine_of(deployment, IDEAL), Workload(input_len=250.0, output_len=600.0)
    case = Case(
        case_id="made",
        kind="serve",
        where="here",
        measured={},
        model="llama-3.1-8b",
        chip="h100-sxm",
        values={"concurrency": sequences},
    )
    made = power_case(case, engine, single_numbers(engine), work, 1.0)
    rate = sequences / (1.2 * made.kernels_s)
    watts = made.watts(power, made.step_s(rate)) * (1.0 + noise)
    return replace(made, case=replace(case, measured={"output_tokens_per_s": rate, "power_w_per_chip": watts}))


def test_the_fit_finds_the_numbers_that_made_the_measurements() -> None:
    true = replace(POWER, busy_w=200.0, joules_per_flop=0.6e-12, joules_per_hbm_byte=50e-12)
    cases = [made_case(sequences, true) for sequences in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)]
    fitted = fit_power(cases)["h100-sxm"]
    for one in cases:
        rate = one.case.measured["output_tokens_per_s"]
        assert one.watts(fitted, one.step_s(rate)) == pytest.approx(one.case.measured["power_w_per_chip"], rel=1e-3)
    for name in ("busy_w", "joules_per_flop", "joules_per_hbm_byte"):
        assert getattr(fitted, name) == pytest.approx(getattr(true, name), rel=0.05), name


def test_readings_at_the_limit_are_not_fitted() -> None:
    true = replace(POWER, busy_w=200.0, joules_per_flop=0.6e-12, joules_per_hbm_byte=50e-12)
    cases = [made_case(sequences, true) for sequences in (1.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)]
    limit = [
        replace(one, case=replace(one.case, measured={**one.case.measured, "power_w_per_chip": 699.0})) for one in cases
    ]
    assert fit_power([*cases, *limit]) == fit_power(cases)


def test_few_cases_keep_the_catalogues_numbers() -> None:
    assert fit_power([made_case(8.0, POWER)]) == {"h100-sxm": POWER}
    assert set(FITTED) <= set(ChipPower.__dataclass_fields__)


def test_arrays_of_power() -> None:
    found = drawn_w(H100, np.array([0.0, 10.0, 1e6]), np.array([1.0, 0.1, 1.0]))
    assert found.tolist() == [POWER.idle_w, POWER.idle_w + 100.0, POWER.limit_w]
    assert as_array(found).shape == (3,)


def test_padding_is_spared_at_the_clock_of_its_row() -> None:
    """Padded rows of experts cost next to nothing: their share of the arithmetic is taken off at the same clock."""
    around = stack("vllm", version="0.12.0", chip=chip("h200-sxm"))
    found = deploy("qwen3-235b-a22b", "tp=4", on="dgx-h200", label="fp8_block", calibration="vllm")
    found = replace(found, calibration=around.calibrated(found.calibration, "hopper"))
    on = replace(found.cluster, chip=replace(found.cluster.chip, power_cap_w=350.0))
    assert on.chip.power is not None
    seconds = replace(found, cluster=on).table().numbers()
    (padded,) = (one for one in joule_numbers(seconds, on.chip).rows if one.row.padding)
    (before,) = (one for one in seconds.rows if one.row.padding)
    assert 0.0 < before.clock_share < 1.0
    row = padded.row
    for feature in row.padding:
        flop = row.compute[feature] - row.padding[feature]
        joules = on.chip.power.flop_joules(row.compute_dtype or row.dtype) * before.clock_share * flop
        joules += on.chip.power.joules_per_hbm_byte * row.hbm.get(feature, 0.0)
        assert padded.overhead_s[feature] == pytest.approx(joules)

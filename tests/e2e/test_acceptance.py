"""Forty questions of real use: answers are launchable, paid, within limits when served, and agree across commands."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import rackline as rl
from helpers import assert_parses, flags_of_engines
from rackline.arch import Model
from rackline.hardware import cluster
from rackline.search import Choice, Plan
from rackline.search.candidate import Pool
from rackline.search.launch_rules import Asked, Role, launch_rules

FLAGS = flags_of_engines()

_FILE = Path(__file__).with_name("acceptance.toml")
QUESTIONS: list[dict[str, Any]] = tomllib.loads(_FILE.read_text(encoding="utf-8"))["questions"]
_OWN = ("id", "ask", "why", "slow", "expect")
_MIX = "share,input,output\n0.8,500,200\n0.2,6000,400\n"


@cache
def answered(name: str) -> Any:
    one = next(question for question in QUESTIONS if question["id"] == name)
    options = {key: value for key, value in one.items() if key not in _OWN}
    if "mix" in options:
        options["mix"] = str(_mix())
    ask = getattr(rl, one["ask"])
    first = next((options.pop(key) for key in ("model", "names", "sheets") if key in options), None)
    return ask(first, **options)


@cache
def _mix() -> Path:
    import tempfile

    file = Path(tempfile.mkdtemp()) / "mix.csv"
    file.write_text(_MIX)
    return file


def _cases(ask: str) -> list[object]:
    return [
        pytest.param(one, id=one["id"], marks=[pytest.mark.nightly] if one.get("slow") else [])
        for one in QUESTIONS
        if one["ask"] == ask
    ]


def test_there_are_forty() -> None:
    assert len({one["id"] for one in QUESTIONS}) == len(QUESTIONS) == 40


@pytest.mark.parametrize("one", _cases("plan"))
def test_a_plan_is_launchable_paid_served_and_possible(one: dict[str, Any]) -> None:
    answer, expect = answered(one["id"]), one["expect"]
    plan: Plan = answer.result.plan
    if "warning" in expect:
        assert any(expect["warning"] in text for text in answer.warnings)
    if not expect.get("feasible", plan.best is not None):
        assert plan.best is None
        assert expect["reason"] in plan.reason
        return
    assert plan.best is not None, plan.reason
    assert plan.best.num_chips == expect.get("chips", plan.best.num_chips)
    assert plan.best.billed_chips == expect.get("billed", plan.best.billed_chips)
    assert len(plan.demand.limits.latencies()) == expect.get("limits", len(plan.demand.limits.latencies()))
    if "use" in expect:
        assert f"for {expect['use']}" in answer.result.use.text
    _launchable(answer, plan, plan.best)
    _paid(plan, plan.best)
    _served(plan, plan.best)
    _possible(plan, plan.best)
    if "fleet" in expect:
        _fleet(answer, expect["fleet"])


def _launchable(answer: Any, plan: Plan, best: Choice) -> None:
    """The engine's rules allow each part, its parser takes each command, and heads, experts and chips divide."""
    starting = answer.result.starting
    if plan.rules_name:
        engine, _, version = plan.rules_name.partition(" ")
        rules = launch_rules(engine, version)
        prefill, decode = best.prefill_pool, best.decode_pool
        parts: list[tuple[Role, Choice | Pool]] = [("both", best)]
        if prefill is not None and decode is not None:
            parts = [("prefill", prefill), ("decode", decode)]
        for role, part in parts:
            on = (starting.options.prefill_on if role == "prefill" else None) or plan.system.cluster
            asked = Asked(
                model=plan.system.model,
                cluster=on,
                sharding=part.layout,
                precision=part.precision,
                mode=part.mode,
                role=role,
                cp=part.layout.cp,
            )  # fmt: skip
            assert rules.refusal(asked) is None
    stack = starting.options.stack
    if stack in FLAGS:
        version, flags = max(FLAGS[stack].items(), key=lambda pair: [int(part) for part in pair[0].split(".")])
        for command in replace(starting, options=replace(starting.options, version=version)).commands():
            assert not command.lacks
            if command.role == "router":
                continue
            assert_parses(command.words, flags, f"{stack} {version}")
            assert command.chips_per_replica * command.replicas <= plan.system.cluster.num_chips
    model, pools = plan.system.model, [best.prefill_pool, best.decode_pool]
    layouts = [best.layout, *(pool.layout for pool in pools if pool is not None)]
    for layout in layouts:
        assert layout.chips_per_replica * layout.dp <= plan.system.cluster.num_chips
        if isinstance(model, Model):
            heads = {kind.num_q_heads for kind in model.attention_kinds().values() if hasattr(kind, "num_q_heads")}
            assert all(count % layout.tp == 0 for count in heads), (heads, layout.label())
            assert model.num_layers >= layout.pp
    assert sum(layout.chips_per_replica * layout.dp for layout in layouts[1:] or layouts) == best.num_chips
    assert best.max_num_seqs >= 1


def _paid(plan: Plan, best: Choice) -> None:
    """Whole units, at most the cluster, and the cost per token is their rent over what is served."""
    unit, price = plan.system.cluster.rented_chips, plan.system.cluster.usd_per_chip_hour
    assert best.num_chips <= best.billed_chips <= max(plan.system.cluster.num_chips, unit)
    assert best.billed_chips % unit == 0 or best.billed_chips == plan.system.cluster.num_chips
    if price is not None:
        per_hour = best.requests_per_s * plan.demand.workload.output_len * 3600.0
        assert best.usd_per_mtok_output_all_in == pytest.approx(best.billed_chips * price / per_hour * 1e6, rel=1e-6)


def _served(plan: Plan, best: Choice) -> None:
    """The simulated requests keep the limits; Little's law holds between them."""
    assert best.sustained is not None or best.not_simulated
    if best.sustained is None:
        return
    found = best.sustained.simulated
    for name, limit, percentile in plan.demand.limits.latencies():
        assert getattr(found, name).at(percentile) <= limit
    steps = plan.demand.workload.output_len - 1.0
    if plan.demand.workload.mixture is None:
        assert found.e2e_s.mean == pytest.approx(found.ttft_s.mean + steps * found.tpot_s.mean, rel=1e-3)
    assert best.requests_per_s <= best.saturation_requests_per_s * (1.0 + 1e-9)


def _possible(plan: Plan, best: Choice) -> None:
    """No chip reads or multiplies more than its data sheet says."""
    model, chip = plan.system.model, plan.system.cluster.chip
    if not isinstance(model, Model):
        return
    work, precision = plan.demand.workload, best.precision
    peak = max(chip.peak_flop_per_s.values())
    new = best.requests_per_s * (work.new_tokens + work.output_len)
    assert 2.0 * model.active_params * new <= best.num_chips * peak * 1.02, precision.short()
    # a step reads the active weights at least once, in four bits at the least
    weights_s = 0.5 * model.active_params / (best.layout.chips_per_replica * chip.hbm_bytes_per_s)
    assert best.tpot_s >= weights_s


def _fleet(answer: Any, expect: dict[str, float]) -> None:
    fleet, best = answer.result.fleet, answer.result.plan.best
    cluster = answer.result.plan.system.cluster
    unit = min(cluster.rented_chips, cluster.num_chips)  # of a cluster that is set to fewer chips, all of them
    assert fleet.billed_chips % unit == 0
    assert fleet.num_chips <= fleet.billed_chips < fleet.num_chips + 2 * unit
    assert fleet.copies * fleet.copy_tokens_per_s >= fleet.traffic.capacity_tokens_per_s * (1.0 - 1e-9)
    if "requests_per_s" in expect:
        assert fleet.requests_per_s == pytest.approx(expect["requests_per_s"])
    if fleet.interactive is not None:
        users = fleet.interactive.population
        waits = fleet.requests_per_s * (users.think_s + fleet.interactive.response_s)
        assert waits == pytest.approx(users.users)
        assert fleet.interactive.response_s <= (best.ttft_s + best.tpot_s * best.workload.output_len) * 1.001


@pytest.mark.parametrize("one", _cases("train"))
def test_a_run_fits_or_says_why_and_takes_about_what_was_published(one: dict[str, Any]) -> None:
    found, expect = answered(one["id"]).to_dict(), one["expect"]
    best = found["best"]
    if not expect["feasible"]:
        assert best is None
        assert expect["reason"] in found["reason"]
        return
    assert best["memory"]["total_bytes"] <= cluster(one["on"]).chip.hbm_bytes
    layout = best["layout"]
    chips = layout["tp"] * layout["pp"] * layout["cp"] * layout["dp"]
    assert chips == best["num_chips"] == one["chips"]
    if "mfu" in expect:
        low, high = expect["mfu"]
        assert low <= best["mfu"] <= high
    if "chip_hours" in expect:
        hours = best["days"] * 24.0 * best["num_chips"]
        low, high = expect["within"]
        assert low <= hours / expect["chip_hours"] <= high, hours


def test_what_fits_follows_from_bytes() -> None:
    one = answered("does 70B fit").to_dict()
    assert one["fits"]
    even = [row for row in one["rows"] if row["layout"]["pp"] == 1]
    assert even
    for row in even:
        ranks = row["layout"]["tp"]
        assert row["kv_bytes_per_sequence"] * ranks == pytest.approx(327_680 * 8000, rel=1e-6)
    assert not answered("does DeepSeek-V3 fit").to_dict()["fits"]


def test_a_step_reads_its_weights() -> None:
    one = next(question for question in QUESTIONS if question["ask"] == "explain")
    found = answered(one["id"]).to_dict()
    assert found["seconds"] >= one["expect"]["seconds_at_least"]
    assert found["binds"] == one["expect"]["binds"]


def test_modes_and_tiers_of_a_price_are_in_order() -> None:
    tiers = [tier for tier in answered("what to charge").to_dict()["tiers"] if not tier["reason"]]
    assert {tier["mode"] for tier in tiers} >= {"standard", "batch", "flex"}
    by_mode: dict[str, list[dict[str, Any]]] = {}
    for tier in tiers:
        by_mode.setdefault(tier["mode"], []).append(tier)
        assert tier["usd_per_mtok_cached_input"] <= tier["usd_per_mtok_input"] * (1 + 1e-9)
        assert tier["usd_per_mtok_input"] <= tier["usd_per_mtok_output"]
    standard = {tier["until_len"]: tier for tier in by_mode["standard"]}
    for mode, sign in (("batch", -1), ("flex", -1), ("fast", 1), ("priority", 1)):
        for tier in by_mode.get(mode, []):
            usual = standard[tier["until_len"]]["usd_per_mtok_output_all_in"]
            assert sign * (tier["usd_per_mtok_output_all_in"] - usual) >= -1e-9 * usual, mode


def test_sheets_and_cache_tiers_are_answered() -> None:
    sheets = answered("what a price reveals").to_dict()["sheets"]
    assert len(sheets) == 1
    found = answered("keep a cache or compute it again").to_dict()
    assert found["tiers"]
    assert found["hold_times"]


def test_more_bandwidth_and_memory_serve_more() -> None:
    first, second = answered("compare chips").to_dict()["sides"]
    rates = [side["values"]["output_tokens_per_s_per_chip"] for side in (first, second)]
    assert rates[1] > rates[0]


def _rate(**changes: Any) -> Choice:
    asked = {"on": "dgx-h100", "chips": 1, "input": 1000, "output": 200, "precision": "fp8", "use": "batch"}
    best = rl.plan("llama-3.1-8b", **{**asked, **changes}).result.plan.best
    assert best is not None
    return best


def test_a_limit_and_whole_units_never_make_an_answer_cheaper() -> None:
    """The same question with one thing more that must be kept."""
    free, limited = _rate(), _rate(tpot="15ms@p99")
    assert limited.usd_per_mtok_output_all_in >= free.usd_per_mtok_output_all_in * 0.97
    used = _rate(bill="used")
    assert used.usd_per_mtok_output_all_in <= free.usd_per_mtok_output_all_in * 1.03
    dearer = _rate(rent="on-demand")
    assert dearer.usd_per_mtok_output_all_in >= free.usd_per_mtok_output_all_in * 0.97


@pytest.mark.parametrize("name", ["chat on one H100 node", "8B on L40S", "DeepSeek-V3 on one H200 node"])
def test_explain_says_of_a_plan_what_the_plan_says(name: str) -> None:
    """Decode step and memory of the deployment that the plan recommends."""
    plan: Plan = answered(name).result.plan
    best = plan.aggregated if plan.aggregated is not None else plan.best
    assert best is not None
    if best.serving != "aggregated":
        pytest.skip("only pools keep the limits")
    found = rl.explain(
        plan.system.model.name,
        on=plan.system.cluster.name,
        layout=replace(best.layout, dp=1).label(),
        precision=best.precision.label,
        calibration=plan.system.calibration.name,
        batch=best.engine.batch_size,
        context=plan.demand.workload.mean_context,
    ).to_dict()
    weights = float(sum(float(value) for value in best.inside.memory.weights.values()))
    assert found["memory"]["weights_bytes"] == pytest.approx(weights, rel=1e-6)
    assert found["seconds"] == pytest.approx(best.inside.decode.seconds, rel=1e-6)

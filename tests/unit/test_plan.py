"""The plan against brute force, and its answers when nothing fits."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from helpers import cluster, deploy, layouts, model, numbers, planned, system, types
from rackline.errors import InputError
from rackline.parallel import Layout, Routing
from rackline.plain import plain
from rackline.search import BATCH_GRID, Candidate, Plan, SearchSpace, default_modes
from rackline.search.choice import floors
from rackline.search.misfit import best_free_bytes
from rackline.serving.stack import IDEAL, stack
from rackline.serving.steady import Engine, steady_state
from rackline.serving.workload import Mode, Workload
from rackline.system import Constraints, System, default_precisions
from rackline.units import format_bytes, parse_bytes

WORK = Workload(input_len=2000, output_len=500)
SMALL_BATCHES = np.array([1, 2, 3, 4])
SMALL_MODES = [
    Mode(admission="chunked", max_batched_tokens=2048),
    Mode(admission="prefill_first", max_batched_tokens=4096, two_batch_overlap=True),
]
SMALL_LAYOUTS = [
    Layout(tp=8, ep=8),
    Layout(tp=4, ep=4, pp=2),
    Layout(tp=2, attention_dp=4, ep=8),
    Layout(attention_dp=8, ep=4, moe_tp=2),
    Layout(tp=2, ep=2),
]


@cache
def small_plan(tpot_s: float | None = 0.02, ttft_s: float | None = 1.0) -> Plan:
    return planned(
        model("qwen3-235b-a22b"),
        cluster("dgx-h200"),
        WORK,
        precisions=[types(label, "qwen3-235b-a22b", "dgx-h200") for label in ("bf16", "fp8")],
        calibration=numbers("generic", "dgx-h200"),
        constraints=Constraints(tpot_s=tpot_s, ttft_s=ttft_s),
        served=False,
        search_space=SearchSpace(modes=SMALL_MODES, layouts=SMALL_LAYOUTS, batches=SMALL_BATCHES),
    )


@cache
def every_point() -> tuple[dict[str, object], ...]:
    """The same space, one scalar deployment at a time."""
    points: list[dict[str, object]] = []
    price = cluster("dgx-h200").usd_per_chip_hour
    assert price is not None
    for layout, label, mode, batch in itertools.product(SMALL_LAYOUTS, ("bf16", "fp8"), SMALL_MODES, SMALL_BATCHES):
        if mode.two_batch_overlap and (layout.attention_dp == 1 or batch == 1):
            continue  # no exchange between ranks to overlap, or no two halves
        d = deploy("qwen3-235b-a22b", layout, on="dgx-h200", label=label, routing=stack("generic").experts.routing)
        engine = Engine(
            table=d.table(),
            attention_dp=float(layout.attention_dp),
            micro_batches=float(layout.pp),
            stage_imbalance=d.stage_imbalance,
            num_layers=d.model.num_layers,
            stack=stack("generic"),
        )
        state = steady_state(engine, WORK, mode, float(batch))
        sequences = int(batch) * layout.attention_dp * layout.pp
        free = d.memory(
            sequences=sequences,
            context_len=WORK.final_context,
            server=stack("generic").server_memory(mode.max_batched_tokens),
        ).free
        rate = WORK.output_len / (WORK.output_len - 1.0) * sequences / float(state.tpot_s) / layout.chips_per_replica
        points.append(
            {
                "layout": layout,
                "label": label,
                "mode": mode,
                "batch": int(batch),
                "tpot_s": float(state.tpot_s),
                "ttft_s": float(state.ttft_s),
                "cost": price / 3600.0 / rate * 1e6,
                "free": float(free),
                "utilisation": float(state.prefill_utilisation),
            }
        )
    return tuple(points)


def test_every_point_was_looked_at() -> None:
    found = small_plan()
    assert found.candidates_evaluated == len(every_point())
    combinations = {(p["layout"], p["label"], p["mode"]) for p in every_point()}
    assert found.combinations == len(combinations)


@pytest.mark.parametrize(("tpot_s", "ttft_s"), [(None, None), (0.02, 1.0), (0.014, None), (0.02, 0.25), (0.009, None)])
def test_best_is_the_cheapest_of_brute_force(tpot_s: float | None, ttft_s: float | None) -> None:
    found = small_plan(tpot_s, ttft_s)
    good = [
        p
        for p in every_point()
        if p["free"] >= 0  # type: ignore[operator]
        and p["utilisation"] < 1  # type: ignore[operator]
        and (tpot_s is None or p["tpot_s"] <= tpot_s)  # type: ignore[operator]
        and (ttft_s is None or p["ttft_s"] <= ttft_s)  # type: ignore[operator]
    ]
    if not good:
        assert found.aggregated is None
        assert found.reason
        return
    cheapest = min(good, key=lambda p: p["cost"])  # type: ignore[arg-type, return-value]
    assert found.aggregated is not None
    assert found.aggregated.usd_per_mtok_output_all_in == pytest.approx(cheapest["cost"], rel=1e-9)
    assert found.aggregated.tpot_s == pytest.approx(cheapest["tpot_s"], rel=1e-9)
    assert found.aggregated.ttft_s == pytest.approx(cheapest["ttft_s"], rel=1e-9)
    assert isinstance(found.aggregated.estimate, Candidate)
    assert found.aggregated.estimate.free_bytes == pytest.approx(cheapest["free"], rel=1e-9)
    assert found.aggregated.engine.sequences_per_rank == cheapest["batch"]
    assert found.aggregated.precision.label == cheapest["label"]
    assert found.aggregated.mode == cheapest["mode"]


def test_the_front_is_that_of_brute_force() -> None:
    fits = [p for p in every_point() if p["free"] >= 0 and p["utilisation"] < 1]  # type: ignore[operator]

    def beaten(p: dict[str, object]) -> bool:
        return any(
            q["tpot_s"] <= p["tpot_s"] and q["cost"] <= p["cost"] and q is not p  # type: ignore[operator]
            for q in fits
        )

    expected = sorted((p["tpot_s"], p["cost"]) for p in fits if not beaten(p))
    found = [(c.tpot_s, c.usd_per_mtok_output_all_in) for c in small_plan().pareto]
    assert np.array(found) == pytest.approx(np.array(expected), rel=1e-9)


def test_overlap_is_planned_where_requests_arrive_at_random() -> None:
    found = planned(
        model("qwen3-235b-a22b"),
        cluster("dgx-h200"),
        WORK,
        precisions=[types("fp8", "qwen3-235b-a22b", "dgx-h200")],
        calibration=numbers("generic", "dgx-h200"),
        constraints=Constraints(tpot_s=0.05, ttft_s=2.0),
        search_space=SearchSpace(modes=SMALL_MODES[1:], layouts=[Layout(attention_dp=8, ep=8)], batches=SMALL_BATCHES),
    )
    assert found.aggregated is not None, found.reason
    assert found.aggregated.sustained is not None
    assert found.aggregated.mode.two_batch_overlap
    assert found.aggregated.engine.sequences_per_rank >= 2


def test_ranked_starts_with_the_best_and_keeps_the_limits() -> None:
    found = small_plan()
    assert found.ranked
    costs = [c.usd_per_mtok_output_all_in for c in found.ranked]
    assert costs == sorted(costs)
    assert all(c.tpot_s <= 0.02 and c.ttft_s <= 1.0 and c.free_bytes >= 0 for c in found.ranked)
    keys = [(c.layout, c.precision.label) for c in found.ranked]
    assert len(set(keys)) == len(keys)


@cache
def full_plan(on: str = "gb200-nvl72") -> Plan:
    return planned(
        model("deepseek-v3"),
        cluster(on),
        Workload(input_len=4000, output_len=1000),
        calibration=numbers("generic", on),
        constraints=Constraints(tpot_s=0.03, ttft_s=2.0),
        served=False,
        search_space=SearchSpace(any_layout=True),
    )


def test_the_main_job_is_exhaustive() -> None:
    found = full_plan()
    assert found.candidates_evaluated >= 100_000
    assert found.combinations >= 2_000
    num = len(layouts("deepseek-v3", 72))
    overlapping = sum(layout.attention_dp > 1 for layout in layouts("deepseek-v3", 72))
    precisions = len(default_precisions(model("deepseek-v3"), cluster("gb200-nvl72").chip))
    plain = 8  # seven budgets of chunks and prompts first; each overlapped where there are ranks to overlap
    assert found.combinations == precisions * plain * (num + overlapping)
    # a batch of one sequence has no halves to overlap
    alone = precisions * plain * overlapping
    assert found.candidates_evaluated == found.combinations * len(BATCH_GRID) - alone
    assert len(default_modes(model("deepseek-v3"), IDEAL)) == 2 * plain


def test_the_best_keeps_every_limit_and_fills_the_rack() -> None:
    found = full_plan()
    assert found.aggregated is not None
    best = found.aggregated.estimate
    assert isinstance(best, Candidate)
    assert best.tpot_s <= 0.03
    assert best.ttft_s <= 2.0
    assert best.free_bytes >= 0
    assert best.prefill_utilisation < 1
    assert best.num_chips <= 72 < best.num_chips + best.layout.chips_per_replica
    assert best.batch_size == best.sequences_per_rank * best.layout.attention_dp * best.layout.pp
    rate = 1000 / 999 * best.batch_size / best.tpot_s / best.layout.chips_per_replica
    assert best.output_tokens_per_s_per_chip == pytest.approx(rate)
    price = cluster("gb200-nvl72").usd_per_chip_hour
    assert price is not None
    assert best.usd_per_mtok_output_all_in == pytest.approx(price / 3600 / rate * 1e6)
    # the bill of one request, prompt and answer at their prices, is all that its output tokens cost
    request = 4000 * best.usd_per_mtok_input + 1000 * best.usd_per_mtok_output
    assert request == pytest.approx(1000 * best.usd_per_mtok_output_all_in)


def test_refining_the_batch_never_costs_more_than_the_grid() -> None:
    found = full_plan()
    assert found.aggregated is not None
    assert found.aggregated.usd_per_mtok_output_all_in <= found.ranked[0].usd_per_mtok_output_all_in
    same = [one for one in found.ranked if one.layout == found.aggregated.layout]
    assert same  # a refined batch may bring another layout to the top
    assert found.aggregated.engine.sequences_per_rank >= same[0].sequences_per_rank


def test_details_belong_to_the_best() -> None:
    found = full_plan()
    alone = found.aggregated
    assert alone is not None
    assert isinstance(alone.estimate, Candidate)
    inside = alone.inside
    assert inside.floors is not None
    assert inside.decode.seconds <= alone.tpot_s
    assert float(inside.memory.free) == pytest.approx(alone.estimate.free_bytes)
    assert inside.floors.latency_ratio > 1
    assert inside.floors.cost_ratio > 1
    assert inside.floors.latency_ratio * inside.floors.latency_s == pytest.approx(alone.tpot_s)


def test_the_front_trades_speed_for_cost() -> None:
    front = full_plan().pareto
    assert len(front) > 5
    speed = [c.tokens_per_s_per_user for c in front]
    cost = [c.usd_per_mtok_output_all_in for c in front]
    assert speed == sorted(speed, reverse=True)
    assert cost == sorted(cost, reverse=True)
    assert all(c.free_bytes >= 0 and c.prefill_utilisation < 1 for c in front)


@pytest.mark.parametrize("which", ["full", "small", "tight"])
def test_rejected_break_exactly_the_limit_that_is_named(which: str) -> None:
    found = {
        "full": full_plan,
        "small": small_plan,
        "tight": lambda: small_plan(0.014, 0.25),
    }[which]()
    limits = found.demand.limits
    assert limits.tpot_s is not None
    assert limits.ttft_s is not None
    named = {rejected.reason.split(":")[0] for rejected in found.rejected}
    assert named
    for rejected in found.rejected:
        one = rejected.candidate
        broken = {
            "memory": one.free_bytes < 0,
            "tpot": one.tpot_s > limits.tpot_s,
            "prefill": one.prefill_utilisation >= 1,
            "ttft": one.prefill_utilisation < 1 and one.ttft_s > limits.ttft_s,
        }
        assert [name for name, value in broken.items() if value] == [rejected.reason.split(":")[0]]
        assert rejected.excess > 0
        assert "\n" not in rejected.reason


def test_the_nearest_rejected_is_the_nearest_of_brute_force() -> None:
    found = small_plan(0.014, None)
    assert found.aggregated is not None
    over = [
        p["tpot_s"] / 0.014 - 1  # type: ignore[operator]
        for p in every_point()
        if p["free"] >= 0  # type: ignore[operator]
        and p["utilisation"] < 1  # type: ignore[operator]
        and p["tpot_s"] > 0.014  # type: ignore[operator]
        and p["cost"] < found.aggregated.usd_per_mtok_output_all_in  # type: ignore[operator]
    ]
    (rejected,) = (r for r in found.rejected if r.reason.startswith("tpot"))
    assert rejected.excess == pytest.approx(min(over), rel=1e-9)


@pytest.mark.parametrize("name", ["vllm", "sglang", "trtllm"])
def test_fits_nowhere_counts_memory_by_the_rule_of_the_stack(name: str) -> None:
    found = planned(model("llama-3.1-405b"), cluster("l40s-8"), WORK, calibration=numbers(name, "l40s-8"))
    asked, chip = found.system, found.system.cluster.chip
    server = asked.server()
    has = {
        "memory": server.memory_fraction * chip.program_bytes,
        "free": chip.program_bytes - server.context_bytes,  # weights alone are more than that
    }
    needs, _, usable = found.reason.partition("a chip needs ")[2].partition(", has ")
    assert parse_bytes(needs) > parse_bytes(usable)
    if server.fraction_of in has:
        assert usable == format_bytes(has[server.fraction_of])


def test_fits_nowhere_names_a_cluster_that_does() -> None:
    found = planned(model("llama-3.1-405b"), cluster("l40s-8"), WORK, calibration=numbers("generic", "l40s-8"))
    assert found.aggregated is None
    assert found.pareto == found.ranked == ()
    assert "llama-3.1-405b fits nowhere on l40s-8" in found.reason
    assert "a chip needs" in found.reason
    need = found.need
    assert need is not None
    assert need.cluster is not None
    assert need.num_chips == cluster(need.cluster).num_chips
    free, _ = best_free_bytes(system("llama-3.1-405b", on=need.cluster, label=None), WORK)
    assert free >= 0
    again = planned(model("llama-3.1-405b"), cluster(need.cluster), WORK, calibration=numbers("generic", need.cluster))
    assert again.best is not None
    json.dumps(plain(found), allow_nan=False)


def test_limits_that_nothing_keeps_say_what_is_possible() -> None:
    found = small_plan(1e-4, 1.0)
    assert found.aggregated is None
    assert found.need is None
    assert "fastest tpot" in found.reason
    assert "lowest ttft" in found.reason
    assert found.pareto


def test_no_price_counts_chip_hours() -> None:
    kept = {
        "calibration": numbers("generic", "dgx-h100"),
        "search_space": SearchSpace(layouts=[Layout(tp=8)]),
        "precisions": [types("bf16", "llama-3.1-70b", "dgx-h100")],
    }
    free = replace(cluster("dgx-h100"), usd_per_chip_hour=None)
    unpriced = planned(model("llama-3.1-70b"), free, WORK, **kept)  # type: ignore[arg-type]
    priced = planned(model("llama-3.1-70b"), cluster("dgx-h100"), WORK, **kept)  # type: ignore[arg-type]
    assert not unpriced.priced
    assert priced.priced
    assert unpriced.aggregated is not None
    assert priced.aggregated is not None
    price = cluster("dgx-h100").usd_per_chip_hour
    assert priced.aggregated.usd_per_mtok_output_all_in == pytest.approx(
        unpriced.aggregated.usd_per_mtok_output_all_in * price
    )


def test_aggregate_models_are_planned() -> None:
    found = planned(model("lecture-frontier"), cluster("gb200-nvl72"), WORK, calibration=numbers("unit"))
    assert found.aggregated is not None
    assert found.combinations == 72 * len(
        default_precisions(model("lecture-frontier"), cluster("gb200-nvl72").chip)
    ) * len(default_modes(model("lecture-frontier"), IDEAL))


def test_an_empty_space_is_refused() -> None:
    with pytest.raises(InputError, match=r"layouts: got 0, allowed: at least one layout of llama-3.1-70b"):
        planned(
            model("llama-3.1-70b"),
            cluster("dgx-h100"),
            WORK,
            calibration=numbers("generic", "dgx-h100"),
            search_space=SearchSpace(layouts=[]),
        )


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ({"tpot_s": 0.0}, "tpot_s: got 0.0, allowed: more than 0 s; nearest: 0.03"),
        ({"ttft_s": -1.0}, "ttft_s: got -1.0"),
        ({"tpot_s": float("nan")}, "tpot_s: got nan"),
    ],
)
def test_bad_limits(kept: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Constraints(**kept)


@pytest.mark.parametrize("fraction", [0.0, 1.1])
def test_bad_memory_fractions(fraction: float) -> None:
    with pytest.raises(InputError, match=f"memory_fraction: got {fraction}, allowed: above 0 to 1"):
        System.of(
            model("llama-3.1-8b"),
            cluster("dgx-h100"),
            calibration=numbers("generic", "dgx-h100"),
            memory_fraction=fraction,
        )


def test_plain_data_has_the_keys_that_programs_rely_on() -> None:
    data = json.loads(json.dumps(plain(full_plan()), allow_nan=False))
    assert {"candidates_evaluated", "best", "pareto", "rejected"} <= set(data)
    needed = {
        "layout",
        "batch_size",
        "num_chips",
        "tpot_s",
        "ttft_s",
        "output_tokens_per_s_per_chip",
        "usd_per_mtok_input",
        "usd_per_mtok_output",
        "memory",
        "binding",
        "serving",
        "prefill_pool",
        "decode_pool",
        "usd_per_mtok_output_all_in",
    }
    assert needed <= set(data["best"])
    assert needed <= set(data["runner_up"])
    assert {data["best"]["serving"], data["runner_up"]["serving"]} == {"aggregated", "disaggregated"}
    for choice in (data["best"], data["runner_up"]):
        assert (choice["prefill_pool"] is None) == (choice["serving"] == "aggregated")
        assert (choice["decode_pool"] is None) == (choice["serving"] == "aggregated")
        all_in = choice["usd_per_mtok_output"] + choice["usd_per_mtok_input"] * 4000 / 1000
        assert all_in == pytest.approx(choice["usd_per_mtok_output_all_in"])


def test_batch_grid_is_distinct_and_whole() -> None:
    assert len(set(BATCH_GRID.tolist())) == len(BATCH_GRID)
    assert BATCH_GRID[0] == 1
    assert np.all(np.diff(BATCH_GRID) > 0)


def test_skewed_routing_costs_more() -> None:
    kept = {
        "calibration": numbers("generic", "gb200-nvl72"),
        "search_space": SearchSpace(layouts=[Layout(attention_dp=32, ep=32)]),
        "constraints": Constraints(tpot_s=0.05),
        "served": False,
        "precisions": [types("fp8", "deepseek-v3", "gb200-nvl72")],
    }
    costs: list[float] = []
    for routing in (Routing(law="balanced"), Routing(law="uniform"), Routing(law="power_law", exponent=0.5)):
        found = planned(model("deepseek-v3"), cluster("gb200-nvl72"), WORK, routing=routing, **kept)  # type: ignore[arg-type]
        assert found.aggregated is not None
        costs.append(found.aggregated.usd_per_mtok_output_all_in)
    assert costs == sorted(costs)
    assert costs[0] < costs[2]


def test_json_holds_no_infinity() -> None:
    """A batch that never fills has no ttft; strict JSON has no word for infinity."""
    found = planned(
        model("llama-3.1-70b"),
        cluster("dgx-h200"),
        Workload(input_len=20000, output_len=100),
        calibration=numbers("generic", "dgx-h200"),
        constraints=Constraints(tpot_s=0.2),
        search_space=SearchSpace(modes=[Mode(admission="chunked", max_batched_tokens=2048)]),
    )
    assert any(rejected.reason.startswith("prefill") for rejected in found.rejected)
    json.dumps(plain(found), allow_nan=False)


@pytest.mark.parametrize(
    ("name", "on"),
    [("llama-3.1-70b", "dgx-h200"), ("gpt-oss-120b", "dgx-b200"), ("deepseek-v3", "gb200-nvl72")],
)
def test_no_candidate_of_the_front_is_below_a_floor(name: str, on: str) -> None:
    """A small batch of a mixture of experts reads only the experts that it touches: its floor is not all weights."""
    work = Workload(input_len=4000, output_len=1000)
    found = planned(
        model(name),
        cluster(on),
        work,
        calibration=numbers("generic", on),
        search_space=SearchSpace(layouts=layouts(name, 8), batches=np.array([1, 2, 4, 16, 64, 256])),
    )
    price = cluster(on).usd_per_chip_hour
    assert price is not None
    assert found.pareto
    for candidate in found.pareto:
        d = replace(deploy(name, candidate.layout, on=on), precision=candidate.precision)
        bound = floors(d, work, candidate.tpot_s, candidate.usd_per_mtok_output, price / 3600.0)
        assert bound.latency_ratio >= 1.0, candidate.layout.label()
        assert bound.cost_ratio >= 1.0, candidate.layout.label()

"""What is taken where a question says nothing: stack, precision, machine; and what is named where nothing fits."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

import rackline as rl
from helpers import system
from rackline.api.answer import Watch
from rackline.api.plan import Planned, WhatIf
from rackline.api.plan_parts import PlanQuestion
from rackline.api.resolve import resolve_on
from rackline.arch import AnyModel, Model, model
from rackline.catalog import measured_stacks, names
from rackline.catalog.index import usual_machine
from rackline.errors import UnknownNameError
from rackline.hardware import cluster, cluster_record
from rackline.parallel import precision
from rackline.passes import calibration
from rackline.passes.fallback import best_stack
from rackline.search.fits import best_free_bytes, nearest_cluster
from rackline.search.stacks import comparable_stacks, usual_stack
from rackline.serving.workload import Workload
from rackline.system import System, default_precisions

CHAT = Workload(input_len=2048, output_len=512)
MODELS = ("gpt-oss-120b", "llama-3.1-70b", "deepseek-v3", "qwen3-30b-a3b")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("place", ["dgx-h100", "dgx-b200", "l40s-8"])
def test_the_stack_is_the_same_whatever_is_asked(name: str, place: str) -> None:
    on = cluster(place)
    found = usual_stack(model(name), on)
    assert found.name in comparable_stacks(on.chip)
    assert found.ratio >= 1.0
    assert found.second != found.name
    for other in (on.with_num_chips(1), on.with_num_chips(4), replace(on, rented_chips=1, usd_per_chip_hour=9.0)):
        assert usual_stack(model(name), other) == found


def test_a_remembered_stack_belongs_to_values_not_to_names() -> None:
    known, on = model("deepseek-v3"), cluster("dgx-b200")
    assert isinstance(known, Model)
    thinner = replace(known, layer_groups=tuple(replace(one, count=1) for one in known.layer_groups))
    slower = replace(on, chip=replace(on.chip, hbm_bytes_per_s=on.chip.hbm_bytes_per_s / 4))
    first = usual_stack(known, on)
    ratios = {usual_stack(one, place).ratio for one in (known, thinner) for place in (on, slower)}
    assert len(ratios) == 4
    assert usual_stack(known, on) == first
    assert usual_stack(known, on) is usual_stack(known, replace(on, usd_per_chip_hour=1.0))


def test_a_stack_is_one_with_kernels_measured_on_the_chip_and_rules_of_its_own() -> None:
    for place in ("dgx-h100", "dgx-a100", "mi300x-8", "tpu-v5e-16"):
        chip = cluster(place).chip
        known = comparable_stacks(chip)
        assert set(known) <= set(measured_stacks()) & set(names("launch_rules"))
        if not known:
            assert usual_stack(model("llama-3.1-8b"), cluster(place)).name == best_stack(chip)
    assert comparable_stacks(cluster("tpu-v5e-16").chip) == []


def test_the_stack_costs_little_to_find() -> None:
    of, on = model("deepseek-v3"), cluster("dgx-h200")
    usual_stack(of, on)
    start = time.thread_time()
    usual_stack(of, on)
    assert time.thread_time() - start < 0.5  # 0.03 s on a quiet core


def resolved(
    of: AnyModel, place: str, precision: str | tuple[str, ...] = "", calibration: str = "auto"
) -> tuple[str, list[str], list[str]]:
    """(stack, labels of the precisions, what was taken by default)."""
    watch, on = Watch(), cluster(place)
    asked = PlanQuestion(model=of, on=on, precision=precision or None, calibration=calibration)
    found = resolve_on(asked, of, on, watch)
    return found.calibration.name, [one.label for one in found.precisions], watch.defaults


def test_precision_is_the_checkpoints_own_unless_asked() -> None:
    of = model("llama-3.1-70b")
    assert resolved(of, "dgx-h100")[1] == ["native"]
    assert resolved(of, "dgx-h100", precision="fp8")[1] == ["fp8"]
    assert resolved(of, "dgx-h100", precision=("fp8", "bf16"))[1] == ["fp8", "bf16"]
    everything = [one.label for one in default_precisions(of, cluster("dgx-h100").chip)]
    assert resolved(of, "dgx-h100", precision=("any",))[1] == everything


def test_the_stack_is_named_with_the_next() -> None:
    stack, _, said = resolved(model("gpt-oss-120b"), "dgx-h100")
    assert len(said) == 1
    assert said[0].startswith(f"stack {stack}: ")
    assert usual_stack(model("gpt-oss-120b"), cluster("dgx-h100")).second in said[0]
    assert resolved(model("gpt-oss-120b"), "dgx-h100", calibration="trtllm") == ("trtllm", ["native"], [])
    assert resolved(model("llama-3.1-8b"), "tpu-v5e-16")[2] == []


@pytest.mark.parametrize(
    ("name", "machine"),
    [("h100", "dgx-h100"), ("H200", "dgx-h200"), ("rtx-4090", "rtx-4090-8"), ("gb200", "gb200-nvl72"),
     ("tpu-v5e", "tpu-v5e-16"), ("mi300x", "mi300x-8"), ("dgx-h100", "dgx-h100")],
)  # fmt: skip
def test_a_chip_stands_for_its_usual_machine(name: str, machine: str) -> None:
    assert cluster(name).name == machine


def test_every_machine_has_its_chip_and_is_the_smallest() -> None:
    for name in names("chips"):
        machine = usual_machine(name)
        same = [cluster_record(one) for one in names("clusters") if cluster(one).chip.name == name]
        assert (machine is None) == (not same)
        assert machine is None or cluster(machine).num_chips == min(one.num_chips for one in same)


def test_a_chip_without_a_machine_is_told() -> None:
    with pytest.raises(UnknownNameError, match="rackline new cluster"):
        cluster("l4")


@pytest.mark.parametrize(
    ("name", "place", "chips", "wanted", "narrower"),
    [("llama-3.1-405b", "dgx-h100", 8, ("dgx-h100", 16), "fp8"), ("kimi-k2", "dgx-h100", 8, ("dgx-h100", 16), ""),
     ("llama-3.1-70b", "dgx-h100", 1, ("dgx-h100", 2), "fp8")],
)  # fmt: skip
def test_more_of_the_same_chips_come_first(
    name: str, place: str, chips: int, wanted: tuple[str, int], narrower: str
) -> None:
    serves = system(name, on=place, label="native", calibration="auto").with_chips(chips)
    assert best_free_bytes(serves, CHAT)[0] < 0
    need = nearest_cluster(serves, CHAT)
    assert (need.cluster, need.num_chips, need.narrower) == (*wanted, narrower)
    assert best_free_bytes(serves.with_chips(need.num_chips), CHAT)[0] >= 0


def test_then_a_cluster_of_the_same_vendor() -> None:
    of = model("deepseek-v3")
    on = replace(cluster("l40s-8"), levels=cluster("l40s-8").levels[:1])
    numbers = calibration("auto", on.chip)
    types = [precision("native", of, on.chip)]
    need = nearest_cluster(System.of(of, on, calibration=numbers, precisions=types), CHAT)
    assert need.cluster is not None
    assert cluster(need.cluster).chip.vendor == "NVIDIA"


FASTER = ("peak_flop_per_s.bf16=3375e12",)  # 1.5 times: the cheapest stack is another one


def test_a_better_chip_keeps_the_stack_but_in_a_plan_which_says_so() -> None:
    kept = rl.explain("qwen3-235b-a22b", on="dgx-b200", batch=64, context="4k", layout="tp=8,ep=8", set=FASTER)
    plain = rl.explain("qwen3-235b-a22b", on="dgx-b200", batch=64, context="4k", layout="tp=8,ep=8")
    assert kept.defaults == plain.defaults
    assert kept.result.explanation.time.seconds <= plain.result.explanation.time.seconds
    ask: dict[str, Any] = {
        "on": "dgx-b200",
        "chips": 8,
        "input": 2000,
        "output": 200,
        "layout": "tp=8,ep=8",
        "use": "batch",
    }
    again = rl.plan("qwen3-235b-a22b", **ask, set=FASTER)
    assert isinstance(again.result, Planned)
    before = kept.result.explanation.deployment.calibration.name
    assert again.result.plan.system.calibration.name != before
    assert f"chosen again, the cheapest for what was set; without it {before}" in again.defaults[0]
    same = rl.plan("qwen3-235b-a22b", **ask, what_if="peak_flop_per_s.bf16=3375e12")
    assert isinstance(same.result, WhatIf)
    assert [one.plan.system.calibration.name for one in same.result.points] == [before]


def test_commands_take_the_same() -> None:
    names_of = {
        ask: found.to_dict()
        for ask, found in {
            "fit": rl.fit("gpt-oss-120b", on="h100", context="4k"),
            "explain": rl.explain("gpt-oss-120b", on="h100", batch=8, context="4k"),
            "plan": rl.plan("gpt-oss-120b", on="h100", chips=2, input="2k", output=200, use="batch"),
        }.items()
    }
    said = {tuple(found["defaults"]) for found in names_of.values()}
    assert len(said) == 1

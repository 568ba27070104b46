"""What is taken where a question says nothing: stack, precision, machine; and what is named where nothing fits."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

import rackline as rl
from helpers import system
from rackline.api.answer import Watch
from rackline.api.plan_parts import PlanQuestion
from rackline.api.resolve import resolve_on
from rackline.arch import AnyModel, Model, model
from rackline.bands.defaults import (
    default_engine,
    engines_of,
    most_measured,
    numbers_of,
    stacks_on,
    usual_shares,
)
from rackline.catalog import measured_stacks, names
from rackline.catalog.index import usual_machine
from rackline.errors import UnknownNameError
from rackline.hardware import cluster, cluster_record
from rackline.parallel import precision
from rackline.passes import calibration
from rackline.search.misfit import best_free_bytes, nearest_cluster
from rackline.serving.workload import Workload
from rackline.system import System, default_precisions

CHAT = Workload(input_len=2048, output_len=512)


def by_chip() -> dict[str, list[str]]:
    """Clusters of the catalogue by their chip."""
    found: dict[str, list[str]] = {}
    for name in names("clusters"):
        found.setdefault(cluster(name).chip.name, []).append(name)
    return found


MODELS = ("gpt-oss-120b", "llama-3.1-70b", "deepseek-v3", "qwen3-30b-a3b")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("place", ["dgx-h100", "dgx-b200", "l40s-8"])
def test_the_engine_is_the_same_whatever_is_asked(name: str, place: str) -> None:
    on = cluster(place)
    found = engines_of(model(name), on)
    assert set(found) == set(stacks_on(on.chip))
    for other in (on.with_num_chips(1), on.with_num_chips(4), replace(on, rented_chips=1, usd_per_chip_hour=9.0)):
        assert engines_of(model(name), other) == found


@pytest.mark.parametrize("place", [next(iter(of)) for _, of in sorted(by_chip().items())])
def test_the_default_is_the_rule_for_every_model(place: str) -> None:
    """vLLM where it runs, unless the rows of another engine cover 20 percentage points more of the step."""
    on = cluster(place)
    runs = on.chip.vendor in ("NVIDIA", "AMD", "Intel", "Google", "Amazon", "Huawei")
    for name in names("models"):
        shares = usual_shares(model(name), on)
        found = default_engine(model(name), on)
        usual = "vllm" if runs else "generic"
        leads = {engine: share - shares.get("vllm", 0.0) for engine, share in shares.items()}
        wins = [engine for engine, lead in leads.items() if lead >= 0.2 - 1e-9]
        if wins:
            assert shares[found] == pytest.approx(max(shares.values()), abs=1e-6)
            assert found in wins
        else:
            assert found == usual
        assert found in ("generic", *stacks_on(on.chip)) or found == usual


def test_a_lead_of_twenty_points_changes_the_engine() -> None:
    assert most_measured({"a": 0.6, "b": 0.79}, "a") == "a"
    assert most_measured({"a": 0.6, "b": 0.80}, "a") == "b"
    assert most_measured({"b": 0.1, "c": 0.25}, "a") == "c"
    assert most_measured({"b": 0.1}, "a") == most_measured({}, "a") == "a"


def test_an_engine_runs_with_its_own_numbers_or_those_that_engines_share() -> None:
    assert numbers_of("sglang", cluster("dgx-h100").chip) == "sglang"
    assert numbers_of("vllm", cluster("rtx-4090-8").chip) == "vllm"
    assert numbers_of("llama-cpp", cluster("rtx-4090-8").chip) == "generic"
    assert numbers_of("vllm", cluster("tpu-v6e-256").chip) == "xla"


def test_remembered_shares_belong_to_values_not_to_names() -> None:
    known, on = model("deepseek-v3"), cluster("dgx-b200")
    assert isinstance(known, Model)
    slower = replace(on, chip=replace(on.chip, hbm_bytes_per_s=on.chip.hbm_bytes_per_s / 4))
    first = usual_shares(known, on)
    assert usual_shares(known, slower) != first
    assert usual_shares(known, on) is usual_shares(known, replace(on, usd_per_chip_hour=1.0))


def test_a_stack_is_one_with_kernels_measured_on_the_chip_and_rules_of_its_own() -> None:
    for place in ("dgx-h100", "dgx-a100", "mi300x-8", "tpu-v5e-16"):
        known = stacks_on(cluster(place).chip)
        assert set(known) <= set(measured_stacks()) & set(names("launch_rules"))
    assert stacks_on(cluster("tpu-v5e-16").chip) == ()
    assert len(stacks_on(cluster("dgx-a100").chip)) == 3


def test_the_engine_costs_little_to_find() -> None:
    of, on = model("deepseek-v3"), cluster("dgx-h200")
    default_engine(of, on)
    start = time.thread_time()
    default_engine(of, on)
    assert time.thread_time() - start < 0.5  # 0.01 s on a quiet core


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


def test_the_engine_is_named() -> None:
    assert resolved(model("gpt-oss-120b"), "dgx-h100")[::2] == ("vllm", ["engine vllm (--engine)"])
    engine, _, said = resolved(model("gpt-oss-120b"), "gb200-nvl72")
    assert engine == "sglang"
    assert said[0].startswith("engine sglang: its own measurements cover ")
    assert resolved(model("gpt-oss-120b"), "dgx-h100", calibration="trtllm") == ("trtllm", ["native"], [])


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
        cluster("t4")


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


FASTER = ("peak_flop_per_s.bf16=3375e12",)


def test_what_is_set_never_brings_another_default_engine() -> None:
    ask: dict[str, Any] = {"on": "dgx-b200", "batch": 64, "context": "4k", "layout": "tp=8,ep=8"}
    kept, plain = rl.explain("qwen3-235b-a22b", **ask, set=FASTER), rl.explain("qwen3-235b-a22b", **ask)
    assert kept.defaults == plain.defaults
    assert kept.result.explanation.time.seconds <= plain.result.explanation.time.seconds


def test_commands_that_compare_no_engines_take_the_same() -> None:
    said = {
        tuple(found.defaults)
        for found in (
            rl.fit("gpt-oss-120b", on="h100", context="4k"),
            rl.explain("gpt-oss-120b", on="h100", batch=8, context="4k"),
            rl.tiers("gpt-oss-120b", on="h100"),
        )
    }
    assert len(said) == 1

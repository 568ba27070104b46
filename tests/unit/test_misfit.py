"""Why something does not fit: memory by part, and the changes that make it fit, each by arithmetic of its own."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

import rackline as rl
from rackline.api.answer import Answer
from rackline.hardware import chip, cluster, host_bytes_per_s
from rackline.search.misfit import LESS_WORK, Change, Misfit
from rackline.units import format_bytes

GB = 1e9
LLAMA_8B = 8_030_261_248
LLAMA_70B = 70_553_706_496
LLAMA_405B = 405_853_388_800


def text_of(answer: Answer[Any, Any]) -> str:
    console = Console(width=120, file=StringIO())
    for part in answer.text(120):
        console.print(part)
    return console.file.getvalue()  # type: ignore[attr-defined]


def misfit_of(answer: Answer[Any, Any]) -> Misfit:
    found = answer.result.misfit
    assert found is not None
    return found


def change(found: Misfit, kind: str) -> Change:
    return next(one for one in found.tried if one.kind == kind)


def settings_of(one: Change) -> dict[str, str]:
    """What a change says to ask, as options of a question."""
    words = one.setting.split()
    return {
        name.removeprefix("--").replace("-", "_"): value for name, value in zip(words[::2], words[1::2], strict=True)
    }


def asked_again(verb: Any, model: str, one: Change, **asked: Any) -> Any:
    return verb(model, **{**asked, **settings_of(one)}).result


def test_parts_of_a_server_are_counted_and_add_up_to_the_chip():
    memory = rl.fit("llama-3.1-70b", on="dgx-h100", context=32_000).result.memory
    assert memory.layout.startswith("tp=8")
    kv = 80 * 2 * 8 / 8 * 128 * 2.0 * 32_000  # layers, keys and values, heads of a rank, width, bytes, tokens
    assert memory.parts["weights"] == pytest.approx(LLAMA_70B * 2 / 8, rel=1e-3)
    assert memory.parts["KV cache"] == pytest.approx(kv, rel=1e-3)
    assert sum(memory.parts.values()) + memory.free_bytes == pytest.approx(chip("h100-sxm").hbm_bytes)
    assert memory.parts["overhead"] > 0.08 * chip("h100-sxm").hbm_bytes  # gpu_memory_utilization of vLLM is 0.92


def test_what_fits_has_no_misfit():
    assert rl.fit("llama-3.1-8b", on="dgx-h100").result.misfit is None


@pytest.mark.parametrize(
    ("model", "asked"),
    [
        ("llama-3.1-405b", {"on": "dgx-h100", "chips": 1, "context": 8_000}),
        ("llama-3.1-70b", {"on": "dgx-h100", "chips": 2, "context": 32_000, "concurrency": 64}),
        ("llama-3.1-70b", {"on": "dgx-h100", "chips": 4, "context": 32_000, "concurrency": 24}),
        ("qwen3-235b-a22b", {"on": "dgx-a100", "chips": 4, "context": 16_000}),
    ],
)
def test_what_is_said_to_fit_fits_when_it_is_asked_and_what_is_said_not_to_does_not(model: str, asked: dict[str, Any]):
    found = misfit_of(rl.fit(model, **asked))
    again = [one for one in found.tried if one.kind not in ("offload", "layout")]
    assert {one.kind for one in again} >= {"precision", "context", "chips", "cluster"}
    for one in again:
        capacity = asked_again(rl.fit, model, one, **asked).capacity
        assert capacity.fits == one.fits, one.setting


def test_a_layout_that_was_asked_for_is_the_first_to_go():
    asked: dict[str, Any] = {"on": "dgx-h100", "context": 32_000, "concurrency": 8}
    found = misfit_of(rl.fit("llama-3.1-70b", layout="tp=1,pp=1", **asked))
    free, more = found.tried[0], change(found, "chips")
    assert (free.kind, free.setting, free.fits) == ("layout", "without --layout", True)
    assert free.fits == rl.fit("llama-3.1-70b", **asked).result.capacity.fits
    assert more.setting.endswith(", without --layout")


def test_fewer_chips_shorter_contexts_and_more_requests_are_not_held():
    asked: dict[str, Any] = {"on": "dgx-h100", "chips": 4, "context": 32_000}
    found = misfit_of(rl.fit("llama-3.1-70b", concurrency=24, **asked))
    more, context, requests = (change(found, kind) for kind in ("chips", "context", "requests"))
    assert more.fits
    assert context.fits
    assert requests.fits
    fits = [rl.fit("llama-3.1-70b", **{**asked, "chips": n}, concurrency=24).result.capacity.fits for n in (4, 8)]
    assert fits == [False, True]
    assert more.num_chips == 8
    longest = int(settings_of(context)["context"])
    assert not rl.fit("llama-3.1-70b", **{**asked, "context": longest + 1_000}, concurrency=24).result.capacity.fits
    most = int(settings_of(requests)["concurrency"])
    assert rl.fit("llama-3.1-70b", **asked).result.capacity.rows[0].total_concurrency == most


def test_dollars_of_a_change_are_its_rent_over_its_tokens():
    found = misfit_of(rl.fit("llama-3.1-405b", on="dgx-h100", chips=1, context=8_000))
    more = change(found, "chips")
    rent = 16 * cluster("dgx-h100").usd_per_chip_hour
    assert more.cost is not None
    assert more.usd_per_hour == pytest.approx(rent)
    assert more.cost.usd_per_mtok == pytest.approx(rent / 3600.0 * more.cost.step_s * 1e6)
    assert more.cost.step_s > LLAMA_405B * 2 / 16 / chip("h100-sxm").hbm_bytes_per_s  # reads its weights at least


def test_weights_on_the_host_are_read_in_every_step():
    found = misfit_of(rl.fit("llama-3.1-405b", on="dgx-h100", chips=1, context=8_000))
    host = change(found, "offload")
    assert host.cost is not None
    assert host.memory is not None
    moved = -found.memory.free_bytes
    read_s = moved / 50e9
    assert read_s < host.cost.step_s < read_s + LLAMA_405B * 2 / chip("h100-sxm").hbm_bytes_per_s * 2
    assert host.memory.free_bytes == pytest.approx(0.0, abs=1.0)
    assert host.setting == f"{-(-moved // 2**30):.0f} GiB of weights a chip on the host"


def test_reading_weights_from_the_host_is_as_slow_as_was_measured():
    """Qwen2-7B on one RTX 4090: 1.65 tokens/s with all weights on the host, 56.87 without; source at `_offload`."""
    weights = 7.616e9 * 2  # huggingface.co/Qwen/Qwen2-7B: 7.62 B parameters in bf16
    step_s = weights / host_bytes_per_s(chip("rtx-4090")) + 1 / 56.87
    assert 1 / step_s == pytest.approx(1.65, rel=0.05)


def test_the_cheapest_does_all_of_the_work_and_the_order_is_that_of_dollars():
    found = misfit_of(rl.train("llama-3.1-8b", on="dgx-h100", chips=1, tokens="1B", global_batch="1M"))
    fitting = [one for one in found.changes if one.fits]
    whole = [one for one in fitting if one.kind not in LESS_WORK]
    costs = [one.cost.usd_per_mtok for one in whole if one.cost is not None]
    assert costs == sorted(costs)
    assert fitting[: len(whole)] == whole
    assert found.cheapest == whole[0]
    assert found.less == fitting[len(whole)]
    assert fitting[len(whole)].gives_up == "training of all weights"


def test_parts_of_a_training_run_are_those_of_mixed_precision():
    found = misfit_of(rl.train("llama-3.1-8b", on="dgx-h100", chips=1, global_batch="1M"))
    parts = found.memory.parts
    assert parts["weights"] == pytest.approx(2 * LLAMA_8B, rel=1e-3)
    assert parts["optimiser states"] == pytest.approx(12 * LLAMA_8B, rel=1e-3)
    inner = sum(size for name, size in parts.items() if name not in ("buffers", "overhead"))
    assert parts["overhead"] == pytest.approx(0.04 * inner)


@pytest.mark.parametrize(
    ("model", "asked"),
    [
        ("llama-3.1-8b", {"chips": 1, "tokens": "1B", "global_batch": "1M"}),
        ("llama-3.1-70b", {"chips": 8, "global_batch": "1M"}),
    ],
)
def test_a_change_of_training_takes_the_time_that_its_question_takes(model: str, asked: dict[str, Any]):
    found = misfit_of(rl.train(model, on="dgx-h100", **asked))
    again = [one for one in found.tried if one.kind != "offload"]
    assert {one.kind for one in again} >= {"optimizer", "precision", "context", "adapters", "chips", "cluster"}
    for one in again:
        plan = asked_again(rl.train, model, one, on="dgx-h100", **asked)
        assert bool(plan.best) == one.fits, one.setting
        if one.cost is not None:
            assert one.cost.step_s == pytest.approx(plan.best[0].step_s), one.setting
            assert one.usd == (None if one.usd is None else pytest.approx(plan.best[0].usd)), one.setting


def test_states_on_the_host_take_their_way_and_the_step_there():
    asked: dict[str, Any] = {"on": "dgx-h100", "chips": 1, "global_batch": "1M", "recompute": ("full",)}
    found = misfit_of(rl.train("llama-3.1-8b", layout="micro_batch=1,zero=1", **asked))
    host = change(found, "offload")
    roomy = rl.train("llama-3.1-8b", layout="micro_batch=1,zero=1", set=("hbm_bytes=200GB",), **asked).result.best[0]
    link_s = (2 + 2) * LLAMA_8B / 50e9  # gradients there, weights back, over PCIe 5.0
    adam_s = 28 * LLAMA_8B / 614.4e9  # one chip has the whole host
    assert host.cost is not None
    assert host.cost.step_s - roomy.step_s == pytest.approx(link_s + adam_s, rel=1e-3)


def test_a_plan_says_what_fits_but_is_too_slow():
    found = misfit_of(
        rl.plan("llama-3.1-405b", on="dgx-h100", chips=1, input="4k", output="1k", tpot="50ms", calibration="vllm")
    )
    assert found.cheapest is not None
    assert found.cheapest.setting == "--chips 16"
    assert found.cheapest.cost is not None
    assert found.cheapest.cost.step_s <= 0.05
    host = change(found, "offload")
    assert not host.fits
    assert host.cost is not None
    assert host.reason == f"fits, but a token takes {host.cost.step_s:.1f} s"


def test_a_plan_is_asked_again_with_its_cheapest_change():
    asked: dict[str, Any] = {"on": "dgx-h100", "output": "1k", "use": "batch", "calibration": "vllm"}
    found = misfit_of(rl.plan("llama-3.1-70b", chips=2, input="128k", **asked))
    for one in (found.cheapest, found.less):
        assert one is not None
        best = rl.plan("llama-3.1-70b", **{"chips": 2, "input": "128k", **asked, **settings_of(one)}).result.plan.best
        assert best is not None, one.setting


def test_what_no_single_change_makes_fit_is_said():
    answer = rl.plan("llama-3.1-70b", on="dgx-h100", input="4M", output="1k", tpot="100ms", calibration="vllm")
    found = misfit_of(answer)
    assert found.cheapest is None
    assert found.less is None
    assert all(one.reason for one in found.tried)
    assert "no single change makes it fit" in text_of(answer)


def test_screen_json_and_figure_say_the_same():
    answer = rl.fit("llama-3.1-405b", on="dgx-h100", chips=1, context="8k")
    found, data, text = misfit_of(answer), answer.to_dict(), text_of(answer)
    assert data["misfit"]["cheapest"] == "--chips 16"
    assert data["misfit"]["memory"]["held_bytes"] == found.memory.held_bytes
    assert "next  --chips 16: $190 per M output tokens" in text
    assert "┃" in text
    missing = -change(found, "precision").memory.free_bytes  # type: ignore[union-attr]
    assert f"--precision fp8,kv=fp8: {format_bytes(missing)} too much on a chip" in text
    frame = answer.tables()["changes"]
    assert [one.setting for one in found.changes if one.fits] == frame["setting"]


@pytest.mark.parametrize(
    "answer",
    [
        lambda: rl.train("llama-3.1-8b", on="dgx-h100", chips=1, global_batch="1M"),
        lambda: rl.fit("llama-3.1-405b", on="dgx-h100", chips=1),
        lambda: rl.plan("llama-3.1-405b", on="dgx-h100", chips=1, input="4k", output="1k", calibration="vllm"),
    ],
    ids=("train", "fit", "plan"),
)
def test_the_figure_of_memory_has_a_bar_for_each_change(answer: Any):
    found = answer()
    drawn = str(found.plot("memory").to_dict())
    shown = [one for one in found.result.misfit.changes if one.memory is not None]
    assert len(shown) > 3
    assert all(one.setting in drawn for one in shown)


def test_what_the_host_holds_is_not_counted_where_it_still_does_not_fit():
    found = misfit_of(rl.train("llama-3.1-70b", on="dgx-h100", chips=1, global_batch="100k", lora=16))
    host, narrow = change(found, "offload"), next(one for one in found.tried if one.setting == "--frozen nf4")
    assert host.memory is not None
    assert host.memory.parts["optimiser states"] == 0.0
    assert not host.fits
    assert narrow in found.changes[: found.changes.index(host)]
    assert narrow.gives_up == "precision of the frozen weights"


def test_states_that_the_host_cannot_hold_stay():
    found = misfit_of(rl.train("llama-3.1-405b", on="dgx-h100", chips=1, global_batch="1M"))
    assert 12 * LLAMA_405B > 2e12  # of one chip, which has the whole host
    assert change(found, "offload").reason == "a chip's share of its host's memory is 2.00 TB"

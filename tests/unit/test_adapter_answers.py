"""Low-rank adapters in answers: parameters as PEFT makes them, memory, rows, and what is said of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rackline as rl
from hub_server import Hub, Repo, serving
from rackline.arch import Model, apply_adapter
from rackline.errors import ConfigError
from rackline.hub.checkpoint import Adapter

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ON: dict[str, Any] = {"on": "dgx-h100", "layout": "tp=1"}


def applied(model: str, *targets: str, rank: int = 16, **more: Any) -> Model:
    built = rl.model(model)
    assert isinstance(built, Model)
    return apply_adapter(built, Adapter(name="a", base="", rank=rank, alpha=16.0, targets=targets, **more))


def params(model: Model) -> int:
    assert model.adapter is not None
    return model.adapter.total_params


def folder(path: Path, **changed: object) -> str:
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": "meta-llama/Llama-3.1-8B",
        "r": 16,
        "target_modules": list(ALL),
    }
    (path / "adapter_config.json").write_text(json.dumps(config | changed), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("targets", "rank", "expected"),
    [
        (ALL, 16, 41_943_040),  # 0.5 % of Llama-3.1-8B: r (4096·2 + 2·(4096 + 1024) + 3·(4096 + 14336)) · 32
        (("q_proj", "v_proj"), 8, 3_407_872),  # PEFT's default for Llama: 8 (8192 + 5120) · 32
        (("all-linear",), 16, 41_943_040),
        (("self_attn.q_proj",), 8, 8 * 8192 * 32),
        ((r"model\.layers\.\d+\.self_attn\.(q|v)_proj",), 8, 3_407_872),
        (("qkv_proj",), 8, 8 * (4096 + 6144) * 32),
    ],
)
def test_parameters_are_those_of_peft(targets: tuple[str, ...], rank: int, expected: int) -> None:
    assert params(applied("llama-3.1-8b", *targets, rank=rank)) == expected


def test_ranks_that_differ_and_layers_that_have_none() -> None:
    plain = params(applied("llama-3.1-8b", *ALL))
    lower = params(applied("llama-3.1-8b", *ALL, rank_pattern=(("down_proj", 8),)))
    assert plain - lower == 8 * (14336 + 4096) * 32
    assert params(applied("llama-3.1-8b", *ALL, layers=tuple(range(8)))) == plain // 4
    whole = params(applied("llama-3.1-8b", *ALL, trained_whole=("lm_head",)))
    assert whole - plain == 128_256 * 4096


def test_latent_attention_and_experts() -> None:
    latent = applied("deepseek-v3", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", rank=1)
    widths = (7168 + 1536, 1536 + 24576, 7168 + 576, 512 + 32768, 16384 + 7168)
    assert params(latent) == 61 * sum(widths)
    experts = applied("mixtral-8x7b", "w1", "w2", "w3", rank=2)
    assert params(experts) == 32 * 8 * 3 * 2 * (4096 + 14336)
    assert experts.adapter is not None
    assert experts.adapter.flop_per_token == 2 * 2 * 32 * 3 * 2 * (4096 + 14336)


def test_a_target_that_no_module_has_is_named() -> None:
    with pytest.raises(ConfigError, match=r"target_modules: got 'q_prj', allowed: modules of llama.*nearest: q_proj"):
        applied("llama-3.1-8b", "q_prj")


def test_explain_has_its_rows_and_its_memory(tmp_path: Path) -> None:
    adapter = folder(tmp_path)
    plain = rl.explain("llama-3.1-8b", batch=8, context="1k", **ON).result.explanation
    answer = rl.explain("llama-3.1-8b", batch=8, context="1k", adapter=adapter, **ON)
    found = answer.result.explanation
    rows = [row for row in found.rows if row.row.group == "adapter"]
    assert len(rows) == 14
    assert sum(row.time.amounts["compute"] for row in rows) == 8 * 2 * 41_943_040
    assert sum(row.row.hbm["1"] for row in rows) == 2 * 41_943_040
    assert found.memory.weight_total - plain.memory.weight_total == 2 * 41_943_040
    assert found.time.seconds > plain.time.seconds
    assert answer.to_dict()["adapter"]["total_params"] == 41_943_040
    assert not answer.warnings
    other = rl.explain("qwen3-8b", batch=8, context="1k", adapter=adapter, **ON)
    assert [text for text in other.warnings if "was made for meta-llama/Llama-3.1-8B, not for qwen3-8b" in text]


def test_tensor_parallelism_cuts_one_of_the_two_products(tmp_path: Path) -> None:
    adapter = folder(tmp_path, target_modules=["q_proj", "o_proj"])
    four = rl.explain("llama-3.1-8b", on="dgx-h100", layout="tp=4", batch=8, context="1k", adapter=adapter)
    held = four.result.explanation.memory.weights["adapter"]
    assert held == 2 * 32 * 16 * 2 * (4096 + 1024)


def test_experts_have_rows_of_their_own(tmp_path: Path) -> None:
    adapter = folder(tmp_path, base_model_name_or_path="", target_modules=["w1", "w2", "w3"])
    found = rl.explain("mixtral-8x7b", on="dgx-h100", layout="tp=2", batch=64, context="1k", adapter=adapter)
    rows = [row for row in found.result.explanation.rows if row.row.group == "adapter"]
    assert {row.row.name for row in rows} == {f"lora_experts_{name}_proj" for name in ("gate", "up", "down")}


def test_fit_makes_room(tmp_path: Path) -> None:
    one: dict[str, Any] = {"on": "dgx-h100", "layout": "tp=1,pp=1", "context": "32k"}
    plain = rl.fit("llama-3.1-8b", **one).result.capacity.rows[0]
    more = rl.fit("llama-3.1-8b", adapter=folder(tmp_path, r=512), **one).result.capacity.rows[0]
    assert more.weights_bytes - plain.weights_bytes == pytest.approx(32 * 2 * 41_943_040, rel=0.001)


def test_models_shows_an_adapter_on_its_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder(tmp_path)
    answer = rl.models(path)
    assert answer.to_dict()["adapter"]["modules"][0] == {
        "name": "self_attn.q_proj", "layers": 32, "copies": 1, "d_in": 4096, "d_out": 4096, "rank": 16,
        "params": 32 * 16 * 8192, "flop": 2.0 * 32 * 16 * 8192,
    }  # fmt: skip
    assert answer.to_dict()["name"] == "llama-3.1-8b"
    hub = Hub(repos={"acme/lora": Repo({"adapter_config.json": (tmp_path / "adapter_config.json").read_bytes()})})
    with serving(hub) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        by_name = rl.models("acme/lora")
        assert by_name.adapter is not None
        assert by_name.adapter.total_params == 41_943_040
        fitted = rl.fit("llama-3.1-8b", context="1k", adapter="acme/lora", **ON)
        assert fitted.adapter is not None

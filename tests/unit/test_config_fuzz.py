"""Mutated config.json files: never a traceback, never a model that contradicts the file in silence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hf_configs
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from rackline.arch import build_model
from rackline.arch.hf import record_from_hf
from rackline.errors import RacklineError

COLLECTION = Path(__file__).resolve().parents[3] / "shared" / "model_configs"
BASES: list[dict[str, Any]] = [value for name, value in vars(hf_configs).items() if name.isupper()]
BASES += [
    json.loads((COLLECTION / f"{stem}.json").read_text())
    for stem in (
        "deepseek-ai--DeepSeek-V4-Flash",
        "zai-org--GLM-5.2",
        "moonshotai--Kimi-K3",
        "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8",
        "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16",
        "MiniMaxAI--MiniMax-M3",
        "XiaomiMiMo--MiMo-V2-Flash",
        "google--gemma-4-26B-A4B",
        "stepfun-ai--Step-3.7-Flash",
        "Qwen--Qwen3.5-35B-A3B",
        "LLMServingSim--microsoft--Phi-mini-MoE-instruct",
    )
    if (COLLECTION / f"{stem}.json").is_file()
]
CYCLE: dict[str, Any] = {}
CYCLE["text_config"] = CYCLE
ODD = st.sampled_from(
    [0, -1, 1, 3, 7, 10**9, 10**30, 1.5, float("nan"), float("inf"), "", "64", "silu", True, None, [], [1], {}, CYCLE]
)


def paths(config: dict[str, Any]) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for key, value in config.items():
        found.append((key,))
        if isinstance(value, dict) and value is not CYCLE:
            found += [(key, *rest) for rest in paths(value)]
    return found


def mutated(config: dict[str, Any], path: tuple[str, ...], value: Any, *, drop: bool) -> dict[str, Any]:
    head, *rest = path
    copy = dict(config)
    if rest:
        copy[head] = mutated(copy[head], tuple(rest), value, drop=drop)
    elif drop:
        copy.pop(head)
    else:
        copy[head] = value
    return copy


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_mutated_file_is_refused_in_one_line_or_gives_a_sound_model(data: st.DataObject) -> None:
    config = data.draw(st.sampled_from(BASES))
    for _ in range(data.draw(st.integers(1, 3))):
        known = paths(config)
        if not known:
            break
        path = data.draw(st.sampled_from(known))
        config = mutated(config, path, data.draw(ODD), drop=data.draw(st.booleans()))
    try:
        model = build_model(record_from_hf(config, "fuzz", "fuzz.json"))
    except RacklineError as error:
        refusal = str(error)
    else:
        refusal = ""
    assert "\n" not in refusal
    if refusal:
        return
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    assert model.total_params >= model.active_params / 2 > 0
    assert model.d_model == text["hidden_size"]
    assert model.vocab_size == text.get("vocab_size", model.vocab_size)
    assert model.num_layers == (
        text.get("num_hidden_layers") or len(text.get("layers_block_type") or text.get("hybrid_override_pattern", ""))
    )
    assert model.kv_bytes_per_token() >= 0


@pytest.mark.parametrize("base", BASES, ids=lambda config: str(config.get("model_type")))
def test_a_key_that_nobody_knows_is_named(base: dict[str, Any]) -> None:
    build_model(record_from_hf(base, "known", "known.json"))
    inner = {"strange_attention_width": 7}
    strange = {**base, **inner}
    if isinstance(base.get("text_config"), dict):
        strange = {**base, "text_config": {**base["text_config"], **inner}}
    with pytest.raises(RacklineError, match="strange_attention_width: got 7"):
        record_from_hf(strange, "strange", "strange.json")

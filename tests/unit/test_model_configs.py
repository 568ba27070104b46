"""Every file of the collection of published config.json files: read, counted, compared with what its makers state.

`python tests/unit/test_model_configs.py` prints the table of docs/model-imports.md.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from published_sizes import EXACT, SAME_AS, SIZES, UNCHECKABLE

from rackline.arch import Model, build_model, read_hf_config
from rackline.arch.hf import record_from_hf
from rackline.errors import ConfigError

CONFIGS = Path(__file__).resolve().parents[3] / "shared" / "model_configs"
FILES = sorted(path for path in CONFIGS.glob("*.json") if path.stem != "literature_configs")
needs_collection = pytest.mark.skipif(not FILES, reason="the collection of published config.json files is not here")


def published(stem: str) -> tuple[float, float, str]:
    return SIZES[SAME_AS.get(stem, stem)]


def counted(path: Path) -> int:
    """Parameters of the language model."""
    model = build_model(read_hf_config(path))
    assert isinstance(model, Model)
    return model.total_params - model.tower_params


def table() -> list[tuple[str, str, str]]:
    """Name, class and remark of every file."""
    rows: list[tuple[str, str, str]] = []
    for path in FILES:
        if path.stem in UNCHECKABLE:
            rows.append((path.stem, "uncheckable", UNCHECKABLE[path.stem]))
            continue
        total, tolerance, where = published(path.stem)
        found = counted(path)
        assert abs(found / total - 1) <= tolerance, path.stem
        kind = "exact" if tolerance == EXACT else "rounded"  # an exact count is published, or a rounded one
        rows.append((path.stem, kind, f"{found / 1e9:.4g}B counted, {found / total - 1:+.2%}; {where}"))
    return rows


@needs_collection
def test_every_file_has_a_class_and_few_are_uncheckable() -> None:
    stems = {path.stem for path in FILES}
    assert stems <= {*SIZES, *SAME_AS, *UNCHECKABLE}
    assert len(UNCHECKABLE) <= 5
    classes = [kind for _, kind, _ in table()]
    assert classes.count("exact") >= 32
    assert classes.count("uncheckable") <= 5


@needs_collection
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_counted_parameters_are_those_that_are_published(path: Path) -> None:
    if path.stem in UNCHECKABLE:
        if path.stem == "moonshotai--Kimi-K3":
            assert build_model(read_hf_config(path)).total_params == pytest.approx(2.78e12, rel=0.01)
            return
        with pytest.raises(ConfigError, match=r"block_configs|quantized_layers"):
            read_hf_config(path)
        return
    total, tolerance, _ = published(path.stem)
    assert counted(path) == pytest.approx(total, rel=tolerance)


@needs_collection
@pytest.mark.parametrize(
    ("stem", "twin"),
    [
        ("nvidia--Qwen3.6-27B-NVFP4", "Qwen--Qwen3.5-27B"),
        ("nvidia--Qwen3.6-35B-A3B-NVFP4", "Qwen--Qwen3.5-35B-A3B"),
        ("nvidia--MiniMax-M3-NVFP4", "MiniMaxAI--MiniMax-M3"),
    ],
)
def test_shape_is_read_where_only_the_quantisation_was_cut(stem: str, twin: str) -> None:
    """Without the cut quantisation block the same file gives the shape of the model that it quantises."""
    config = json.loads((CONFIGS / f"{stem}.json").read_text())
    del config["quantization_config"]
    config.setdefault("dtype", "bfloat16")
    found = build_model(record_from_hf(config, stem, stem))
    assert found.total_params == build_model(read_hf_config(CONFIGS / f"{twin}.json")).total_params


@needs_collection
@pytest.mark.parametrize(
    ("stem", "label"),
    [
        ("moonshotai--Kimi-K2.5", "bf16,experts=int4"),
        ("moonshotai--Kimi-K3", "bf16,experts=mxfp4"),
        ("deepseek-ai--DeepSeek-V4-Pro", "fp8_block,experts=mxfp4,expert_activations=mxfp8"),
        ("nvidia--DeepSeek-V4-Flash-NVFP4", "fp8_block,experts=fp4,expert_activations=fp4"),
        ("nvidia--GLM-5.1-NVFP4", "nvfp4,kv=fp8"),
        ("MiniMaxAI--MiniMax-M2.5", "fp8_block"),
    ],
)
def test_quantisation_by_module(stem: str, label: str) -> None:
    assert read_hf_config(CONFIGS / f"{stem}.json").native_precision == label


@needs_collection
def test_published_cache_of_long_sequences() -> None:
    """DeepSeek-V4-Pro keeps 9.62 GiB for 1M tokens in bf16 (release note), index keys in bf16 as well."""
    model = build_model(read_hf_config(CONFIGS / "deepseek-ai--DeepSeek-V4-Pro.json"))
    elements = sum(
        group.count * float(core.kv_elements_per_token(1)) * float(core.kv_held_tokens(2.0**20))
        for group in model.layer_groups
        for core in group.attention.cores()
    )
    assert elements * 2.0 / 2**30 == pytest.approx(9.62, rel=0.002)


@needs_collection
def test_towers_are_left_out_with_a_notice() -> None:
    record = read_hf_config(CONFIGS / "nvidia--Qwen3.5-122B-A10B-NVFP4.json")
    without = record_from_hf(
        {**json.loads((CONFIGS / "Qwen--Qwen3.5-27B.json").read_text()), "vision_config": {"hidden_size": 1152}},
        "seen",
        "seen",
    )
    assert record.architecture is not None
    assert "vision_config" in (without.sources[0].note or "")


if __name__ == "__main__":
    print("| file | class | remark |\n|---|---|---|")
    for name, kind, remark in table():
        print(f"| {name} | {kind} | {remark} |")

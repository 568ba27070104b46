"""Towers for images and sound: parameters as transformers counts them, sizes as image processors make them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rackline as rl
from helpers import VISION_CONFIG
from rackline.arch import Tower
from rackline.arch.hf_towers import VISION, has_tower, tower_of
from rackline.errors import ConfigError, InputError, UnknownNameError

FILE = Path(__file__).parents[1] / "fixtures" / "transformers_towers.json"
CASES: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
QWEN3, TEXT = VISION_CONFIG["vision_config"], VISION_CONFIG["text_config"]


def tower(name: str, **more: Any) -> Tower:
    config = json.loads(json.dumps(CASES[name]["config"]))
    config["vision_config"].update(more)
    return tower_of(config, "vision", name)


@pytest.mark.parametrize("name", CASES)
def test_parameters_are_those_of_the_library(name: str) -> None:
    case = CASES[name]
    kind = "audio" if name not in VISION else "vision"
    assert has_tower(case["config"]) == (kind,)
    assert tower_of(case["config"], kind, name).model.total_params == case["tower_params"]


def test_qwen_keeps_the_size_in_whole_tokens() -> None:
    view = tower("qwen3_vl").image(1920, 1080)  # 60 by 33.75 tokens of 32 pixels
    assert (view.width, view.height, view.patches, view.tokens) == (1920, 1088, 4 * 60 * 34, 60 * 34 + 2)
    assert tower("qwen2_vl").image(224, 224).tokens == 8 * 8 + 2
    assert tower("qwen2_vl").image(1, 1).tokens == 3
    huge = tower("qwen2_vl").image(20_000, 20_000)
    assert huge.patches <= 1.05 * 4 * 16384


def test_gemma3_makes_256_tokens_of_any_image() -> None:
    gemma = tower("gemma3", image_size=896, patch_size=14)
    assert {(gemma.image(*size).patches, gemma.image(*size).tokens) for size in ((10, 10), (4000, 300))} == {
        (4096, 258)
    }


def test_pixtral_marks_rows_and_shrinks_to_its_longest_side() -> None:
    pixtral = tower("mistral3")
    view = pixtral.image(1540, 770)
    assert (view.patches, view.tokens) == (110 * 56, 55 * 28 + 28)  # 55 by 27.5 tokens of 28 pixels
    assert pixtral.image(3080, 1540) == view


def test_internvl_cuts_tiles_of_the_nearest_aspect_and_a_thumbnail() -> None:
    intern = tower("internvl")
    assert intern.image(448, 448).tokens == 256 + 2
    assert (intern.image(896, 448).sequences, intern.image(896, 448).tokens) == (3, 3 * 256 + 2)
    assert intern.image(1600, 1200).sequences == 13  # 4 by 3 and the thumbnail
    assert intern.image(448, 448).patches == 32 * 32 + 1


def test_llama4_fits_the_smallest_canvas_that_holds_the_image() -> None:
    llama = tower("llama4", image_size=336)
    assert llama.image(336, 336).sequences == 1
    assert llama.image(672, 672).sequences == 5
    assert (llama.image(1000, 300).width, llama.image(1000, 300).height) == (3 * 336, 336)
    assert llama.image(336, 336).tokens == 144 + 2


def test_sound_is_padded_to_chunks() -> None:
    voxtral = tower_of(CASES["voxtral"]["config"], "audio")
    assert (voxtral.sound(30.0).patches, voxtral.sound(30.0).tokens) == (1500, 375)
    assert (voxtral.sound(31.0).sequences, voxtral.sound(31.0).tokens) == (2, 388)
    assert tower_of(CASES["qwen2_audio"]["config"], "audio").sound(30.0).tokens == 750


def test_windows_of_qwen25_save_pairs() -> None:
    windowed = tower("qwen2_5_vl")
    full = tower("qwen2_5_vl", fullatt_block_indexes=list(range(32)))
    view = windowed.image(1120, 1120)
    pairs = (full.layer_flop(view) - windowed.layer_flop(view)) / (4.0 * windowed.model.d_model)
    assert pairs == pytest.approx(28 * view.patches * (view.patches - 64))


@pytest.fixture
def config(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(VISION_CONFIG), encoding="utf-8")
    return str(tmp_path)


def test_time_to_first_token_has_its_parts(config: str) -> None:
    found = rl.encode(config, on="dgx-h100", image_size="1024x1024", images=2, prompt=50).result
    assert found.prompt_tokens == 50 + 2 * (32 * 32 + 2)
    assert found.ttft_s == pytest.approx(found.prefill_s + found.towers[0].seconds)
    assert found.text_ttft_s < found.prefill_s
    one = rl.encode(config, on="dgx-h100", image_size="1024x1024", images=1, prompt=50).result
    assert one.towers[0].flop == pytest.approx(found.towers[0].flop / 2)
    assert one.towers[0].seconds < found.towers[0].seconds <= 2.01 * one.towers[0].seconds


def test_a_pass_is_no_faster_than_the_peak(config: str) -> None:
    found = rl.encode(config, on="dgx-h100", image_size="2048x2048", images=4, calibration="unit").result.towers[0]
    assert found.seconds >= found.flop / 989e12 * 0.999


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"image_size": "big"}, "image_size: got 'big', allowed: WIDTHxHEIGHT"),
        ({"image_size": "100000x1"}, "image_size: got"),
        ({"images": 0}, "at least one, or `audio`"),
        ({"images": 0, "audio": "10s"}, "audio: got 10.0, allowed: `images` alone, which the vision tower"),
    ],
)
def test_refusals(config: str, more: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        rl.encode(config, on="dgx-h100", **more)


def test_models_without_a_tower(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**TEXT, "model_type": "qwen3"}), encoding="utf-8")
    with pytest.raises(InputError, match="a model with a tower that is known"):
        rl.encode(str(tmp_path), on="dgx-h100")
    with pytest.raises(UnknownNameError, match=r"a config\.json, its folder, or a Hugging Face id"):
        rl.encode("qwen3-32b", on="dgx-h100")


@pytest.mark.parametrize(
    ("key", "value"),
    [("num_heads", 7), ("patch_size", "x"), ("depth", 10**6), ("hidden_size", None), ("spatial_merge_size", [2])],
)
def test_unusable_keys_are_named(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=r"vision_config\."):
        tower_of({**VISION_CONFIG, "vision_config": {**QWEN3, key: value}}, "vision")

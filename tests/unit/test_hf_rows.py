"""Every decoder family of transformers 5.23: read as the library itself counts it, or named with what is missing.

The fixture holds, for each family that can be read, the default configuration of its class (a `+` marks one with a few
keys changed) and the parameters of the model that the library creates of it (torch 2.14 on the meta device). The lists
below are all names of MODEL_FOR_CAUSAL_LM_MAPPING_NAMES that are not read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rackline.arch import build_model
from rackline.arch.hf import read_config
from rackline.arch.hf_families import FAMILIES, WRAPPERS
from rackline.errors import ConfigError

FILE = Path(__file__).parents[1] / "fixtures" / "transformers_families.json"
CASES: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))

NO_DECODERS = """
    beam bart bert bert-generation big_bird bigbird_pegasus blenderbot blenderbot-small camembert data2vec-text electra
    ernie git marian mbart megatron-bert mvp pegasus plbart prophetnet reformer rembert roberta roberta-prelayernorm
    roc_bert roformer trocr whisper xlm xlm-roberta xlm-roberta-xl xlnet xmod musicgen musicgen_melody moshi
    moss_transcribe_diarize
""".split()  # noqa: SIM905
"""Encoders, encoder-decoders and generators of sound that carry a causal head."""

MISSING_KINDS = {
    "axk2": "gated norms of low rank around a sparse latent attention with gates",
    "blt": "byte latent transformer with cross attention between patches and bytes",
    "cohere_compass_text": "its class cannot be built with default values",
    "cpmant": "relative position bias by buckets",
    "dbrx": "its class cannot be built with default values",
    "diffllama": "differential attention",
    "doge": "dynamic mask attention",
    "dots3_note": "latent attention in a sliding window",
    "dots3_note_text": "latent attention in a sliding window",
    "emu3": "image tokens of a vector quantiser",
    "falcon_mamba": "Mamba-1",
    "fuyu": "image patches as tokens, its language model in a wrapper of its own",
    "gemma3n": "per-layer embeddings and alternating updates",
    "gemma3n_text": "per-layer embeddings and alternating updates",
    "gemma4_assistant": "draft model on another model's states",
    "gemma4_unified_assistant": "draft model on another model's states",
    "hrm_text": "layers that are run several times",
    "hy_v4": "hyper-connections around gated sparse latent attention",
    "inkling2_text": "short convolutions and relative logits in attention",
    "inkling_text": "short convolutions and relative logits in attention",
    "jamba": "Mamba-1",
    "jetmoe": "mixture of attention heads",
    "lfm2": "short convolutions as mixers",
    "lfm2_moe": "short convolutions as mixers",
    "lfm3": "short convolutions as mixers",
    "mamba": "Mamba-1",
    "mllama": "cross attention to images",
    "qwen4_exp": "hyper-connections and n-gram embeddings",
    "qwen4_exp_text": "hyper-connections and n-gram embeddings",
    "recurrent_gemma": "gated linear recurrent units",
    "rwkv": "RWKV",
    "xlstm": "xLSTM",
    "zamba": "Mamba-1 and a shared attention block",
    "zamba2": "one attention block shared by many layers",
    "zaya": "convolved compressed attention",
}

NOT_READ = {"bailing_hybrid"}
"""Families whose parts exist and that are not read: a full-rank forget gate of Kimi delta attention."""

PUBLISHED_NAMING = {
    "deepseek_v4",
    "mimo_v2_flash",
    "minimax_m3_vl_text",
    "gemma4",
    "gemma4_text",
    "qwen3_5",
    "qwen3_5_moe",
}
"""Read in the naming of their published files, or by their text_config, which their default values are not."""

CAUSAL = json.loads((FILE.parent / "transformers_causal.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", CASES)
def test_a_family_is_counted_as_the_library_counts_it(name: str) -> None:
    case = CASES[name]
    model = build_model(read_config(case["config"], name, name).record)
    assert model.total_params == pytest.approx(case["total_params"], rel=5e-3)


@pytest.mark.parametrize("name", [name for name in CASES if not name.endswith("+")])
def test_a_file_without_the_key_ties_its_head_as_the_class_does(name: str) -> None:
    """Saved files leave out what the class has by default; those marked with a + differ from it."""
    case = CASES[name]
    config = {key: value for key, value in case["config"].items() if key != "tie_word_embeddings"}
    model = build_model(read_config(config, name, name).record)
    assert model.total_params == pytest.approx(case["total_params"], rel=5e-3)


def test_almost_all_are_exact() -> None:
    off = [
        name
        for name, case in CASES.items()
        if abs(build_model(read_config(case["config"], name, name).record).total_params / case["total_params"] - 1)
        > 1e-4
    ]
    assert off == ["modernbert-decoder"]  # its head has a product of its own


def test_families_whose_blocks_stand_beside_each_other() -> None:
    built = {name: build_model(read_config(case["config"], name, name).record) for name, case in CASES.items()}
    parallel = {name for name, model in built.items() if model.parallel_block}
    families = {"codegen", "cohere", "cohere2", "cohere2_moe", "falcon", "gpt_neox", "gptj", "phi"}
    assert parallel == families | {"cohere+", "falcon+", "phi+"}


def test_coverage_of_the_release() -> None:
    decoders = [name for name in CAUSAL if name not in NO_DECODERS]
    with_parts = [name for name in decoders if name not in MISSING_KINDS]
    read = [name for name in with_parts if name in FAMILIES or name in WRAPPERS]
    assert {name for name in with_parts if name not in read} == NOT_READ
    assert len(read) / len(with_parts) >= 0.95
    assert set(MISSING_KINDS) <= set(CAUSAL)
    tested = {str(case["config"]["model_type"]) for case in CASES.values()} | PUBLISHED_NAMING
    untested = {name for name in read if name not in tested and name not in WRAPPERS}
    assert untested <= {"gpt-sw3", "longcat_flash", "phi4_multimodal"}


@pytest.mark.parametrize("name", sorted(MISSING_KINDS))
def test_what_is_missing_is_refused_with_its_keys(name: str) -> None:
    if name in WRAPPERS:
        pytest.skip("refused by its language model")
    config = {"model_type": name, "hidden_size": 64, "num_hidden_layers": 2, "strange_blocks": 3}
    with pytest.raises(ConfigError, match=r"model_type: got .*--assume FAMILY.*strange_blocks"):
        read_config(config, name, name)


def test_an_assumed_family_is_marked() -> None:
    config = {**CASES["llama+"]["config"], "model_type": "newllama", "strange_blocks": 3, "hidden_act": "silu"}
    with pytest.raises(ConfigError, match=r"newllama.*nearest: llama"):
        read_config(config, "n", "n.json")
    found = read_config(config, "n", "n.json", assume=["llama"])
    assert build_model(found.record).total_params == CASES["llama+"]["total_params"]
    assert len(found.warnings) == 2
    assert "'newllama' read as llama" in found.warnings[0]
    assert "left out (--assume): strange_blocks" in found.warnings[1]
    assert {str(source.kind) for source in found.record.sources} == {"assumed"}


def test_a_key_can_be_put_in() -> None:
    config = {**CASES["llama+"]["config"]}
    del config["num_hidden_layers"]
    found = read_config(config, "n", "n.json", assume=["num_hidden_layers=32"])
    assert build_model(found.record).total_params == CASES["llama+"]["total_params"]
    assert found.warnings == ("n.json: num_hidden_layers taken as 32 (--assume)",)
    with pytest.raises(ConfigError, match=r"assume: got 'lama', allowed: one family.*nearest: llama"):
        read_config(config, "n", "n.json", assume=["lama"])


def test_an_unknown_key_of_a_known_family_says_the_way_round() -> None:
    config = {**CASES["llama+"]["config"], "strange_blocks": 3, "odd_width": 7}
    with pytest.raises(ConfigError, match=r"strange_blocks: .*not understood either: odd_width.*--assume llama"):
        read_config(config, "n", "n.json")
    assert "strange_blocks, odd_width" in read_config(config, "n", "n.json", assume=["llama"]).warnings[0]


def test_a_wrapper_finds_its_language_model() -> None:
    inner = {**CASES["qwen3"]["config"]}
    for key, wrapper in (("text_config", "internvl"), ("llm_config", "internvl_chat"), ("text_config", "mistral3")):
        config = {"model_type": wrapper, key: inner, "vision_config": {"hidden_size": 8}, "dtype": "bfloat16"}
        found = build_model(read_config(config, "n", "n.json").record)
        assert found.total_params == CASES["qwen3"]["total_params"]


def test_flat_files_of_qwen2_vl() -> None:
    config = {**CASES["qwen2"]["config"], "model_type": "qwen2_5_vl", "vision_config": {"hidden_size": 8}}
    assert build_model(read_config(config, "n", "n.json").record).total_params == CASES["qwen2"]["total_params"]

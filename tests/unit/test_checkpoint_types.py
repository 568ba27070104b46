"""Data types of released checkpoints: by their quantisation blocks, printed part by part."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

import rackline as rl
from rackline.arch import model
from rackline.arch.hf import read_hf_config
from rackline.catalog import model_record, names
from rackline.hardware import chip
from rackline.parallel import precision
from rackline.report.model_report import BY_NAME, UNQUANTISED, checkpoint_types

CONFIGS = Path("../shared/model_configs")
UNREAD = {"nvidia/MiniMax-M3-NVFP4"}
"""Their types differ by module, and the collection leaves out the list of modules."""


def _configs() -> dict[str, Path]:
    return {path.stem.replace("--", "/", 1).lower(): path for path in CONFIGS.glob("*.json")}


def test_every_type_that_the_catalogue_reads_is_what_the_configuration_says() -> None:
    """Also of the KV cache: 8 bits only where a scheme says so."""
    configs, compared = _configs(), 0
    if not configs:
        pytest.skip("the collection of published config.json files is not here")
    for name in names("models"):
        record = model_record(name)
        stored = [(one.id, one.native_precision, one.quantization) for one in record.checkpoints]
        if ":" in record.quantization.partition(" ")[0]:
            stored.append((record.quantization.partition(":")[0], record.native_precision, record.quantization))
        for repository, label, said in stored:
            path = configs.get(repository.lower())
            if label is None or not said or path is None or repository in UNREAD:
                continue
            assert read_hf_config(path).native_precision.replace("nvfp4", "fp4") == label, repository
            compared += 1
    assert compared > 25


def test_what_was_not_read_says_so() -> None:
    """A quantised checkpoint whose block was not read has its types by name alone."""
    rows = {row.repository: row for name in names("models") for row in checkpoint_types(model_record(name))}
    assert rows["llama-3.1-8b"].read_from == UNQUANTISED
    assert rows["nvidia/Llama-3.1-70B-Instruct-FP8"].read_from == BY_NAME
    assert "weight_block_size 128 x 128" in rows["deepseek-v3"].read_from


def test_a_cache_without_a_scheme_is_that_of_the_model() -> None:
    h100 = chip("h100-sxm")
    minimax = model("minimax-m2.5")
    assert precision("native", minimax, h100).kv_cache == "bf16"
    assert precision("native,kv=fp8", minimax, h100).kv_cache == "fp8"
    assert precision("fp8", minimax, h100).kv_cache == "fp8"  # as before: a label is a choice of the operator
    nvfp4 = precision("native", model("nvidia/Kimi-K2.5-NVFP4"), chip("b200-sxm"))
    assert (nvfp4.expert_weights, nvfp4.kv_cache) == ("fp4", "fp8")


def test_models_print_the_types_of_each_part() -> None:
    answer = rl.models("kimi-k2.5", types=True)
    rows = answer.to_dict()["checkpoints"]
    assert [row["expert_weights"] for row in rows] == ["int4", "fp4"]
    assert [row["kv_cache"] for row in rows] == ["bf16", "fp8"]
    console = Console(width=100, record=True, file=StringIO())
    console.print(*answer.text(100))
    assert "[2] quant_algo NVFP4; kv_cache_scheme float 8" in console.export_text()

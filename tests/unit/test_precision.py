"""Precision: labels, separate parts, storage and what a chip can multiply."""

from __future__ import annotations

import pytest

from helpers import cluster, model, types
from rackline.errors import PrecisionError
from rackline.parallel import precision
from rackline.parallel.precision import LABELS, STORAGE_BYTES, compute_dtype, operation_dtype, storage_bytes
from rackline.plain import plain


def test_scales_are_part_of_what_is_stored() -> None:
    assert storage_bytes("fp4") == 9 / 16  # NVFP4: 16 elements of 4 bits and one scale of 8
    assert storage_bytes("mxfp4") == 4.25 / 8
    assert storage_bytes("mxfp8") == 8.25 / 8
    assert storage_bytes("int4") == 4.125 / 8
    assert storage_bytes("q6_k") == 6.5625 / 8  # GGUF: 256 elements of 6 bits, 16 scales of 8 and one of 16
    assert (storage_bytes("bf16"), storage_bytes("fp8")) == (2.0, 1.0)


def test_unknown_types_and_labels() -> None:
    with pytest.raises(PrecisionError, match=r"data type: got 'fp9'.*nearest: fp"):
        storage_bytes("fp9")
    chip = cluster("dgx-h100").chip
    with pytest.raises(PrecisionError, match=r"--precision: got 'fp88'.*nearest: fp8"):
        precision("fp88", model("llama-3.1-8b"), chip)
    with pytest.raises(PrecisionError, match="nearest: kv=fp8"):
        precision("fp8,kw=fp8", model("llama-3.1-8b"), chip)
    with pytest.raises(PrecisionError, match="got 'fp7'"):
        precision("bf16,kv=fp7", model("llama-3.1-8b"), chip)


def test_bf16_is_bf16_everywhere() -> None:
    p = types("bf16", "llama-3.1-70b", "dgx-h100")
    assert set(plain(p).values()) == {"bf16"}
    assert p.notes == ()


def test_fp8_dense_and_mla() -> None:
    dense = types("fp8", "llama-3.1-70b", "dgx-h100")
    assert (dense.linear_weights, dense.activations, dense.kv_cache) == ("fp8", "fp8", "fp8")
    assert dense.other_weights == "bf16"
    mla = types("fp8", "deepseek-v3", "dgx-h200")
    # released with a scale per block of 128 x 128, which stays
    assert (mla.expert_weights, mla.kv_cache) == ("fp8_block", "bf16")


def test_parts_are_set_separately() -> None:
    p = types("bf16,weights=fp8,kv=fp8,attention=bf16,experts=fp4,other=fp8", "deepseek-v3", "gb200-nvl72")
    assert p.linear_weights == "fp8"
    assert p.expert_weights == "fp4"
    assert p.kv_cache == "fp8"
    assert p.attention == "bf16"
    assert p.other_weights == "fp8"
    assert p.activations == "bf16"


def test_native_is_the_checkpoint() -> None:
    assert types("native", "deepseek-v3", "gb200-nvl72").linear_weights == "fp8_block"
    gpt_oss = types("native", "gpt-oss-120b", "gb200-nvl72")
    assert (gpt_oss.expert_weights, gpt_oss.linear_weights) == ("mxfp4", "bf16")
    assert types("kv=fp8", "llama-3.1-8b", "dgx-h100").linear_weights == "bf16"


def test_fp4_before_blackwell_multiplies_wider() -> None:
    p = types("fp4", "llama-3.1-70b", "dgx-h100")
    assert p.linear_weights == "fp4"
    assert p.activations == "bf16"
    assert any("has no fp4 multiply" in note for note in p.notes)
    assert types("fp4", "llama-3.1-70b", "dgx-b200").activations == "fp4"


def test_fp8_on_ampere_multiplies_in_bf16() -> None:
    p = types("fp8", "llama-3.1-70b", "dgx-a100")
    assert (p.linear_weights, p.activations) == ("fp8", "bf16")
    assert p.notes


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("on", ["dgx-a100", "dgx-h100", "gb200-nvl72", "mi300x-8", "mi355x-8", "tpu-v5e-16"])
@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v3", "gpt-oss-20b"])
def test_every_label_can_be_multiplied_on_every_chip(label: str, on: str, name: str) -> None:
    p = types(label, name, on)
    chip = cluster(on).chip
    for activations in (p.activations, p.expert_activations, p.attention):
        assert chip.flop_per_s(compute_dtype(activations, chip)) > 0
    for stored in (p.linear_weights, p.expert_weights, p.other_weights, p.kv_cache):
        assert stored in STORAGE_BYTES


@pytest.mark.parametrize("alias", ["nvfp4", "mxfp8", "fp8-cs", "w4a16", "w8a16", "fp16", "FP8"])
def test_aliases(alias: str) -> None:
    assert types(alias, "llama-3.1-8b", "gb200-nvl72").label == alias


@pytest.mark.parametrize(
    ("weights", "activations", "key"),
    [
        ("bf16", "bf16", "bf16"),
        ("fp8", "fp8", "fp8"),
        ("fp8_block", "fp8_block", "fp8_block"),
        ("mxfp4", "mxfp8", "mxfp4_mxfp8"),
        ("int4", "bf16", "int4_bf16"),
        ("q4_k_m", "bf16", "int4_bf16"),
        ("fp8", "bf16", "fp8_bf16"),
    ],
)
def test_mixed_products_have_their_own_calibration_key(weights: str, activations: str, key: str) -> None:
    assert operation_dtype(weights, activations) == key


def test_short_text() -> None:
    assert types("bf16", "llama-3.1-8b", "dgx-h100").short() == "bf16, kv bf16"
    assert "experts" in types("native", "gpt-oss-120b", "dgx-b200").short()

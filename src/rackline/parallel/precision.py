"""Precision: the data types of weights, activations, KV cache and attention, from one label by one table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from rackline.arch import AnyModel, Model
from rackline.arch.kinds import LATENT_KERNELS
from rackline.errors import PrecisionError, nearest_name, nearest_names, unknown_name
from rackline.hardware import Chip

# Bytes per element as stored, scales included: nvfp4 (here fp4) has one 8-bit scale per 16 elements, mxfp4 and
# mxfp8 one per 32, int4 one 16-bit scale per 128 (OCP Microscaling Formats v1.0; NVIDIA NVFP4; AWQ/GPTQ group 128).
# GGUF's Q4_K_M keeps 144 bytes per 256 weights (Q4_K), and 210 (Q6_K) in the head and in half of the value and down
# projections: 0.60 bytes for Llama's shapes, so that Llama 3 8B takes 4.92 GB, as its released files do.
STORAGE_BYTES = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0 + 4 / 128**2,
    "int8": 1.0,
    "mxfp8": 1.0 + 1 / 32,
    "fp4": 0.5 + 1 / 16,
    "mxfp4": 0.5 + 1 / 32,
    "int4": 0.5 + 2 / 128,
    "q4_k_m": 0.6,
    "q6_k": 210 / 256,
}
COMPUTE_DTYPE = {"mxfp8": "fp8", "fp8_block": "fp8", "mxfp4": "fp4", "int4": "fp4"}
LABELS = ("bf16", "fp32", "fp8", "fp8_block", "fp4", "mxfp4", "int8", "int8-weights", "int4", "q4_k_m")
MEASURED_AS = {"q4_k_m": "int4", "q6_k": "int8"}  # stored types without measured products: the nearest that has some
LABEL_ALIASES = {
    "fp16": "bf16",
    "nvfp4": "fp4",
    "mxfp8": "fp8",
    "fp8-cs": "fp8",
    "fp8-mx": "fp8",
    "w8a16": "int8-weights",
    "w4a16": "int4",
}
PARTS = (
    "linear_weights", "expert_weights", "other_weights", "activations", "expert_activations", "kv_cache", "attention",
)  # fmt: skip  # what has a data type of its own; fields of `Precision`


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Data types of one deployment.

    Args:
        label: what it was made from.
        linear_weights: attention projections and dense feed-forward.
        expert_weights: routed and shared experts.
        other_weights: embedding, router, head.
        activations: input of linear products; the multiply runs in this type.
        expert_activations: the same for the experts.
        kv_cache: as stored.
        attention: type of the score and value products.
        notes: what was replaced because the chip cannot do it.
    """

    json_keys: ClassVar = ("label", *PARTS)

    label: str
    linear_weights: str = "bf16"
    expert_weights: str = "bf16"
    other_weights: str = "bf16"
    activations: str = "bf16"
    expert_activations: str = "bf16"
    kv_cache: str = "bf16"
    attention: str = "bf16"
    notes: tuple[str, ...] = ()

    @property
    def other_activations(self) -> str:
        """Input of embedding, router and head: bf16, or float32 where their weights are."""
        return "fp32" if self.other_weights == "fp32" else "bf16"

    def short(self) -> str:
        """ "fp8, kv bf16"."""
        weights = self.linear_weights
        if self.expert_weights != weights:
            weights = f"{weights}/{self.expert_weights} experts"
        return f"{weights}, kv {self.kv_cache}"


def storage_bytes(dtype: str) -> float:
    """Bytes of one element as stored, scales included [bytes]. Raises PrecisionError on an unknown type."""
    if dtype not in STORAGE_BYTES:
        raise unknown_name("data type", dtype, STORAGE_BYTES, PrecisionError)
    return STORAGE_BYTES[dtype]


def operation_dtype(weights: str, activations: str) -> str:
    """Key of a calibration: the common type, or "int4_bf16" and the like for mixed products.

    >>> operation_dtype("fp8", "fp8"), operation_dtype("mxfp4", "bf16")
    ('fp8', 'mxfp4_bf16')
    """
    weights = MEASURED_AS.get(weights, weights)
    return weights if weights == activations else f"{weights}_{activations}"


def compute_dtype(activations: str, chip: Chip) -> str:
    """Peak that a product with these activations uses on this chip."""
    dtype = COMPUTE_DTYPE.get(activations, activations)
    if dtype == "bf16" and not chip.supports("bf16") and chip.supports("fp16"):
        return "fp16"
    return dtype


def precision(label: str, model: AnyModel, chip: Chip) -> Precision:
    """Map a label to data types for this model on this chip; see `stored_precision` for labels.

    Raises:
        PrecisionError: unknown label or part.
    """
    return _fit_to_chip(stored_precision(label, model), chip)


def stored_precision(label: str, model: AnyModel) -> Precision:
    """Map a label to data types for this model, regardless of the chip.

    Args:
        label: one of LABELS or their aliases, optionally followed by parts that are set separately:
            "fp8", "fp4,kv=bf16", "bf16,weights=fp8,kv=fp8,attention=bf16,activations=bf16,experts=fp4".
            "native" is the type of the released checkpoint; its KV cache is in bf16 unless the checkpoint has a scheme
            for it.

    Raises:
        PrecisionError: unknown label or part.
    """
    head, *parts = [piece.strip().lower() for piece in label.split(",") if piece.strip()] or [""]
    if "=" in head:
        head, parts = "native", [head, *parts]
    base, *released = model.native_precision.split(",")  # a checkpoint of several types says so in parts
    if head in ("native", "auto"):
        parts = [*released, *parts]
    else:
        base = head
    base = LABEL_ALIASES.get(base, base)
    if base not in LABELS:
        known = (*LABELS, *LABEL_ALIASES, "native")
        raise PrecisionError(
            what="--precision", given=label, allowed=", ".join(known), nearest=nearest_name(base, known)
        )
    chosen = replace(_from_label(base, model), label=label)
    if head in ("native", "auto") and chosen.kv_cache == "fp8":
        chosen = replace(chosen, kv_cache="bf16")  # unless the checkpoint's own parts say otherwise
    return _set_parts(chosen, parts, label)


def _from_label(base: str, model: AnyModel) -> Precision:
    """The table: one line per label; see docs/precision.md for a description."""
    mla = isinstance(model, Model) and any(core.kernel in LATENT_KERNELS for core in model.cores().values())
    kv = "bf16" if mla else "fp8"  # MLA stacks keep the latent in bf16 unless told otherwise
    moe = isinstance(model, Model) and model.is_moe
    released = model.native_precision.partition(",")[0]
    # checkpoints released with block scales keep them
    eight = "fp8_block" if "fp8_block" in (base, released) else "fp8"
    dense = "bf16" if moe and mla else "fp4"  # published NVFP4 checkpoints of MLA models keep attention in bf16
    weights, products = PARTS[:2], (*PARTS[:2], *PARTS[3:5])  # linear and experts; with the activations of both
    kinds: dict[str, dict[str, str]] = {
        "bf16": {},
        "fp32": dict.fromkeys(PARTS, "fp32"),
        "fp8": {**dict.fromkeys(products, eight), "kv_cache": kv},
        "mxfp4": {  # the cache is what the checkpoint's quantization_config leaves as it is
            "linear_weights": "bf16" if moe else "mxfp4",
            "expert_weights": "mxfp4",
            "activations": "bf16" if moe else "mxfp8",
            "expert_activations": "mxfp8",
        },
        "fp4": {
            "linear_weights": dense,
            "expert_weights": "fp4",
            "activations": dense,
            "expert_activations": "fp4",
            "kv_cache": "fp8",
        },
        "int8": dict.fromkeys(products, "int8"),
        "q4_k_m": {**dict.fromkeys(weights, "q4_k_m"), "other_weights": "q6_k"},
        "int8-weights": dict.fromkeys(weights, "int8"),
        "int4": dict.fromkeys(weights, "int4"),
    }
    narrow = released == "mxfp4" and base in ("fp8", "fp8_block", "fp4")
    return replace(Precision(label=base), **kinds["mxfp4" if narrow else "fp8" if base == "fp8_block" else base])


_PARTS = {
    "weights": ("linear_weights", "expert_weights"),
    "linear": ("linear_weights",),
    "experts": ("expert_weights",),
    "activations": ("activations", "expert_activations"),
    "expert_activations": ("expert_activations",),
    "kv": ("kv_cache",),
    "attention": ("attention",),
    "other": ("other_weights",),
}


def _set_parts(chosen: Precision, parts: list[str], label: str) -> Precision:
    for part in parts:
        key, _, value = (piece.strip() for piece in part.partition("="))
        if key not in _PARTS:
            near = nearest_names(key, list(_PARTS), 1)
            raise PrecisionError(
                what="--precision",
                given=label,
                allowed=", ".join(f"{name}=TYPE" for name in _PARTS),
                nearest=f"{near[0]}={value}" if near else None,
            )
        value = {"nvfp4": "fp4"}.get(value, value)
        storage_bytes(value)
        chosen = replace(chosen, **dict.fromkeys(_PARTS[key], value))
    return chosen


def _fit_to_chip(chosen: Precision, chip: Chip) -> Precision:
    """Replace activation types that the chip cannot multiply by the next wider one, and say so."""
    wider = {"mxfp4": ("fp4", "fp8"), "fp4": (), "mxfp8": (), "fp8": (), "int8": (), "int4": ()}
    notes: list[str] = []
    for name in ("activations", "expert_activations", "attention"):
        dtype = getattr(chosen, name)
        needed = "fp4" if dtype in ("mxfp8", "mxfp4") else dtype  # block-scaled units came with fp4
        if chip.supports(compute_dtype(needed, chip)):
            continue
        options = [option for option in wider.get(dtype, ()) if chip.supports(option)]
        replacement = options[0] if options else "bf16"
        notes.append(f"{chip.name} has no {dtype} multiply: {name} run in {replacement}")
        chosen = replace(chosen, **{name: replacement})
    return replace(chosen, notes=tuple(notes))

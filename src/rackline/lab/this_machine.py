"""The experiments' transformer as a deployment of the library: its pass table on one chip, this machine."""

from __future__ import annotations

from functools import cache

from rackline.arch import Model, build_model
from rackline.catalog import ModelRecord
from rackline.errors import InputError
from rackline.hardware import Chip, Cluster, FabricLevel
from rackline.lab.transformer import Shape
from rackline.parallel import Deployment, Layout
from rackline.parallel.precision import PARTS, Precision
from rackline.passes import UNIT
from rackline.system import System

_SOURCES = [{"fields": ["*"], "kind": "assumed", "citation": "a transformer of rackline.lab"}]


def model_of(shape: Shape) -> Model:
    """The architecture of a small transformer in the catalogue's vocabulary."""
    attention = {"num_q_heads": shape.num_q_heads, "num_kv_heads": shape.num_kv_heads, "head_dim": shape.head_dim}
    record = ModelRecord.model_validate(
        {
            "name": "lab-transformer",
            "full_name": "transformer of the lab",
            "native_precision": "bf16",
            "architecture": {
                "num_layers": shape.num_layers,
                "d_model": shape.d_model,
                "vocab_size": shape.vocab_size,
                "tied_embeddings": False,
                "norm": "rmsnorm",
                "attention": {"kind": "gqa", **attention},
                "ffn": {"kind": "swiglu", "d_ff": shape.d_ff},
            },
            "sources": _SOURCES,
        },
        strict=False,
    )
    model = build_model(record)
    if not isinstance(model, Model):
        raise InputError(what="shape", given=str(shape), allowed="a transformer with layers")
    return model


@cache
def deployment_of(shape: Shape) -> Deployment:
    """The transformer in float32 on one chip whose peaks are 1: times of its rows are amounts of FLOP and bytes."""
    chip = Chip(
        name="this-machine",
        full_name="this machine",
        vendor="-",
        generation="-",
        peak_flop_per_s={"fp32": 1.0, "bf16": 1.0},
        hbm_bytes=1e12,
        hbm_bytes_per_s=1.0,
    )
    level = FabricLevel(name="scale_up", size=1, bytes_per_s_each_way=1.0, latency_s=0.0)
    alone = Cluster(name="this-machine", chip=chip, num_chips=1, levels=(level,))
    types = Precision(label="fp32", **dict.fromkeys(PARTS, "fp32"))
    return System.of(model_of(shape), alone, calibration=UNIT, precisions=[types]).deployment(Layout())

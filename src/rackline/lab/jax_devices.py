"""JAX for the experiments: devices of one machine, what XLA counts of a function, and the machine as a deployment."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax

from rackline.arch import Model, build_model
from rackline.catalog import ModelRecord
from rackline.errors import InputError
from rackline.extras import load_optional
from rackline.hardware import Chip, Cluster, FabricLevel
from rackline.lab.transformer import Shape
from rackline.parallel import Deployment, Layout
from rackline.parallel.precision import PARTS, Precision
from rackline.passes import UNIT
from rackline.system import System

NUM_DEVICES = 8  # two racks of four, or the stages of a pipeline
_FLAG = "--xla_force_host_platform_device_count"


def start_jax(device: str = "cpu") -> Any:
    """JAX with NUM_DEVICES devices of the host, so that exchanges between devices can be run on any machine.

    Args:
        device: name of a JAX platform on which computations run by default.

    Returns:
        The module.

    Raises:
        InputError: JAX is not installed, was started with fewer devices, or has no such platform.
    """
    if "jax" not in sys.modules and _FLAG not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}={NUM_DEVICES}".strip()
    jax = load_optional("jax", what="lab")
    if len(jax.devices("cpu")) < NUM_DEVICES:
        raise InputError(
            what="lab",
            given=f"JAX that was started with {len(jax.devices('cpu'))} host devices",
            allowed=f"{NUM_DEVICES}: set XLA_FLAGS={_FLAG}={NUM_DEVICES} before JAX is imported",
        )
    try:
        chosen = jax.devices(device)[0]
    except RuntimeError as error:
        raise InputError(
            what="--device", given=device, allowed=f"{jax.default_backend()} or cpu on this machine"
        ) from error
    jax.config.update("jax_default_device", chosen)
    return jax


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """Cost of one call of a compiled function.

    Args:
        flop: work, element-wise work included [FLOP].
        accessed_bytes: operands and results of all operations, fused ones once [bytes].
        temporary_bytes: memory beside arguments and results [bytes].
        reused_bytes: arguments whose memory the results take [bytes].
    """

    flop: float
    accessed_bytes: float
    temporary_bytes: float
    reused_bytes: float


def compiled_cost(function: Callable[..., Any], *arguments: Any, donate: tuple[int, ...] = ()) -> Compiled:
    """Compile a function for arguments, or their shapes, and ask what it costs.

    Args:
        donate: arguments whose memory may be taken, by position.
    """
    compiled: Any = jax.jit(function, donate_argnums=donate).lower(*arguments).compile()
    cost, memory = compiled.cost_analysis(), compiled.memory_analysis()
    return Compiled(
        flop=float(cost["flops"]),
        accessed_bytes=float(cost["bytes accessed"]),
        temporary_bytes=float(memory.temp_size_in_bytes),
        reused_bytes=float(memory.alias_size_in_bytes),
    )


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

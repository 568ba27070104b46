"""JAX for the experiments: several devices on one machine, and one clear line where it is missing."""

from __future__ import annotations

import os
import sys
from typing import Any

from rackline.errors import InputError
from rackline.extras import load_optional

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

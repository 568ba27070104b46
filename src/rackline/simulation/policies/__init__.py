"""Scheduling policies, one file each; a new file with a POLICY is registered automatically."""

from __future__ import annotations

import importlib
import pkgutil

from rackline.errors import UnknownNameError, nearest_names
from rackline.simulation.policies.base import Order, Passes, Policy, Reserve, Waiting, reserved_tokens

__all__ = ["Order", "Passes", "Policy", "Reserve", "Waiting", "policy", "policy_names", "reserved_tokens"]


def policy_names() -> tuple[str, ...]:
    """Names of all policies, with hyphens."""
    found = (module.name for module in pkgutil.iter_modules(__path__) if module.name != "base")
    return tuple(sorted(name.replace("_", "-") for name in found))


def policy(name: str) -> Policy:
    """Find a policy by name.

    Raises:
        UnknownNameError: there is no such policy; the message names the nearest.
    """
    known = policy_names()
    wanted = name.strip().lower().replace("_", "-")
    if wanted not in known:
        near = nearest_names(wanted, known, 1)
        raise UnknownNameError(what="policy", given=name, allowed=", ".join(known), nearest=near[0] if near else None)
    module = importlib.import_module(f"{__name__}.{wanted.replace('-', '_')}")
    return module.POLICY

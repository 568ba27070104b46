"""Scheduling policies, one file each; a new file with a POLICY is registered automatically."""

from __future__ import annotations

from rackline.serving.alignment import Alignment
from rackline.serving.workload import Admission
from rackline.simulation.policies.base import Order, Passes, Policy, Reserve, Waiting, reserved_tokens
from rackline.simulation.registry import found_in, names_in

__all__ = ["Order", "Passes", "Policy", "Reserve", "Waiting", "alignments", "policy", "policy_names", "reserved_tokens"]


def policy_names() -> tuple[str, ...]:
    """Names of all policies, with hyphens."""
    return names_in(__path__)


def alignments() -> dict[str, tuple[Admission, Alignment]]:
    """Ways in which attention-dp ranks wait for each other's prompts, by name, with the admission of each."""
    found: dict[str, tuple[Admission, Alignment]] = {}
    for name in policy_names():
        one = policy(name)
        if one.alignment is not None:
            found[one.name] = ("prefill_first" if one.passes == "prompts_first" else "chunked", one.alignment)
    return found


def policy(name: str) -> Policy:
    """Find a policy by name.

    Raises:
        UnknownNameError: there is no such policy; the message names the nearest.
    """
    return found_in(__name__, __path__, "policy", name)

"""Rules by which a server refuses requests (HTTP 429), one file each; a new file with an ADMISSION is registered.

A rule is asked before the router, with the replicas as of the last pass that began. What was admitted once is not asked
again. The urgent are those of the lowest tier that the requests have.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rackline.simulation.policies import found_in, names_in
from rackline.simulation.routers import Standing


class Admission:
    """A rule during one run.

    Args:
        limit: its number; None for its own.
        rng: for rules that draw.
    """

    usual: float | None = None
    """The limit where none is given; None where there must be one."""
    has_limit = True
    """Whether it takes a number."""
    for_less_urgent = False
    """Whether it refuses less urgent requests only."""

    def __init__(self, limit: float | None, rng: np.random.Generator) -> None:
        self.limit, self.rng = self.usual if limit is None else limit, rng

    def admits(self, standing: Standing, *, urgent: bool) -> bool:
        """Whether a request that comes now is served."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRule:
    """A rule before it runs.

    Args:
        name: of its file.
        limit: its number; None for its own.
        seed: of what it draws.
    """

    name: str
    limit: float | None = None
    seed: int = 0

    def begin(self) -> Admission:
        """The rule for one run."""
        return admission(self.name)(self.limit, np.random.default_rng([self.seed, 429]))


MOST_QUEUED, MOST_KV = 5.0, 0.8


def saturation_of(standing: Standing) -> float:
    """How full a pool is: mean over replicas of max(waiting / 5, KV in use / 0.8) [1].

    Source: llm-d/llm-d-router @ ebab6879, pkg/epp/framework/plugins/flowcontrol/saturationdetector/utilization, read
    2026-11-23.
    """
    each = zip(standing.queued, standing.kv_use, strict=True)
    return sum(max(queued / MOST_QUEUED, use / MOST_KV) for queued, use in each) / len(standing.replicas)


def admission_names() -> tuple[str, ...]:
    """Names of all rules, with hyphens."""
    return names_in(__path__)


def admission(name: str) -> type[Admission]:
    """Find a rule by name.

    Raises:
        UnknownNameError: there is no such rule; the message names the nearest.
    """
    return found_in(__name__, __path__, "admission", name)

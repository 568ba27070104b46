"""Scheduling policies as data, one file each; a new file with a POLICY is registered automatically.

The engine of `rackline.simulation.replica` runs any of them.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from rackline.errors import UnknownNameError, nearest_name
from rackline.serving.prompt_passes import Alignment
from rackline.serving.workload import Admission
from rackline.simulation.requests import RequestLog

Passes = Literal["mixed", "prompts_first", "batch"]
Reserve = Literal["chunk", "prompt", "final"]


Order = Callable[[RequestLog, int], float]
"""(requests, index of one) → its key: the lowest is next, equal ones in the order of arrival."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A published scheduling policy as data.

    Args:
        name: short name.
        order: key of the waiting queue; None is the order of arrival.
        preempts_last_of_order: whether the running request that is last in that order is preempted; else the one that
            was admitted last.
        preempts_for_urgent: whether running requests leave for one that waits and is before them in that order, where
            it has no place else.
        passes: "mixed" puts prompts and decoding sequences of a rank into one pass; "prompts_first" runs the prompts of
            a rank while its decoding waits (other ranks go on to decode beside it, unless they draft); "batch" admits
            requests only when none is running.
        chunked: whether a prompt may be split to fit the token budget of a pass.
        reserve: cache that must be free for admission: that of the next chunk, of the whole prompt, or of the whole
            request.
        interval_s: passes start only at multiples of this time; 0 starts them at once [s].
        alignment: how ranks wait for each other with their prompts; None admits them at once.
        source: publication.
    """

    name: str
    order: Order | None = None
    preempts_last_of_order: bool = False
    preempts_for_urgent: bool = False
    passes: Passes = "mixed"
    chunked: bool = True
    reserve: Reserve = "chunk"
    interval_s: float = 0.0
    alignment: Alignment | None = None
    source: str = ""


def reserved_tokens(reserve: Reserve, *, chunk: int, prompt: int, final: int) -> int:
    """Cache that must be free before a request is admitted [tokens].

    Args:
        chunk, prompt, final: tokens up to the end of its next chunk, of the whole prompt, of the whole request
            [tokens].
    """
    return {"chunk": chunk, "prompt": prompt, "final": final}[reserve]


def names_in(paths: Iterable[str]) -> tuple[str, ...]:
    """Names of all policies of a package, with hyphens.

    Args:
        paths: of its modules.
    """
    found = (module.name for module in pkgutil.iter_modules(paths))
    return tuple(sorted(name.replace("_", "-") for name in found))


def found_in(package: str, paths: Iterable[str], what: str, name: str) -> Any:
    """What the module of a policy holds under the name of its kind.

    Args:
        package: with a module for each policy.
        what: kind, such as "eviction"; the module has it in capitals.
        name: with hyphens or underscores.

    Raises:
        UnknownNameError: there is no such policy; the message names the nearest.
    """
    known = names_in(paths)
    wanted = name.strip().lower().replace("_", "-")
    if wanted not in known:
        raise UnknownNameError(what=what, given=name, allowed=", ".join(known), nearest=nearest_name(wanted, known))
    return getattr(importlib.import_module(f"{package}.{wanted.replace('-', '_')}"), what.upper())


def policy_names() -> tuple[str, ...]:
    """Names of all policies, with hyphens."""
    return names_in(__path__)


def alignments() -> dict[str, tuple[Admission, Alignment]]:
    """Ways in which attention-dp ranks wait for each other's prompts, by name, with the admission of each."""
    return {
        one.name: ("prefill_first" if one.passes == "prompts_first" else "chunked", one.alignment)
        for one in map(policy, policy_names())
        if one.alignment is not None
    }


def policy(name: str) -> Policy:
    """Find a policy by name.

    Raises:
        UnknownNameError: there is no such policy; the message names the nearest.
    """
    return found_in(__name__, __path__, "policy", name)

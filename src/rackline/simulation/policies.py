"""Scheduling policies as data, and the families that rules of a kind are looked up in.

The engine of `rackline.simulation.replica` runs any policy of `POLICIES`; a new one is an entry of that family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from rackline.errors import UnknownNameError, unknown_name
from rackline.serving.alignment import Alignment
from rackline.serving.workload import Admission
from rackline.simulation.requests import RequestLog

Passes = Literal["mixed", "prompts_first", "batch"]
Reserve = Literal["chunk", "prompt", "final"]
T = TypeVar("T")


class Family(dict[str, T]):
    """Published rules of one kind, by name with hyphens.

    Args:
        what: kind, such as "eviction", for messages.
        members: by name, with hyphens or underscores.
    """

    def __init__(self, what: str, members: Mapping[str, T]) -> None:
        super().__init__({name.replace("_", "-"): members[name] for name in sorted(members)})
        self.what = what

    def find(self, name: str) -> T:
        """A member by its name, with hyphens or underscores, in upper or lower case.

        Raises:
            UnknownNameError: there is no such member; the message names the nearest.
        """
        wanted = name.strip().lower().replace("_", "-")
        if wanted not in self:
            raise unknown_name(self.what, name, self, UnknownNameError)
        return self[wanted]


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


def tier(requests: RequestLog, request: int) -> float:
    """Priority tier of a request; a lower one is more urgent."""
    return 0.0 if requests.priority is None else float(requests.priority[request])


def prompt_len(requests: RequestLog, request: int) -> float:
    """Tokens of the prompt [tokens]."""
    return float(requests.input_len[request])


# decoding sequences come first; the rest of the token budget goes to chunks of prompts
_CHUNKED = Policy(
    name="chunked", source="Sarathi-Serve, Agrawal et al. 2024 (arXiv:2403.02310); the scheduler of vLLM from 0.8 on"
)
# prefill runs in separate passes with priority; decoding waits
_PREFILL_FIRST = Policy(
    name="prefill_first",
    passes="prompts_first",
    reserve="prompt",
    source="Kwon et al. 2023 (arXiv:2309.06180), vLLM before 0.8; SGLang",
)
# lower numbers are more urgent, and the least urgent is preempted first
_PRIORITY = Policy(name="priority", order=tier, preempts_last_of_order=True, source="vLLM --scheduling-policy priority")
# how attention-dp ranks wait for each other, each with the policy that it changes
_ALIGNED = (
    # ranks wait until each has a prompt, and then for more to join them
    replace(
        _CHUNKED,
        alignment=Alignment(
            name="adp_balance",
            some_passes=49,
            all_passes=10,
            idle_releases=True,
            counts_always=True,
            options=(
                "attention_dp_config:",
                "  enable_balance: true",
                "  timeout_iters: {passes}",
                "  batching_wait_iters: {more}",
            ),
        ),
        source="TensorRT-LLM, attention_dp_config: enable_balance (off by default), timeout_iters 50 (the 50th pass "
        "runs them), batching_wait_iters 10; _torch/pyexecutor/scheduler, _balance_adp_context_requests; "
        "https://nvidia.github.io/TensorRT-LLM/llm-api/reference/AttentionDpConfig.html, accessed 2026-11-23",
    ),
    # after each pass with prompts on any rank all ranks decode for a number of passes
    replace(
        _PREFILL_FIRST,
        alignment=Alignment(
            name="prefill_decode_interval",
            decodes_after=22,
            options=("--prefill-decode-interval", "{passes}"),
        ),
        source="SGLang from 0.5.20 on, --prefill-decode-interval (0, off, by default; 22 for Qwen3-VL on Hopper); pull "
        "request 35017, https://github.com/sgl-project/sglang/pull/35017, accessed 2026-11-23",
    ),
    # prompts are held until every rank has one
    replace(
        _PREFILL_FIRST,
        alignment=Alignment(
            name="prefill_delayer",
            some_passes=29,
            holds_chunks=False,
            options=("--enable-prefill-delayer", "--prefill-delayer-max-delay-passes", "{passes}"),
        ),
        source="SGLang from 0.5.8 on, --enable-prefill-delayer (off by default) with "
        "--prefill-delayer-max-delay-passes 30 (the 30th pass runs them); managers/prefill_delayer.py at 003b8dc4, "
        "accessed 2026-11-23. A rank in the middle of a prompt goes on with it",
    ),
    # prompts run in every n-th pass of all ranks
    replace(
        _CHUNKED,
        alignment=Alignment(
            name="prefill_schedule_interval",
            every=16,
            options=("--prefill-schedule-interval", "{passes}"),
        ),
        source="vLLM from 0.25 on, --prefill-schedule-interval (1, off, by default), for data-parallel ranks of a "
        "mixture: v1/engine/core.py, DPEngineCoreProc._should_throttle_prefills; config/scheduler.py, accessed "
        "2026-11-23",
    ),
)
POLICIES = Family(
    "policy",
    {
        one.name: one
        for one in (
            _CHUNKED,
            _PREFILL_FIRST,
            _PRIORITY,
            *(replace(one, name=one.alignment.name) for one in _ALIGNED if one.alignment is not None),
            # a batch runs to its end before the next one is admitted
            Policy(
                name="decode_first",
                passes="batch",
                reserve="final",
                source="FasterTransformer; batch-level scheduling in Yu et al. 2022",
            ),
            # first come, first served, at iteration level: whole prompts join the running batch
            Policy(name="fcfs", chunked=False, reserve="final", source="Orca, Yu et al. 2022 (OSDI)"),
            # running requests leave for more urgent ones that wait, where that makes room for them
            replace(
                _PRIORITY,
                name="preemptive",
                preempts_for_urgent=True,
                source="SGLang --enable-priority-scheduling, managers/schedule_policy.py, "
                "PrefillAdder.preempt_to_schedule (accessed 2026-11-25): running requests of a lower tier are "
                "released, the least urgent first, if their tokens are enough for the one that waits. Its "
                "--priority-scheduling-preemption-threshold (10) is a distance of tiers: here every tier counts",
            ),
            # the shortest waiting prompt is admitted first
            Policy(
                name="shortest_job",
                order=prompt_len,
                source="shortest job first, Conway, Maxwell and Miller 1967, on prompt tokens",
            ),
            # passes start at fixed intervals, like trains; a request that misses one waits for the next
            Policy(name="trains", interval_s=0.02, source="lecture C28 to C32: a batch departs every interval"),
        )
    },
)


def alignments() -> dict[str, tuple[Admission, Alignment]]:
    """Ways in which attention-dp ranks wait for each other's prompts, by name, with the admission of each."""
    return {
        one.name: ("prefill_first" if one.passes == "prompts_first" else "chunked", one.alignment)
        for one in POLICIES.values()
        if one.alignment is not None
    }

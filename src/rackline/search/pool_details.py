"""What the two pools of an answer hold and do: their passes row by row and the memory of their fullest chips."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rackline.parallel import Deployment, MemoryUse
from rackline.passes import Batch, PassTime
from rackline.search.evaluate import Space
from rackline.search.pools import WAITING_PROMPTS
from rackline.serving.workload import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDetails:
    """One pool seen from inside.

    Args:
        time: of one pass, before two-batch overlap.
        memory: of the fullest chip.
    """

    time: PassTime
    memory: MemoryUse

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"pass": self.time.as_dict(), "binding": self.time.binds, "memory": self.memory.as_dict()}


def decode_details(space: Space, deployment: Deployment, per_rank: int) -> PoolDetails:
    """A decode pool with `per_rank` sequences on each rank and micro-batch."""
    layout, work = deployment.layout, space.workload
    batch = Batch(
        decode_sequences=float(per_rank),
        context_len=work.mean_context,
        group_tokens=float(per_rank * layout.attention_dp),
    )
    return PoolDetails(
        time=deployment.table().time(batch),
        memory=deployment.memory(
            sequences=float(per_rank * layout.attention_dp * layout.pp),
            context_len=work.final_context,
            batched_tokens=float(per_rank),
            memory_fraction=space.memory_fraction,
        ),
    )


def prefill_details(space: Space, deployment: Deployment, mode: Mode) -> PoolDetails:
    """A prefill pool in a full pass."""
    layout, work = deployment.layout, space.workload
    tokens = float(mode.max_batched_tokens)
    chunk = min(work.new_tokens, tokens)
    batch = Batch(
        prefill_sequences=tokens / chunk,
        chunk_tokens=chunk,
        prefix_tokens=work.cached_tokens + (work.new_tokens - chunk) / 2.0,
        group_tokens=tokens * layout.attention_dp,
    )
    prompts = max(tokens / work.new_tokens, 1.0) * WAITING_PROMPTS
    return PoolDetails(
        time=deployment.table().time(batch),
        memory=deployment.memory(
            sequences=prompts * layout.attention_dp * layout.pp,
            context_len=work.input_len,
            batched_tokens=tokens,
            memory_fraction=space.memory_fraction,
        ),
    )

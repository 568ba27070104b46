"""Details of the two pools of an answer: their passes row by row and the memory of their fullest chips."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rackline.parallel import Deployment, MemoryUse
from rackline.passes import Batch, PassTime
from rackline.search.evaluate import Space
from rackline.search.pool_replicas import WAITING_PROMPTS
from rackline.serving.context import prefill_chunk
from rackline.serving.workload import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDetails:
    """Pass and memory of one pool.

    Args:
        time: of one pass, before two-batch overlap.
        memory: of the fullest chip.
    """

    time: PassTime
    memory: MemoryUse


def decode_details(space: Space, deployment: Deployment, per_rank: int, cp: int = 1) -> PoolDetails:
    """A decode pool with `per_rank` sequences on each rank (or context group) and micro-batch.

    Args:
        cp: ranks that share a context; their exchange is not a row of the pass [count].
    """
    layout, work = deployment.layout, space.workload
    batch = Batch(
        decode_sequences=float(per_rank),
        context_len=work.mean_context / cp,
        group_tokens=float(per_rank * layout.attention_dp / cp),
    )
    return PoolDetails(
        time=deployment.table().time(batch),
        memory=deployment.memory(
            sequences=float(per_rank * layout.attention_dp * layout.pp),
            context_len=work.final_context / cp,
            server=space.system.server(space.system.stack.max_num_seqs),
        ),
    )


def prefill_details(space: Space, deployment: Deployment, mode: Mode, cp: int = 1) -> PoolDetails:
    """A prefill pool in a full pass.

    Args:
        cp: ranks that share a prompt; their exchange is not a row of the pass [count].
    """
    layout, work = deployment.layout, space.workload
    tokens = float(mode.max_batched_tokens)
    batch = replace(prefill_chunk(work, tokens, cp), group_tokens=tokens * layout.attention_dp)
    prompts = max(tokens * cp / work.new_tokens, 1.0) * WAITING_PROMPTS
    return PoolDetails(
        time=deployment.table().time(batch),
        memory=deployment.memory(
            sequences=prompts * layout.attention_dp * layout.pp,
            context_len=work.input_len / cp,
            server=space.system.server(tokens),
        ),
    )

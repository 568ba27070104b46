"""When speculative decoding pays: draft length against batch size, on the decode replica that a plan has chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rackline.arch import Model
from rackline.errors import InputError
from rackline.parallel import Deployment
from rackline.passes import Batch
from rackline.passes.features import Array
from rackline.search.disaggregated import without_context
from rackline.search.plan import Plan
from rackline.serving.closed_loop import engine_of
from rackline.serving.speculative import PLAIN, Speculation, breakeven_tokens, usual_speculation
from rackline.serving.stack import stack_of
from rackline.serving.workload import Workload

USUAL_DRAFTS = (1, 2, 3, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationRow:
    """One number of drafts on one replica; arrays over batches.

    Args:
        speculation: drafts and the tokens that a step yields.
        sequences_per_rank: of one rank and micro-batch [sequences].
        tpot_s: time per output token [s].
        breakeven: tokens per step above which drafting pays [tokens].
        pays_up_to: largest batch at which it is faster than one token per step; 0 when at none [sequences].
        best_batch: largest batch that meets the limit; 0 when none does [sequences].
        output_tokens_per_s_per_chip: at that batch [tokens/s].
    """

    json_keys: ClassVar = (
        "draft_tokens=speculation.draft_tokens",
        "tokens_per_step=speculation.tokens_per_step",
        "sequences_per_rank",
        "tpot_s",
        "breakeven_tokens=breakeven",
        "pays_up_to",
        "best_batch",
        "output_tokens_per_s_per_chip",
    )

    speculation: Speculation
    sequences_per_rank: Array
    tpot_s: Array
    breakeven: Array
    pays_up_to: int
    best_batch: int
    output_tokens_per_s_per_chip: float


def speculation_rows(
    deployment: Deployment,
    workload: Workload,
    speculations: Sequence[Speculation],
    *,
    largest_batch: int,
    tpot_limit_s: float | None,
) -> list[SpeculationRow]:
    """Decode steps with and without drafts over batches, the plain one first.

    Args:
        largest_batch: sequences of a rank that memory holds [sequences].
        tpot_limit_s: None for no limit [s].

    Assumes: passes that only decode; the drafts' own weights and cache take no memory worth counting.
    """
    batches = np.unique(np.rint(np.geomspace(1, max(largest_batch, 1), 96)))
    layout = deployment.layout
    chips_batches = layout.attention_dp * layout.pp / layout.chips_per_replica
    stack = stack_of(deployment.calibration, deployment.cluster.chip.hbm_bytes)
    rows: list[SpeculationRow] = []
    plain: Array | None = None
    for speculation in (PLAIN, *speculations):
        engine = engine_of(deployment, stack, speculation)
        batch = Batch(
            decode_sequences=batches, decode_tokens=speculation.verified_tokens, context_len=workload.mean_context
        )
        verify = engine.decode_s(batch, engine.time_table(False), two_batch_overlap=False)
        drafts = np.broadcast_to(engine.drafts_s(batches, workload.mean_context), verify.shape)
        tpot = (verify + drafts) / speculation.tokens_per_step
        plain = tpot if plain is None else plain
        faster = np.flatnonzero(tpot < plain)
        kept = np.flatnonzero(tpot <= tpot_limit_s) if tpot_limit_s is not None else np.arange(batches.size)
        best = int(kept[-1]) if kept.size else -1
        count = speculation.draft_tokens
        rows.append(
            SpeculationRow(
                speculation=speculation,
                sequences_per_rank=batches,
                tpot_s=tpot,
                breakeven=np.array(
                    [
                        breakeven_tokens(v, d / max(count, 1), p, count)
                        for v, d, p in zip(verify, drafts, plain, strict=True)
                    ]
                ),
                pays_up_to=int(batches[faster[-1]]) if faster.size else 0,
                best_batch=int(batches[best]) if best >= 0 else 0,
                output_tokens_per_s_per_chip=float(batches[best] * chips_batches / tpot[best]) if best >= 0 else 0.0,
            )
        )
    return rows


def plan_speculation(plan: Plan, speculations: Sequence[Speculation] | None = None) -> list[SpeculationRow]:
    """The decode replica of a plan's cheapest deployment with drafts; empty without an answer.

    Args:
        speculations: drafts and acceptance; 1 to 4 drafts with the acceptance usually measured by default.

    Raises:
        InputError: a model without layers.
    """
    if not isinstance(plan.model, Model):
        raise InputError(what="speculation", given=plan.model.name, allowed="a model with layers")
    best = plan.best
    if best is None:
        return []
    layout, precision = without_context(best.layout, plan.model), best.precision
    deployment = Deployment(
        model=plan.model, cluster=plan.cluster, layout=layout, precision=precision, calibration=plan.calibration
    )
    fits = deployment.max_sequences(
        context_len=plan.workload.final_context,
        server=stack_of(plan.calibration, plan.cluster.chip.hbm_bytes).memory(
            memory_fraction=plan.constraints.memory_fraction
        ),
    )
    return speculation_rows(
        deployment,
        plan.workload,
        list(speculations) if speculations else [usual_speculation(count) for count in USUAL_DRAFTS],
        largest_batch=fits // (layout.attention_dp * layout.pp),
        tpot_limit_s=plan.constraints.tpot_s,
    )

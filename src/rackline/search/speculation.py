"""When speculative decoding pays: draft length against batch size, on the decode replica that a plan has chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rackline.arch import Model
from rackline.errors import InputError
from rackline.parallel import Layout, Precision
from rackline.passes import Batch
from rackline.passes.features import Array
from rackline.search.plan import Plan
from rackline.search.pools import without_context
from rackline.serving.workload import PLAIN, Speculation, Workload, breakeven_tokens, usual_speculation
from rackline.system import System

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
    system: System,
    layout: Layout,
    precision: Precision,
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
    chips_batches = layout.attention_dp * layout.pp / layout.chips_per_replica
    rows: list[SpeculationRow] = []
    plain: Array | None = None
    for speculation in (PLAIN, *speculations):
        engine = system.engine(layout, precision, speculation)
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


def paying_drafts(plan: Plan, rows: Sequence[SpeculationRow]) -> SpeculationRow | None:
    """The drafts with which a plan's answer is fastest at its most running sequences; None where none pays.

    Engines draft with each of the model's own layers in turn, as often as all of them or a multiple of that.
    """
    best, model = plan.best, plan.system.model
    if best is None or not isinstance(model, Model):
        return None
    own = 1 if model.draft is not None else max(model.mtp_layers, 1)
    plain, *others = rows
    able = [row for row in others if row.speculation.draft_tokens <= own or row.speculation.draft_tokens % own == 0]

    def tpot_s(row: SpeculationRow) -> float:
        return float(np.interp(best.max_num_seqs, row.sequences_per_rank, row.tpot_s))

    found = min(able, key=tpot_s, default=plain)
    return found if tpot_s(found) < tpot_s(plain) else None


def plan_speculation(plan: Plan, speculations: Sequence[Speculation] | None = None) -> list[SpeculationRow]:
    """The decode replica of a plan's cheapest deployment with drafts; empty without an answer.

    Args:
        speculations: drafts and acceptance; 1 to 4 drafts with the acceptance usually measured by default.

    Raises:
        InputError: a model without layers.
    """
    system, workload = plan.system, plan.demand.workload
    if not isinstance(system.model, Model):
        raise InputError(what="speculation", given=system.model.name, allowed="a model with layers")
    best = plan.best
    if best is None:
        return []
    layout, precision = without_context(best.layout, system.model), best.precision
    fits = system.deployment(layout, precision).max_sequences(
        context_len=workload.final_context, server=system.server()
    )
    return speculation_rows(
        system,
        layout,
        precision,
        workload,
        list(speculations) if speculations else [usual_speculation(count) for count in USUAL_DRAFTS],
        largest_batch=fits // (layout.attention_dp * layout.pp),
        tpot_limit_s=plan.demand.limits.tpot_s,
    )

"""Conversations whose prefixes are kept: what five minutes and an hour find, and what each tier would cost."""

from __future__ import annotations

from rackline.ledger.work import World
from rackline.pricing.cache import KeepingCost, keeping_cost, recompute_cost
from rackline.pricing.prefixes import Repeats
from rackline.serving import blackboard as bb
from rackline.simulation import Sessions
from rackline.simulation.reuse import SessionHits, session_hits

MODEL, CHIP = "llama-3.1-70b", "h100-sxm"
USD_PER_CHIP_HOUR = 2.0
TALKS = Sessions(turns=5, think_s=60.0, system_tokens=1024)
_RATE_PER_S, _MESSAGE_TOKENS, _ANSWER_TOKENS = 1.0, 300.0, 400.0


def talks_repeat() -> Repeats:
    """How conversations of five turns with pauses of a minute repeat their prompts."""

    def hits(**within: float) -> SessionHits:
        return session_hits(
            TALKS, rate_per_s=_RATE_PER_S, message_tokens=_MESSAGE_TOKENS, answer_tokens=_ANSWER_TOKENS, **within
        )

    return Repeats(
        found=lambda ttl_s: hits(ttl_s=ttl_s).hit_share,
        held_s=lambda ttl_s: hits(ttl_s=ttl_s).held_s,
        found_in=lambda tokens: hits(capacity_tokens=tokens).hit_share,
        input_len=hits().input_len,
    )


def talk_lines(world: World, tiers: tuple[str, ...], prompt_len: float) -> list[KeepingCost]:
    """Cost lines of a prompt in each tier, and of computing it again at the full rate of a chip.

    Args:
        tiers: of the catalogue.
        prompt_len: of the prompt [tokens].
    """
    model, chip = world.model(MODEL), world.chip(CHIP)
    seconds = bb.compute_s(1.0, model.active_params, chip.flop_per_s("bf16"), prompt_len)
    held = float(model.kv_bytes(prompt_len))
    again = recompute_cost(USD_PER_CHIP_HOUR / 3600.0 * seconds, seconds)
    return [*(keeping_cost(world.tier(name), held) for name in tiers), again]

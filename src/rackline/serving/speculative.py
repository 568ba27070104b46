"""Speculative decoding: several cheap draft tokens, which one pass of the model verifies.

A step drafts k tokens per sequence, one after another, with a small head (a multi-token prediction layer, or a draft
model of about one layer such as EAGLE), then verifies k + 1 tokens per sequence in one pass. On average a of the drafts
are accepted, and each step yields a + 1 tokens.

    tpot = (t_verify(k + 1) + k t_draft) / tokens_per_step
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rackline.errors import require

# Mean tokens per step by the number of drafts, over the models, thinking modes and kinds of draft of the table (coding
# prompts of SPEED-Bench, temperature 1). Source: SemiAnalysis InferenceX, golden_al_distribution, commit 843c6254;
# measured on B300 with vLLM.
MEASURED_TOKENS_PER_STEP: Mapping[int, float] = {1: 1.84, 2: 2.48, 3: 2.94, 4: 3.27, 5: 3.51, 6: 3.64, 7: 3.74, 8: 3.82}
USUAL_DRAFT_TOKENS = 3  # the depth of published recipes for low and medium concurrency


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """How many tokens an engine drafts, and how many a step yields.

    Args:
        draft_tokens: k, drafts per step and sequence [tokens]; 0 decodes one token per step.
        tokens_per_step: tokens that a step yields per sequence, 1 to k + 1 [tokens].

    Raises:
        InputError: a value is outside these ranges.
    """

    draft_tokens: int = 0
    tokens_per_step: float = 1.0

    def __post_init__(self) -> None:
        require(self.draft_tokens >= 0, what="draft_tokens", given=self.draft_tokens, allowed="0 or more", nearest="0")
        most = self.draft_tokens + 1.0
        require(
            1.0 <= self.tokens_per_step <= most,
            what="tokens_per_step",
            given=self.tokens_per_step,
            allowed=f"1 to {most:g}: the drafts, and one token of the model itself",
            nearest=f"{min(max(self.tokens_per_step, 1.0), most) if self.tokens_per_step > 0 else 1.0:g}",
        )

    @property
    def verified_tokens(self) -> float:
        """Tokens per sequence in the verification pass [tokens]."""
        return self.draft_tokens + 1.0

    def label(self) -> str:
        """Short text."""
        if not self.draft_tokens:
            return "one token per step"
        return f"{self.draft_tokens} drafts, {self.tokens_per_step:.3g} tokens/step"


PLAIN = Speculation()


def expected_tokens(acceptance: float, draft_tokens: int) -> float:
    """Tokens per step if each draft is accepted with the same probability, given that the ones before it were.

    tokens = (1 - p^(k + 1)) / (1 - p)

    Args:
        acceptance: p, 0 to 1 [fraction].
        draft_tokens: k [tokens].

    Returns:
        1 to k + 1 [tokens].

    Raises:
        InputError: the probability is outside [0, 1], or the number of drafts is negative.

    Assumes: drafts are accepted independently; measured acceptance falls with the depth.
    Sources: Leviathan et al. 2023 (arXiv:2211.17192), equation 1.

    >>> round(expected_tokens(0.85, 1), 3), round(expected_tokens(0.8, 3), 3), expected_tokens(1.0, 3)
    (1.85, 2.952, 4.0)
    """
    require(0.0 <= acceptance <= 1.0, what="acceptance", given=acceptance, allowed="0 to 1", nearest="0.8")
    require(draft_tokens >= 0, what="draft_tokens", given=draft_tokens, allowed="0 or more", nearest="0")
    return float(sum(acceptance**i for i in range(draft_tokens + 1)))


def usual_speculation(draft_tokens: int = USUAL_DRAFT_TOKENS) -> Speculation:
    """Drafts with the mean acceptance measured on servers; constant beyond the end of the table.

    Args:
        draft_tokens: k, 0 or more [tokens].
    """
    if draft_tokens == 0:
        return PLAIN
    return Speculation(
        draft_tokens=draft_tokens,
        tokens_per_step=MEASURED_TOKENS_PER_STEP[min(max(draft_tokens, 1), max(MEASURED_TOKENS_PER_STEP))],
    )


def breakeven_tokens(verify_s: float, draft_s: float, plain_s: float, draft_tokens: int) -> float:
    """Tokens per step above which drafting pays off.

    tokens = (t_verify + k t_draft) / t_plain

    Args:
        verify_s, draft_s, plain_s: verification pass, one draft, plain decode step, at the same batch size [s].
        draft_tokens: k [tokens].

    Returns:
        Tokens; above k + 1, drafting never pays off at this batch size.

    >>> breakeven_tokens(1.1, 0.1, 1.0, 3)
    1.4000000000000001
    """
    return (verify_s + draft_tokens * draft_s) / plain_s if plain_s > 0 else math.inf

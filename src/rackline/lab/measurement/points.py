"""Which passes are fitted, and which only judge the fit."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from rackline.lab.measurement.engine import Limits, Work

_SHORT = 64
_MANY, _FEW = (16, 4, 4), (6, 1, 1)  # decode, prefill and mixed passes that are not fitted
_BATCHES = 6


def fitted_works(limits: Limits) -> tuple[Work, ...]:
    """The corners of batch and context, two prompts, and a prompt beside a batch."""
    few, most = 1, limits.sequences
    short, longest, prompt = _contexts(limits)
    some = max(most // 4, 1)
    return (
        _decode(few, short),
        _decode(few, longest),
        _decode(most, short),
        _decode(most, longest),
        _decode(some, (short + longest) // 4),
        Work(prompt_tokens=prompt // 8),
        Work(prompt_tokens=prompt),
        Work(sequences=max(most // 2, 1), context_len=longest // 2, prompt_tokens=prompt // 4),
    )


def held_out_works(limits: Limits, seed: int, *, few: bool = False) -> tuple[Work, ...]:
    """Passes drawn at random inside the range of the fitted ones; none of them is fitted.

    Batches, contexts and prompts are uniform in their logarithms; there are a few different batches, since an engine
    that compiles its passes does so for each.

    Args:
        limits: largest passes of the engine.
        seed: of the draws; another seed gives other passes.
        few: for a first look.
    """
    random = np.random.default_rng(seed)
    short, longest, prompt = _contexts(limits)

    def between(low: int, high: int) -> int:
        return round(math.exp(random.uniform(math.log(low), math.log(high))))

    batches = [between(1, limits.sequences) for _ in range(_BATCHES)]

    def decode() -> Work:
        return _decode(int(random.choice(batches)), between(short, longest))

    def prefill() -> Work:
        return Work(prompt_tokens=between(prompt // 8, prompt))

    def mixed() -> Work:
        return replace(decode(), prompt_tokens=prefill().prompt_tokens)

    found: list[Work] = []
    decodes, prompts, mixtures = _FEW if few else _MANY
    for count, draw in ((decodes, decode), (prompts, prefill), (mixtures, mixed)):
        wanted = len(found) + count
        while len(found) < wanted:
            work = draw()
            if work not in found and work not in fitted_works(limits):
                found.append(work)
    return tuple(found)


def _contexts(limits: Limits) -> tuple[int, int, int]:
    """(short, longest, longest prompt) [tokens]."""
    return min(_SHORT, limits.context_len // 2), limits.context_len - 16, limits.prompt_tokens


def _decode(sequences: int, context_len: int) -> Work:
    return Work(sequences=sequences, context_len=context_len)

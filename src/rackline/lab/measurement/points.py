"""Which passes are fitted, and which only judge the fit."""

from __future__ import annotations

from rackline.lab.measurement.engine import Limits, Work

_SHORT = 64


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


def held_out_works(limits: Limits) -> tuple[Work, ...]:
    """Other batches, contexts, prompts and mixtures inside the same range; none of them is fitted."""
    most = limits.sequences
    short, longest, prompt = _contexts(limits)
    batches = sorted({1, 2, max(most // 4, 1), max(most // 2, 1), most})
    contexts = (short, longest // 4, longest // 2, longest)
    fitted = set(fitted_works(limits))
    grid = [_decode(batch, context) for batch in batches for context in contexts]
    prompts = [Work(prompt_tokens=prompt * part // 8) for part in (2, 4, 6)]
    mixed = [
        Work(sequences=max(most // 4, 1), context_len=short, prompt_tokens=prompt // 8),
        Work(sequences=max(most // 2, 1), context_len=longest, prompt_tokens=prompt // 2),
        Work(sequences=most, context_len=longest // 4, prompt_tokens=prompt // 4),
    ]
    return tuple(work for work in (*grid, *prompts, *mixed) if work not in fitted)


def _contexts(limits: Limits) -> tuple[int, int, int]:
    """(short, longest, longest prompt) [tokens]."""
    return min(_SHORT, limits.context_len // 2), limits.context_len - 16, limits.prompt_tokens


def _decode(sequences: int, context_len: int) -> Work:
    return Work(sequences=sequences, context_len=context_len)

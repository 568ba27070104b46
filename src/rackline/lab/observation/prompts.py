"""Prompts of a stated length, synthetic: equal blocks give equal text, so that prefixes are shared as asked for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rackline.lab.observation.target import Target
from rackline.simulation import Requests

PromptForm = Literal["tokens", "words"]
_WORDS = (
    "the", "of", "and", "to", "in", "is", "was", "for", "on", "that", "with", "as", "it", "by", "from", "at", "his",
    "which", "this", "also", "be", "had", "or", "has", "first", "one", "their", "new", "after", "who", "not", "they",
    "two", "been", "other", "when", "there", "all", "during", "into", "may", "than", "up", "would", "only", "some",
    "school", "many", "more", "over", "three", "city", "years", "where", "under", "between", "later", "out", "most",
    "while", "about", "used", "world", "against", "life", "state", "part", "known", "number", "such", "house", "same",
)  # fmt: skip
"""Common words, a token each in most vocabularies when a space stands before them."""
_FIRST_ID = 100
"""Ids below are often control tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """How requests are written.

    Args:
        target: the server.
        form: tokens (ids, whose number is exact) or words (about one token each).
        vocab_size: ids are drawn below it [tokens].
        natural_ends: whether answers may end before the length that was asked for.
        seed: of what is made up.
    """

    target: Target
    form: PromptForm = "tokens"
    vocab_size: int = 10_000
    natural_ends: bool = False
    seed: int = 0

    def body(self, requests: Requests, index: int) -> bytes:
        """The JSON of one request."""
        data: dict[str, Any] = {
            "model": self.target.served_name,
            "max_tokens": int(requests.output_len[index]),
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0.0,
        }
        if not self.natural_ends:
            data |= {"ignore_eos": True, "min_tokens": int(requests.output_len[index])}
        prompt = self.prompt(requests, index)
        if self.target.endpoint == "chat":
            data["messages"] = [{"role": "user", "content": prompt}]
        else:
            data["prompt"] = prompt
        return json.dumps(data, separators=(",", ":")).encode()

    def prompt(self, requests: Requests, index: int) -> str | list[int]:
        """Ids or words; full blocks by their hashes, the rest by the request itself."""
        length = int(requests.input_len[index])
        parts: list[np.ndarray[Any, Any]] = []
        if requests.hashes is not None:
            size = requests.hash_tokens
            parts = [self._drawn(size, 1, block) for block in requests.hashes[index][: length // size]]
            length -= size * len(parts)
        drawn = np.concatenate([*parts, self._drawn(length, 0, index)])
        if self.form == "tokens" and self.target.endpoint == "completions":
            return drawn.tolist()
        return " ".join(_WORDS[int(one) % len(_WORDS)] for one in drawn)

    def _drawn(self, count: int, kind: int, number: int) -> np.ndarray[Any, Any]:
        random = np.random.default_rng((self.seed, kind, number & (2**64 - 1)))
        first = min(_FIRST_ID, self.vocab_size // 2)
        return random.integers(first, self.vocab_size, count)

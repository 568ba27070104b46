"""Records of uses: how long the requests of a use are, and which latencies it needs."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from rackline.catalog.base import Positive, SourcedRecord

Percentile = Annotated[float, Field(gt=0.0, lt=100.0)]


class UseRecord(SourcedRecord):
    """What a model is used for.

    Args:
        input_len: Prompt tokens of a request, on average [token].
        output_len: Output tokens of a request, on average [token].
        cache_hit: Share of the prompt that is in the KV cache already.
        ttft_s: Largest time to first token; none where nobody waits [s].
        tpot_s: Largest time per output token; none where nobody waits [s].
        percentile: Of the requests that must meet the limits; the mean without it.
    """

    input_len: Annotated[float, Field(ge=1.0)]
    output_len: Annotated[float, Field(ge=2.0)]
    cache_hit: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    ttft_s: Positive | None = None
    tpot_s: Positive | None = None
    percentile: Percentile | None = None

    @model_validator(mode="after")
    def _percentile_of_a_limit(self) -> Self:
        if self.percentile is not None and self.ttft_s is None and self.tpot_s is None:
            raise ValueError("percentile without ttft_s or tpot_s")
        return self

"""Records of training runs: model, tokens, chips and time."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from rackline.catalog.base import Date, Positive, SourcedRecord, Text


class RunRecord(SourcedRecord):
    """One training run as published.

    Args:
        total_params: All parameters [count].
        active_params: Parameters that one token is multiplied with; all of them by default [count].
        tokens: Tokens of pre-training [token].
        released: Date of release, YYYY[-MM[-DD]].
        chip: Chip that it ran on: a catalogue name where there is one.
        peak_flop_per_s: Dense peak that the published MFU refers to, where the chip is not in the catalogue [FLOP/s].
        chip_hours: Chip-hours of the run [hour].
        mfu: Published share of the peak that the model's FLOP took.
    """

    total_params: Positive
    active_params: Positive | None = None
    tokens: Positive
    released: Date | None = None
    chip: Text | None = None
    peak_flop_per_s: Positive | None = None
    chip_hours: Positive | None = None
    mfu: Annotated[float, Field(gt=0.0, le=1.0)] | None = None

    @model_validator(mode="after")
    def _active_is_a_part(self) -> Self:
        if self.active_params is not None and self.active_params > self.total_params:
            raise ValueError(f"active_params {self.active_params:.4g} exceed total_params {self.total_params:.4g}")
        return self

"""Records of scaling laws: published constants, each with its source."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from rackline.catalog.base import Positive, Record, SourcedRecord

Finite = Annotated[float, Field()]


class LossRecord(Record):
    """Constants of L(N, D) = E + A / N**alpha + B / D**beta.

    Args:
        irreducible_loss: E [nat per token].
        params_coefficient: A.
        tokens_coefficient: B.
        params_exponent: alpha.
        tokens_exponent: beta.
        useful_repeats: R*, after how many repeats of the data most of their value is gone; only where fitted.
    """

    irreducible_loss: Positive
    params_coefficient: Positive
    tokens_coefficient: Positive
    params_exponent: Positive
    tokens_exponent: Positive
    useful_repeats: Positive | None = None


class LossErrorRecord(Record):
    """Standard errors of the constants of a loss law, as published."""

    irreducible_loss: Positive
    params_coefficient: Positive
    tokens_coefficient: Positive
    params_exponent: Positive
    tokens_exponent: Positive


class FrontierRecord(Record):
    """Constants of N_opt(C) = coefficient * C**exponent, the compute-optimal size for C FLOP.

    Args:
        coefficient: Parameters at 1 FLOP [count].
        exponent: Growth of the size with FLOP.
    """

    coefficient: Positive
    exponent: Positive


class ExpertRangeRecord(Record):
    """Between which numbers of experts a routed law bends.

    Args:
        experts_start: Number of experts below which nothing is gained [count].
        experts_max: Number of experts above which nothing more is gained [count].
    """

    experts_start: Positive
    experts_max: Positive


class RoutedRecord(ExpertRangeRecord):
    """Constants of log10 L = a log10 N + b log10 E + c log10 N log10 E + d.

    Args:
        params_slope: a.
        experts_slope: b.
        interaction_slope: c.
        intercept: d.
    """

    params_slope: Finite
    experts_slope: Finite
    interaction_slope: Finite
    intercept: Finite


class JointRecord(ExpertRangeRecord):
    """Constants of L = a E**delta N**(alpha + gamma ln E) + b E**omega D**(beta + zeta ln E) + c.

    Args:
        params_coefficient: a.
        tokens_coefficient: b.
        irreducible_loss: c.
        params_slope: alpha.
        tokens_slope: beta.
        params_experts_slope: delta.
        params_interaction_slope: gamma.
        tokens_experts_slope: omega.
        tokens_interaction_slope: zeta.
    """

    params_coefficient: Positive
    tokens_coefficient: Positive
    irreducible_loss: Positive
    params_slope: Finite
    tokens_slope: Finite
    params_experts_slope: Finite
    params_interaction_slope: Finite
    tokens_experts_slope: Finite
    tokens_interaction_slope: Finite


class LawRecord(SourcedRecord):
    """One published scaling law; exactly one of the tables.

    Args:
        loss: Loss of size and tokens.
        loss_standard_error: Standard errors of that.
        frontier: Best size of a compute budget.
        routed: Loss of active size and number of experts at fixed tokens.
        joint: Loss of active size, tokens and number of experts.
    """

    loss: LossRecord | None = None
    loss_standard_error: LossErrorRecord | None = None
    frontier: FrontierRecord | None = None
    routed: RoutedRecord | None = None
    joint: JointRecord | None = None

    @model_validator(mode="after")
    def _is_one_law(self) -> Self:
        given = [table for table in (self.loss, self.frontier, self.routed, self.joint) if table is not None]
        if len(given) != 1:
            raise ValueError("a law has exactly one of the tables loss, frontier, routed, joint")
        return self

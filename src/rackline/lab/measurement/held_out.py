"""Predicted against measured, for what was not fitted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from rackline.lab.measurement.engine import WORK_KINDS

Kind = Literal["decode", "prefill", "mixed", "served", "saturation"]
KINDS: tuple[Kind, ...] = (*WORK_KINDS, "served", "saturation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One time, predicted and measured.

    Args:
        kind: decode, prefill, mixed, served, or saturation: requests of which some always wait.
        sequences: that decode; 0 for none [sequences].
        context_len: that each has cached [tokens].
        prompt_tokens: of the prompt in the pass, or of the request [tokens].
        rate_per_s: of the arrivals of a served request, over the highest that the engine is predicted to hold [1].
        predicted_s, measured_s: time of the pass, or of the request from arrival to last token; at saturation, time
            that the engine takes for each request [s].
        spread: of the repeats, distance of the quartiles over the lower one; 0 for a request [1].
        is_fitted: whether the fit has seen it.
    """

    json_keys: ClassVar[tuple[str, ...]] = (
        "kind", "sequences", "context_len", "prompt_tokens", "load", "predicted_s", "measured_s", "error", "spread",
        "is_fitted",
    )  # fmt: skip

    kind: Kind
    sequences: int = 0
    context_len: int = 0
    prompt_tokens: int = 0
    load: float = 0.0
    predicted_s: float
    measured_s: float
    spread: float = 0.0
    is_fitted: bool = False

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_s / self.measured_s - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Errors of one kind.

    Args:
        n: times that were compared [count].
        median_abs_error, p90_abs_error: of the absolute relative errors; None without any [1].
    """

    n: int
    median_abs_error: float | None
    p90_abs_error: float | None


def score(rows: Sequence[Compared]) -> Score:
    """Errors of some rows.

    >>> one = Compared(kind="decode", predicted_s=1.1, measured_s=1.0)
    >>> round(score([one]).median_abs_error, 3), score([]).n
    (0.1, 0)
    """
    if not rows:
        return Score(n=0, median_abs_error=None, p90_abs_error=None)
    errors = np.abs([row.error for row in rows])
    return Score(n=len(rows), median_abs_error=float(np.median(errors)), p90_abs_error=float(np.quantile(errors, 0.9)))


def scores(rows: Iterable[Compared]) -> dict[Kind, Score]:
    """Errors by kind, of what was not fitted."""
    unseen = [row for row in rows if not row.is_fitted]
    return {kind: score([row for row in unseen if row.kind == kind]) for kind in KINDS}

"""What an experiment is told and what it returns: readings, each with its prediction, and a verdict."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, assert_never

import numpy as np

from rackline.errors import InputError
from rackline.late import load_optional

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false


NUM_DEVICES = 8  # two racks of four, or the stages of a pipeline
_FLAG = "--xla_force_host_platform_device_count"


def start_jax(device: str = "cpu") -> Any:
    """JAX with NUM_DEVICES devices of the host, so that exchanges between devices can be run on any machine.

    Args:
        device: name of a JAX platform on which computations run by default.

    Returns:
        The module.

    Raises:
        InputError: JAX is not installed, was started with fewer devices, or has no such platform.
    """
    if _FLAG not in os.environ.get("XLA_FLAGS", ""):  # read when JAX first asks for devices, not when it is imported
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}={NUM_DEVICES}".strip()
    jax = load_optional("jax", what="lab")
    if len(jax.devices("cpu")) < NUM_DEVICES:
        raise InputError(
            what="lab",
            given=f"JAX that was started with {len(jax.devices('cpu'))} host devices",
            allowed=f"{NUM_DEVICES}: set XLA_FLAGS={_FLAG}={NUM_DEVICES} before JAX is used",
        )
    try:
        chosen = jax.devices(device)[0]
    except RuntimeError as error:
        raise InputError(
            what="--device", given=device, allowed=f"{jax.default_backend()} or cpu on this machine"
        ) from error
    jax.config.update("jax_default_device", chosen)
    return jax


Verdict = Literal["holds", "differs", "undecided"]
Check = Literal["equal", "at_most", "at_least", "shown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How an experiment is run.

    Args:
        quick: fewer random seeds and shorter training, for a first look.
        seed: random seed of weights and data.
        device: name of the JAX platform, "cpu" or "gpu".
        progress: is told what is being done.
    """

    quick: bool = False
    seed: int = 0
    device: str = "cpu"
    progress: Callable[[str], None] = field(default=lambda _: None)

    def seeds(self, quick: int, full: int) -> range:
        """Random seeds of repeated runs.

        Args:
            quick, full: how many of them [count].
        """
        return range(self.seed, self.seed + (quick if self.quick else full))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One quantity, predicted and measured.

    Args:
        quantity: what was measured.
        unit: its unit; "" for a ratio.
        predicted: what the library says, or the bound; None where there is no prediction.
        measured: what came out.
        low, high: interval of the measured mean (95 %), where runs were repeated.
        check: how the two are compared; "shown" is not judged.
        tolerance: largest relative difference that still counts as equal, or share by which a bound may be missed.
        statistical: whether other random seeds or another machine give another number.
        source: where the prediction comes from.
    """

    json_keys: ClassVar[tuple[str, ...]] = (
        "quantity", "unit", "predicted", "measured", "low", "high", "check", "tolerance", "holds", "error",
        "statistical", "source",
    )  # fmt: skip

    quantity: str
    unit: str = ""
    predicted: float | None = None
    measured: float
    low: float | None = None
    high: float | None = None
    check: Check = "shown"
    tolerance: float = 0.0
    statistical: bool = False
    source: str = ""

    @classmethod
    def of_runs(cls, values: Sequence[float], **more: Any) -> Reading:
        """The mean of repeated runs, with its interval.

        Args:
            values: of each run.
            more: the other fields.
        """
        mean, low, high = mean_interval(values)
        return cls(measured=mean, low=low, high=high, statistical=True, **more)

    @classmethod
    def of_shares(cls, values: Sequence[float], trials: int, **more: Any) -> Reading:
        """The mean of shares that repeated runs counted, with its interval.

        Args:
            values: of each run [1].
            trials: that a run counted [count].
            more: the other fields.
        """
        mean, low, high = share_interval(values, trials)
        return cls(measured=mean, low=low, high=high, statistical=True, **more)

    @property
    def holds(self) -> bool | None:
        """Whether measurement and prediction agree; None where nothing is judged or the interval decides nothing."""
        if self.predicted is None:
            return None
        slack = self.tolerance * max(abs(self.predicted), 1e-300 if self.predicted else 1.0)
        low, high = (self.measured if end is None else end for end in (self.low, self.high))
        match self.check:
            case "shown":
                return None
            case "equal":
                near = abs(self.measured - self.predicted) <= slack
                possible = low - slack <= self.predicted <= high + slack
            case "at_most":
                near, possible = high <= self.predicted + slack, low <= self.predicted + slack
            case "at_least":
                near, possible = low >= self.predicted - slack, high >= self.predicted - slack
            case _:
                assert_never(self.check)
        return True if near else None if possible and self.low is not None else False

    @property
    def error(self) -> float | None:
        """Measured over predicted, less one; None without a prediction other than zero."""
        if not self.predicted or self.check in ("at_most", "at_least"):
            return None
        return self.measured / self.predicted - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What came out of one experiment.

    Args:
        name: of the experiment.
        claims: ids of the lecture that it tests.
        rows: its readings.
        findings: what came out, a sentence each.
        seconds: that it took [s].
        seed: random seed.
        quick: whether it was the short form.
        device: on which it ran.
        curves: rows of its figure: series, x, y, and whether predicted or measured.
        axes: titles of the figure's axes.
        log_axes: whether each axis is logarithmic.
    """

    json_keys: ClassVar[tuple[str, ...]] = (
        "name", "claims", "verdict", "rows", "findings", "seconds", "seed", "quick", "device", "curves", "axes",
        "log_axes",
    )  # fmt: skip

    name: str
    claims: tuple[str, ...]
    rows: tuple[Reading, ...]
    findings: tuple[str, ...] = ()
    seconds: float = 0.0
    seed: int = 0
    quick: bool = False
    device: str = ""
    curves: tuple[Curve, ...] = ()
    axes: tuple[str, str] = ("", "")
    log_axes: tuple[bool, bool] = (False, False)

    @property
    def verdict(self) -> Verdict:
        """Whether all of its readings hold."""
        return verdict_of(self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line of an experiment's figure.

    Args:
        name: of the line.
        kind: "predicted" is drawn as a line, "measured" as points.
        x, y: of the same length.
    """

    name: str
    kind: Literal["predicted", "measured"]
    x: tuple[float, ...]
    y: tuple[float, ...]


def verdict_of(rows: Iterable[Reading]) -> Verdict:
    """ "differs" if one reading differs, "holds" if all that are judged hold, else "undecided"."""
    judged = [row.holds for row in rows if row.check != "shown"]
    if any(held is False for held in judged):
        return "differs"
    return "holds" if judged and all(judged) else "undecided"


def _students_t(runs: int) -> float:
    """Half the width of an interval of 95 %, in standard errors of the mean of that many runs."""
    from scipy.special import stdtrit

    return float(stdtrit(runs - 1, 0.975))


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean of repeated runs and its interval of 95 % by Student's t; the interval of one run is unbounded.

    >>> mean, low, high = mean_interval([1.0, 1.2, 0.8])
    >>> round(mean, 3), round(low, 3), round(high, 3)
    (1.0, 0.503, 1.497)
    """
    numbers = np.asarray(values, dtype=float)
    mean = float(numbers.mean())
    if numbers.size < 2:
        return mean, -math.inf, math.inf
    half = _students_t(numbers.size) * float(numbers.std(ddof=1)) / math.sqrt(numbers.size)
    return mean, mean - half, mean + half


def share_interval(values: Sequence[float], trials: int) -> tuple[float, float, float]:
    """Mean of shares and its interval of 95 %, which stays between 0 and 1.

    Wilson's interval for as many trials as would spread as the runs did, and no more than there were, with Student's t
    for the number of runs.

    Args:
        values: share of each run [1].
        trials: of each run [count].

    Returns:
        (mean, low, high); everything from 0 to 1 for one run, whose spread is not known.

    Sources: Wilson 1927, J. Am. Stat. Assoc. 22, 209; effective sizes as in Franco, Little, Louis and Slud 2019, J.
        Survey Stat. Methodol. 7, 334.

    >>> [round(one, 3) for one in share_interval([0.9, 0.8, 0.95], 100)]
    [0.883, 0.593, 0.975]
    >>> [round(one, 3) for one in share_interval([1.0, 1.0, 1.0], 100)]
    [1.0, 0.942, 1.0]
    """
    numbers = np.asarray(values, dtype=float)
    mean, runs = float(numbers.mean()), numbers.size
    if runs < 2:
        return mean, 0.0, 1.0
    spread = float(numbers.var(ddof=1)) / runs
    count = min(runs * trials, mean * (1.0 - mean) / spread) if spread > 0.0 else float(runs * trials)
    t2 = _students_t(runs) ** 2 / count
    middle = (mean + t2 / 2.0) / (1.0 + t2)
    half = math.sqrt(t2 * (mean * (1.0 - mean) + t2 / 4.0)) / (1.0 + t2)
    return mean, max(middle - half, 0.0), min(middle + half, 1.0)


def shares_apart(one: Reading, other: Reading, **more: Any) -> Reading:
    """One share less another, with an interval that stays between -1 and 1.

    Sources: Newcombe 1998, Statistics in Medicine 17, 873, method 10 (square and add).
    """
    p, q = one.measured, other.measured
    ends = [p if end is None else end for end in (one.low, one.high)]
    others = [q if end is None else end for end in (other.low, other.high)]
    low = p - q - math.hypot(p - ends[0], others[1] - q)
    high = p - q + math.hypot(ends[1] - p, q - others[0])
    return Reading(measured=p - q, low=max(low, -1.0), high=min(high, 1.0), statistical=True, **more)

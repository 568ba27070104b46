"""Known training runs: over-training, the inference that justifies it, goodput."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rackline.catalog import Evidence, RunRecord, names, run_record
from rackline.checked import Num, checked, plain
from rackline.errors import InputError, UnknownNameError
from rackline.hardware import chip
from rackline.scaling.chinchilla import overtraining_factor, train_flop
from rackline.scaling.law import LossLaw
from rackline.scaling.optimum import implied_lifetime_flop_per_param
from rackline.scaling.overtrain import FORWARD_FLOP_PER_PARAM_TOKEN, equal_cost_ratio

PUBLISHED_PEAK = "bf16"  # the data type whose peak published MFU refer to
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRun:
    """A run and what follows from its published numbers.

    Args:
        name: catalogue name.
        full_name: display name.
        total_params: all parameters [count].
        active_params: parameters that one token is multiplied with [count].
        tokens: tokens of pre-training [token].
        train_flop: 6 N_active D [FLOP].
        tokens_per_param: D / N_active [token per parameter].
        overtraining_factor: D / (20 N_active).
        equal_cost_tokens: lifetime tokens by the lecture's rule that use costs as much as pre-training [token].
        optimal_lifetime_tokens: lifetime tokens for which this was the cheapest way to its loss under the law; None
            where the model is larger than compute-optimal, which no use justifies [token].
        chip: chip it ran on, or None.
        peak_flop_per_s: dense peak that MFU refers to, or None [FLOP/s].
        chip_hours: published, or None [hour].
        mfu_published: published MFU of a step, or None.
        mfu_of_hours: 6 N D over what the chips could have done in the published hours, or None.
        goodput: mfu_of_hours / mfu_published: share of the hours that were steps of the final run, or None.
        evidence: kind of the weakest source of size and tokens.
    """

    name: str
    full_name: str
    total_params: float
    active_params: float
    tokens: float
    train_flop: float
    tokens_per_param: float
    overtraining_factor: float
    equal_cost_tokens: float
    optimal_lifetime_tokens: float | None
    chip: str | None
    peak_flop_per_s: float | None
    chip_hours: float | None
    mfu_published: float | None
    mfu_of_hours: float | None
    goodput: float | None
    evidence: str


def run_mfu(active_params: Num, tokens: Num, chip_hours: Num, peak_flop_per_s: Num) -> Num:
    """Share of what the chips could have done in the hours of a run that its 6 N D are.

    MFU = 6 N D / (chip_hours * 3600 * peak)

    Args:
        active_params: N_active [count], any shape.
        tokens: D [token], broadcasts.
        chip_hours: hours of all chips together [hour], broadcasts.
        peak_flop_per_s: dense peak of one chip [FLOP/s], broadcasts.

    Returns:
        Fraction, broadcast shape; above 1 says that the numbers do not belong together.

    Raises:
        InputError: a value that is not positive and finite.

    Assumes: all hours went into this run; attention's own products are not counted.

    Sources: scaling book, "Transformers", problem 7 (DeepSeek V3).

    >>> round(run_mfu(37e9, 14.8e12, 2.79e6, 1513e12), 3)
    0.216
    """
    hours, peak = checked("run_mfu", chip_hours=chip_hours, peak_flop_per_s=peak_flop_per_s)
    return plain(train_flop(active_params, tokens) / (hours * HOUR_S * peak))


def chip_hours_of_flop(flop: Num, mfu: Num, peak_flop_per_s: Num) -> Num:
    """Chip-hours for a number of FLOP.

    hours = FLOP / (MFU * peak * 3600)

    Args:
        flop: FLOP of the model [FLOP], any shape, 0 allowed.
        mfu: share of the peak that is reached, at most 1 [ratio], broadcasts.
        peak_flop_per_s: dense peak of one chip [FLOP/s], broadcasts.

    Returns:
        Hours of one chip, broadcast shape.

    Raises:
        InputError: an MFU above 1, a value that is not positive and finite.

    Assumes: a constant MFU.

    Sources: definition of MFU (PaLM, Chowdhery et al. 2022, appendix B).

    >>> round(chip_hours_of_flop(6.3e24, 0.4, 459e12) / 8960 / 24)  # days of LLaMA 3 70B on a pod of TPU v5p
    44
    """
    c, share, peak = checked("chip_hours_of_flop", zero=("flop",), flop=flop, mfu=mfu, peak_flop_per_s=peak_flop_per_s)
    if not (share <= 1.0).all():
        raise InputError(
            what="mfu", given=float(share.max()), allowed="above 0 to 1: no run is above the peak", nearest="1"
        )
    return plain(c / (share * peak * HOUR_S))


def lifetime_tokens_of_flop(lifetime_flop_per_param: float, relative_mfu: float) -> float:
    """Inference tokens that cost K FLOP of pre-training per parameter: K m / 2 [token]."""
    return lifetime_flop_per_param * relative_mfu / FORWARD_FLOP_PER_PARAM_TOKEN


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """How large a model is and on how much it was trained.

    Args:
        full_name: display name.
        active_params: parameters that one token is multiplied with [count].
        tokens: of pre-training [token].
    """

    full_name: str
    active_params: float
    tokens: float


def trained() -> list[Trained]:
    """Sizes and tokens of all runs of the catalogue."""
    records = [run_record(name) for name in names("runs")]
    return [Trained(full_name=one.full_name, active_params=_active(one), tokens=one.tokens) for one in records]


def _active(record: RunRecord) -> float:
    return record.total_params if record.active_params is None else record.active_params


def known_run(
    name: str, law: LossLaw, inference_relative_mfu: float, overrides: Mapping[str, object] | None = None
) -> KnownRun:
    """What follows from the published numbers of one run.

    Args:
        name: catalogue name, alias or TOML file.
        law: loss law for the exact optimum.
        inference_relative_mfu: MFU of use over that of pre-training.
        overrides: dotted keys and the values that replace the catalogue's.

    Raises:
        UnknownNameError: no such run.
        CatalogError: a file that breaks the schema, such as a model smaller than its active part.
    """
    record = run_record(name, overrides=overrides)
    active = _active(record)
    lifetime = implied_lifetime_flop_per_param(law, active, record.tokens)
    beta = equal_cost_ratio(FORWARD_FLOP_PER_PARAM_TOKEN, inference_relative_mfu)
    peak = _peak(record)
    of_hours = None
    if record.chip_hours is not None and peak is not None:
        of_hours = run_mfu(active, record.tokens, record.chip_hours, peak)
    kinds = [source.kind for key in ("total_params", "tokens") if (source := record.source_of(key)) is not None]
    return KnownRun(
        name=record.name,
        full_name=record.full_name,
        total_params=record.total_params,
        active_params=active,
        tokens=record.tokens,
        train_flop=train_flop(active, record.tokens),
        tokens_per_param=record.tokens / active,
        overtraining_factor=overtraining_factor(active, record.tokens),
        equal_cost_tokens=record.tokens / beta,
        optimal_lifetime_tokens=(
            lifetime_tokens_of_flop(lifetime, inference_relative_mfu) if lifetime >= 0.0 else None
        ),
        chip=record.chip,
        peak_flop_per_s=peak,
        chip_hours=record.chip_hours,
        mfu_published=record.mfu,
        mfu_of_hours=of_hours,
        goodput=of_hours / record.mfu if of_hours is not None and record.mfu is not None else None,
        evidence=str(max(kinds, key=list(Evidence).index)),
    )


def known_runs(law: LossLaw, inference_relative_mfu: float) -> list[KnownRun]:
    """All runs of the catalogue, the most over-trained first; arguments as in `known_run`."""
    found = [known_run(name, law, inference_relative_mfu) for name in names("runs")]
    return sorted(found, key=lambda run: -run.overtraining_factor)


def _peak(record: RunRecord) -> float | None:
    if record.peak_flop_per_s is not None or record.chip is None:
        return record.peak_flop_per_s
    try:
        made_of = chip(record.chip)
    except UnknownNameError:
        return None
    return made_of.flop_per_s(PUBLISHED_PEAK) if made_of.supports(PUBLISHED_PEAK) else None

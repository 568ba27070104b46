"""From a price sheet to the architecture and the operation behind it.

Every reading is a closed form that rises or falls in each unknown, so its extremes over all unknowns lie at corners:
each end of the interval is the form at the ends of the ranges, over all chips and data types. A true deployment inside
the ranges is therefore always inside the interval.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rackline.hardware import MemoryTier
from rackline.passes.features import as_array
from rackline.pricing.cache import keeping_units, read_cache
from rackline.pricing.compare import conflicts, fitting_tiers, price_changes
from rackline.pricing.forms import (
    active_params_from_input_price,
    bytes_from_output_price,
    kv_bytes_from_step,
    output_cost_over_price,
)
from rackline.pricing.reading import Bound, Reader, Reading, verdict_of
from rackline.pricing.sheet import PriceSheet, PriceTier
from rackline.pricing.unknowns import Draws, Unknowns, default_unknowns
from rackline.serving import blackboard

# What the lecture puts in: 100 billion active parameters and a ratio of 300 (claim C100).
LECTURE_ACTIVE_PARAMS = 100e9
LECTURE_RATIO = 300.0


def read_prices(
    sheet: PriceSheet,
    unknowns: Unknowns | None = None,
    active_params: float | None = None,
    units: Sequence[MemoryTier] | None = None,
    draws: Draws | None = None,
) -> Reading:
    """Read everything that one sheet allows.

    Args:
        unknowns: ranges; the defaults on all rentable chips when not given.
        active_params: known active parameters, which the context step then needs no price for [elements].
        units: memory tiers in which a cache may be kept; the catalogue's when not given.
        draws: combinations of the unknowns; drawn with a fixed seed when not given.
    """
    ranges = unknowns or default_unknowns()
    drawn = draws or ranges.draws(np.random.default_rng(0))
    reader = Reader(sheet, ranges, drawn, active_params, units or keeping_units())
    standard = sheet.standard
    if standard is None:
        reader.miss("everything", "the sheet has no standard tier")
    else:
        for read in (_active_params, _ratio, _output_bytes, _context_step, _fast, read_cache):
            read(reader, standard)
    return Reading(
        sheet=sheet.name,
        provider=sheet.provider,
        sold_as=sheet.sold_as,
        date=sheet.date,
        model=sheet.model,
        prices=sheet.tiers,
        verdict=verdict_of(sheet, drawn),
        inferences=tuple(reader.inferences),
        missing=tuple(reader.missing),
        conflicts=conflicts(sheet, reader.unknowns, reader.inferences, reader.price_over_cost),
        kept_in=tuple(reader.kept_in),
        changes=price_changes(sheet, reader.unknowns),
        fitting_tiers=fitting_tiers(reader.inferences),
        problems=sheet.problems,
    )


def read_all(
    sheets: Sequence[PriceSheet], unknowns: Unknowns | None = None, active_params: float | None = None
) -> tuple[Reading, ...]:
    """Read every sheet under the same unknowns; see `read_prices`."""
    ranges, units = unknowns or default_unknowns(), keeping_units()
    drawn = ranges.draws(np.random.default_rng(0))
    return tuple(read_prices(sheet, ranges, active_params, units, drawn) for sheet in sheets)


def _active_params(reader: Reader, standard: PriceTier) -> None:
    if standard.input_usd is None:
        reader.miss("active_params", "no usable input price")
        return
    u, x, (low_rent, high_rent) = reader.unknowns, reader.price_over_cost, reader.rents
    form, d = active_params_from_input_price, reader.draws
    reader.add(
        "active_params",
        "elements",
        "input price",
        reader.ends(
            form(standard.input_usd, u.flop_per_s, u.mfu.low, high_rent, x.high),
            form(standard.input_usd, u.flop_per_s, u.mfu.high, low_rent, x.low),
        ),
        as_array(form(standard.input_usd, d.flop_per_s, d.mfu, d.usd_per_chip_s, reader.drawn_x)),
        claim="C104",
        note="prefill is bound by compute",
    )


def _ratio(reader: Reader, standard: PriceTier) -> None:
    given, made = standard.input_usd, standard.output_usd
    if given is None or made is None:
        reader.miss("decode_mfu", f"no usable {'input' if given is None else 'output'} price")
        return
    ratio = made / given
    if ratio < 1.0:
        reader.miss("decode_mfu", f"output costs {ratio:.2g} times input: it says nothing of memory time")
        return
    if ratio == 1.0:
        reader.miss("decode_mfu", "output costs as much as input: one price for both hides the ratio")
        return
    reader.add(
        "memory_over_compute",
        "ratio",
        "output over input price",
        (ratio, ratio),
        claim="C107",
        note="time of memory over compute at one token per pass, equal margins on both",
    )
    u = reader.unknowns
    reader.add(
        "decode_mfu",
        "fraction",
        "output over input price",
        (u.mfu.low / ratio, u.mfu.high / ratio),
        reader.draws.mfu / ratio,
        claim="C107",
        note=f"1/{ratio:.3g} of prefill's",
    )


def _output_bytes(reader: Reader, standard: PriceTier) -> None:
    given, made = standard.input_usd, standard.output_usd
    if made is None:
        reader.miss("bytes_per_output_token", "no usable output price")
        return
    u, x, (low_rent, high_rent) = reader.unknowns, reader.price_over_cost, reader.rents
    form, d = bytes_from_output_price, reader.draws
    ratio, requests = (given or 0.0) / made, u.input_over_output
    least_paid, most_paid = output_cost_over_price(ratio, np.array([requests.low, requests.high]))
    low, high = reader.ends(
        form(made * min(1.0, least_paid.min()), u.hbm_bytes_per_s, u.hbm_share.low, high_rent, x.high),
        form(made * most_paid.max(), u.hbm_bytes_per_s, u.hbm_share.high, low_rent, x.low),
    )
    least_paid, most_paid = output_cost_over_price(ratio, d.input_over_output)
    # two ways of pricing: each token pays its own cost, or the request does
    paid = made * np.stack([np.ones_like(d.output_split), least_paid * (most_paid / least_paid) ** d.output_split])
    drawn = as_array(form(paid, d.hbm_bytes_per_s, d.hbm_share, d.usd_per_chip_s, reader.drawn_x))
    bound: Bound = "interval" if given is not None and made > given else "at most"
    reader.add(
        "bytes_per_output_token",
        "bytes",
        "output price",
        (low, high),
        drawn,
        bound=bound,
        claim="C107",
        note="weights over the batch and KV; an upper bound where decode is bound by compute; the request pays its "
        f"cost, whose prompt has {requests.low:g} to {requests.high:g} tokens per output token",
    )
    reader.add(
        "kv_bytes_per_token",
        "bytes",
        "output price",
        (low * u.kv_share.low / u.context_len.high, high * u.kv_share.high / u.context_len.low),
        drawn * d.kv_share / d.context_len,
        bound=bound,
        claim="C97",
        note=f"KV is {u.kv_share.low:.0%} to {u.kv_share.high:.0%} of the bytes at a context of "
        f"{u.context_len.low:,.0f} to {u.context_len.high:,.0f} tokens",
    )


def _context_step(reader: Reader, standard: PriceTier) -> None:
    step = reader.sheet.step
    if step is None:
        reader.miss("crossover_context", "one price for all contexts: no crossover shows")
        return
    rises = [
        later / earlier
        for later, earlier in ((step.input_usd, standard.input_usd), (step.output_usd, standard.output_usd))
        if later is not None and earlier is not None
    ]
    if rises and max(rises) <= 1.0:
        reader.miss("crossover_context", f"prices above {step.above_context_len:,.0f} tokens are no higher")
        return
    at, u, d = step.above_context_len, reader.unknowns, reader.draws
    spread = u.step_over_crossover
    near, far = at / spread.high, at / spread.low
    reader.add(
        "crossover_context",
        "tokens",
        "context step",
        (near, far),
        at / d.step_over_crossover,
        claim="C98",
        note=f"the step stands at {at:,.0f} tokens",
    )
    x, (low_rent, high_rent) = reader.price_over_cost, reader.rents
    if standard.input_usd is not None:
        form = kv_bytes_from_step
        reader.add(
            "kv_bytes_per_token",
            "bytes",
            "context step",
            reader.ends(
                form(standard.input_usd, far, u.hbm_bytes_per_s, u.hbm_share.low, high_rent, x.high),
                form(standard.input_usd, near, u.hbm_bytes_per_s, u.hbm_share.high, low_rent, x.low),
            ),
            as_array(
                form(
                    standard.input_usd,
                    at / d.step_over_crossover,
                    d.hbm_bytes_per_s,
                    d.hbm_share,
                    d.usd_per_chip_s,
                    reader.drawn_x,
                )
            ),
            claim="C99",
            note="active parameters cancel against those in the input price",
        )
    else:
        reader.miss("kv_bytes_per_token from the context step", "no usable input price, and no active parameters")
    known = reader.active_params or LECTURE_ACTIVE_PARAMS
    form_99 = blackboard.kv_bytes_per_token_from_crossover
    given = "as given" if reader.active_params else "as the lecture supposes"
    reader.add(
        "kv_bytes_per_token",
        "bytes",
        "context step, active parameters known" if reader.active_params else "context step, lecture's parameters",
        reader.ends(
            form_99(known, far, u.flop_per_s * u.mfu.high, u.hbm_bytes_per_s * u.hbm_share.low),
            form_99(known, near, u.flop_per_s * u.mfu.low, u.hbm_bytes_per_s * u.hbm_share.high),
        ),
        as_array(form_99(known, at / d.step_over_crossover, d.flop_per_s * d.mfu, d.hbm_bytes_per_s * d.hbm_share)),
        claim="C99",
        note=f"{known / 1e9:,.0f} B active {given}",
    )
    said = known / (LECTURE_RATIO * at)
    reader.add(
        "kv_bytes_per_token",
        "bytes",
        "lecture's arithmetic",
        (said, said),
        claim="C100",
        note="its 300 taken as multiplies per byte, which is 600 FLOP per byte: right for FP8 on an H100 alone",
    )


def _fast(reader: Reader, standard: PriceTier) -> None:
    tiers = reader.sheet.of_mode("fast")
    if not tiers:
        reader.miss("batches", "no fast mode")
        return
    fast = tiers[0]
    if fast.speed_ratio is None:
        reader.miss("batches", "the fast mode states no speed")
        return
    if fast.output_usd is None or standard.output_usd is None:
        reader.miss("batches", "no usable output price of both modes")
        return
    price, speed = fast.output_usd / standard.output_usd, fast.speed_ratio
    if price <= 1.0 or speed <= 1.0:
        reader.miss("batches", f"a fast mode of {speed:g} times the speed at {price:g} times the price trades nothing")
        return
    u = reader.unknowns
    k = np.linspace(0.0, u.kv_over_compute.high, 46)[:, None, None]
    sparsity = np.array([u.total_over_active.low, u.total_over_active.high])[None, :, None]
    found = blackboard.mode_batches(speed, price, u.ridge[None, None, :] * sparsity, k)
    d = reader.draws
    likely = blackboard.mode_batches(speed, price, d.ridge * d.total_over_active, d.kv_over_compute)
    for name, batch, drawn in (
        ("normal_batch", found.normal_batch, likely.normal_batch),
        ("fast_batch", found.fast_batch, likely.fast_batch),
    ):
        reader.add(
            name,
            "sequences",
            f"{speed:g} times the speed for {price:g} times the price",
            reader.ends(batch, batch),
            as_array(drawn),
            claim="C14",
            note="batches alone; speculative decoding would change the step itself",
        )

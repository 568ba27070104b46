"""From a price sheet to the architecture and the operation behind it.

Every reading is a closed form that rises or falls in each unknown, so its extremes over all unknowns lie at corners:
each end of the interval is the form at the ends of the ranges, over all chips and data types. A true deployment inside
the ranges is therefore always inside the interval.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rackline.catalog import names
from rackline.hardware import MemoryTier, memory_tier
from rackline.passes.features import Array, as_array
from rackline.pricing import forms
from rackline.pricing.changes import price_changes
from rackline.pricing.conflicts import conflicts
from rackline.pricing.reading import Bound, Inference, KeptIn, Missing, Reading
from rackline.pricing.sheet import PriceSheet, PriceTier
from rackline.pricing.unknowns import Range, Unknowns, default_unknowns
from rackline.serving import blackboard

# What the lecture puts in: 100 billion active parameters and a ratio of 300 (claim C100).
LECTURE_ACTIVE_PARAMS = 100e9
LECTURE_RATIO = 300.0
_PATH_BYTES_PER_S = Range(low=63e9, high=450e9)  # PCIe 5.0 x16 to NVLink-C2C, one direction, per chip
_KEEPING = ("hbm", "host_dram", "cxl", "nvme", "qlc", "disk")


def read_prices(
    sheet: PriceSheet,
    unknowns: Unknowns | None = None,
    active_params: float | None = None,
    units: Sequence[MemoryTier] | None = None,
) -> Reading:
    """Read everything from one sheet that it allows.

    Args:
        unknowns: ranges; the defaults on all rentable chips when not given.
        active_params: known active parameters, which the context step then needs no price for [elements].
        units: memory tiers in which a cache may be kept; the catalogue's when not given.
    """
    reader = _Reader(sheet, unknowns or default_unknowns(), active_params, units or keeping_units())
    reader.work()
    return Reading(
        sheet=sheet.name,
        provider=sheet.provider,
        sold_as=sheet.sold_as,
        date=sheet.date,
        model=sheet.model,
        inferences=tuple(reader.inferences),
        missing=tuple(reader.missing),
        conflicts=conflicts(sheet, reader.unknowns, reader.inferences, reader.price_over_cost),
        kept_in=tuple(reader.kept_in),
        changes=price_changes(sheet, reader.unknowns),
        problems=sheet.problems,
    )


def read_all(
    sheets: Sequence[PriceSheet], unknowns: Unknowns | None = None, active_params: float | None = None
) -> tuple[Reading, ...]:
    """Read every sheet under the same unknowns; see `read_prices`."""
    ranges, units = unknowns or default_unknowns(), keeping_units()
    return tuple(read_prices(sheet, ranges, active_params, units) for sheet in sheets)


def keeping_units() -> tuple[MemoryTier, ...]:
    """Every tier of the catalogue that has a price and lies outside a chip."""
    units = (memory_tier(name) for name in names("memory"))
    return tuple(unit for unit in units if unit.tier in _KEEPING[1:] and unit.usd_per_hour is not None)


class _Reader:
    """One sheet under one set of unknowns."""

    def __init__(
        self, sheet: PriceSheet, unknowns: Unknowns, active_params: float | None, units: Sequence[MemoryTier]
    ) -> None:
        self.sheet, self.unknowns, self.active_params, self.units = sheet, unknowns, active_params, units
        self.draws = unknowns.draws(np.random.default_rng(0))
        self.inferences: list[Inference] = []
        self.missing: list[Missing] = []
        self.kept_in: list[KeptIn] = []
        self.price_over_cost = self._price_over_cost()
        drawn, x = self.draws, self.price_over_cost
        redrawn = x.low * (x.high / x.low) ** drawn.share
        self.drawn_x = np.where(drawn.price_over_cost < x.low, redrawn, drawn.price_over_cost)

    def work(self) -> None:
        """All readings in the order in which they are shown."""
        standard = self.sheet.standard
        if standard is None:
            self._miss("everything", "the sheet has no standard tier with a price")
            return
        self._active_params(standard)
        self._ratio(standard)
        self._output_bytes(standard)
        self._context_step(standard)
        self._fast(standard)
        self._cache(standard)

    # ------------------------------------------------------------------------------------------ helpers

    def _add(
        self,
        quantity: str,
        unit: str,
        method: str,
        ends: tuple[float, float],
        drawn: Array | None = None,
        *,
        bound: Bound = "interval",
        claim: str = "",
        note: str = "",
    ) -> None:
        low, high = ends
        if not (low > 0 and np.isfinite(high)):
            self._miss(quantity, f"{method} gives no finite interval")
            return
        likely = ends if drawn is None else tuple(float(v) for v in np.quantile(drawn, (0.1, 0.9)))
        self.inferences.append(
            Inference(
                quantity=quantity,
                unit=unit,
                method=method,
                low=low,
                high=high,
                likely_low=likely[0],
                likely_high=likely[1],
                bound=bound,
                claim=claim,
                note=note,
            )
        )

    def _miss(self, quantity: str, reason: str) -> None:
        self.missing.append(Missing(quantity=quantity, reason=reason))

    @staticmethod
    def _ends(low: Array | float, high: Array | float) -> tuple[float, float]:
        return float(np.min(low)), float(np.max(high))

    @property
    def _rents(self) -> tuple[Array, Array]:
        """Cheapest and dearest rent of each point [USD/s]."""
        rent = self.unknowns.usd_per_chip_s
        return rent * self.unknowns.rent_factor.low, rent * self.unknowns.rent_factor.high

    def _price_over_cost(self) -> Range:
        """X, bounded below by the batch discount: batch input is not sold below its cost at full utilisation."""
        x = self.unknowns.price_over_cost
        standard = self.sheet.standard
        floor = x.low
        for mode in ("batch", "flex"):
            tiers = self.sheet.of_mode(mode)
            if standard is None or standard.input_usd is None or not tiers or not tiers[0].input_usd:
                continue
            least = standard.input_usd / tiers[0].input_usd
            if least >= 1.0:
                self._add(
                    "price_over_cost",
                    "ratio",
                    f"{mode} discount on input",
                    (least, least),
                    bound="at least",
                    claim="C12",
                    note=f"{mode} pays its own cost when it fills hours that nobody else bought",
                )
                floor = max(floor, least)
            else:
                self._miss(f"price over cost from {mode}", f"{mode} input costs more than standard")
        return Range(low=min(floor, x.high), high=x.high)

    # ----------------------------------------------------------------------------------------- readings

    def _active_params(self, standard: PriceTier) -> None:
        if standard.input_usd is None:
            self._miss("active_params", "no usable input price")
            return
        u, x, (low_rent, high_rent) = self.unknowns, self.price_over_cost, self._rents
        form, d = forms.active_params_from_input_price, self.draws
        low = form(standard.input_usd, u.flop_per_s, u.mfu.low, high_rent, x.high)
        high = form(standard.input_usd, u.flop_per_s, u.mfu.high, low_rent, x.low)
        self._add(
            "active_params",
            "elements",
            "input price",
            self._ends(low, high),
            as_array(form(standard.input_usd, d.flop_per_s, d.mfu, d.usd_per_chip_s, self.drawn_x)),
            claim="C104",
            note="prefill is bound by compute",
        )

    def _ratio(self, standard: PriceTier) -> None:
        given, made = standard.input_usd, standard.output_usd
        if given is None or made is None:
            self._miss("decode_mfu", f"no usable {'input' if given is None else 'output'} price")
            return
        ratio = made / given
        if ratio < 1.0:
            self._miss("decode_mfu", f"output costs {ratio:.2g} times input: no memory time to be read from it")
            return
        if ratio == 1.0:
            self._miss("decode_mfu", "output costs as much as input: one price for both hides the ratio")
            return
        self._add(
            "memory_over_compute",
            "ratio",
            "output over input price",
            (ratio, ratio),
            claim="C107",
            note="time of memory over compute at one token a pass, equal margins on both",
        )
        u = self.unknowns
        self._add(
            "decode_mfu",
            "fraction",
            "output over input price",
            (u.mfu.low / ratio, u.mfu.high / ratio),
            self.draws.mfu / ratio,
            claim="C107",
            note=f"1/{ratio:.3g} of prefill's",
        )

    def _output_bytes(self, standard: PriceTier) -> None:
        given, made = standard.input_usd, standard.output_usd
        if made is None:
            self._miss("bytes_per_output_token", "no usable output price")
            return
        u, x, (low_rent, high_rent) = self.unknowns, self.price_over_cost, self._rents
        form, d = forms.bytes_from_output_price, self.draws
        low, high = self._ends(
            form(made, u.hbm_bytes_per_s, u.hbm_share.low, high_rent, x.high),
            form(made, u.hbm_bytes_per_s, u.hbm_share.high, low_rent, x.low),
        )
        drawn = as_array(form(made, d.hbm_bytes_per_s, d.hbm_share, d.usd_per_chip_s, self.drawn_x))
        bound: Bound = "interval" if given is not None and made > given else "at most"
        self._add(
            "bytes_per_output_token",
            "bytes",
            "output price",
            (low, high),
            drawn,
            bound=bound,
            claim="C107",
            note="weights over the batch and KV; an upper bound where decode is bound by compute",
        )
        least = low * u.kv_share.low / u.context_len.high
        most = high * u.kv_share.high / u.context_len.low
        self._add(
            "kv_bytes_per_token",
            "bytes",
            "output price",
            (least, most),
            drawn * d.kv_share / d.context_len,
            bound=bound,
            claim="C97",
            note=f"KV is {u.kv_share.low:.0%} to {u.kv_share.high:.0%} of the bytes at a context of "
            f"{u.context_len.low:,.0f} to {u.context_len.high:,.0f} tokens",
        )

    def _context_step(self, standard: PriceTier) -> None:
        step = self.sheet.step
        if step is None:
            self._miss("crossover_context", "one price for all contexts: no crossover to be seen")
            return
        rises = [
            later / earlier
            for later, earlier in ((step.input_usd, standard.input_usd), (step.output_usd, standard.output_usd))
            if later is not None and earlier is not None
        ]
        if rises and max(rises) <= 1.0:
            self._miss("crossover_context", f"prices above {step.above_context_len:,.0f} tokens are no higher")
            return
        at, u, d = step.above_context_len, self.unknowns, self.draws
        spread = u.step_over_crossover
        near, far = at / spread.high, at / spread.low
        self._add(
            "crossover_context",
            "tokens",
            "context step",
            (near, far),
            at / d.step_over_crossover,
            claim="C98",
            note=f"the step stands at {at:,.0f} tokens",
        )
        x, (low_rent, high_rent) = self.price_over_cost, self._rents
        if standard.input_usd is not None:
            form = forms.kv_bytes_from_step
            low = form(standard.input_usd, far, u.hbm_bytes_per_s, u.hbm_share.low, high_rent, x.high)
            high = form(standard.input_usd, near, u.hbm_bytes_per_s, u.hbm_share.high, low_rent, x.low)
            self._add(
                "kv_bytes_per_token",
                "bytes",
                "context step",
                self._ends(low, high),
                as_array(
                    form(
                        standard.input_usd,
                        at / d.step_over_crossover,
                        d.hbm_bytes_per_s,
                        d.hbm_share,
                        d.usd_per_chip_s,
                        self.drawn_x,
                    )
                ),
                claim="C99",
                note="active parameters cancel against those in the input price",
            )
        else:
            self._miss("kv_bytes_per_token from the context step", "no usable input price, and no active parameters")
        known = self.active_params or LECTURE_ACTIVE_PARAMS
        form_99 = blackboard.kv_bytes_per_token_from_crossover
        low = form_99(known, far, u.flop_per_s * u.mfu.high, u.hbm_bytes_per_s * u.hbm_share.low)
        high = form_99(known, near, u.flop_per_s * u.mfu.low, u.hbm_bytes_per_s * u.hbm_share.high)
        given = "as given" if self.active_params else "as the lecture supposes"
        self._add(
            "kv_bytes_per_token",
            "bytes",
            "context step, active parameters known" if self.active_params else "context step, lecture's parameters",
            self._ends(low, high),
            as_array(form_99(known, at / d.step_over_crossover, d.flop_per_s * d.mfu, d.hbm_bytes_per_s * d.hbm_share)),
            claim="C99",
            note=f"{known / 1e9:,.0f} B active {given}",
        )
        said = known / (LECTURE_RATIO * at)
        self._add(
            "kv_bytes_per_token",
            "bytes",
            "lecture's arithmetic",
            (said, said),
            claim="C100",
            note="its 300 taken as multiplies per byte, which is 600 FLOP per byte: right for FP8 on an H100 alone",
        )

    def _fast(self, standard: PriceTier) -> None:
        tiers = self.sheet.of_mode("fast")
        if not tiers:
            self._miss("batches", "no fast mode")
            return
        fast = tiers[0]
        if fast.speed_ratio is None:
            self._miss("batches", "the fast mode states no speed")
            return
        if fast.output_usd is None or standard.output_usd is None:
            self._miss("batches", "no usable output price of both modes")
            return
        price, speed = fast.output_usd / standard.output_usd, fast.speed_ratio
        if price <= 1.0 or speed <= 1.0:
            self._miss(
                "batches", f"a fast mode of {speed:g} times the speed at {price:g} times the price trades nothing"
            )
            return
        u = self.unknowns
        k = np.linspace(0.0, u.kv_over_compute.high, 46)[:, None, None]
        sparsity = np.array([u.total_over_active.low, u.total_over_active.high])[None, :, None]
        found = blackboard.mode_batches(speed, price, u.ridge[None, None, :] * sparsity, k)
        d = self.draws
        likely = blackboard.mode_batches(speed, price, d.ridge * d.total_over_active, d.kv_over_compute)
        for name, batch, drawn in (
            ("normal_batch", found.normal_batch, likely.normal_batch),
            ("fast_batch", found.fast_batch, likely.fast_batch),
        ):
            self._add(
                name,
                "sequences",
                f"{speed:g} times the speed for {price:g} times the price",
                self._ends(batch, batch),
                as_array(drawn),
                claim="C14",
                note="batches alone; speculative decoding would change the step itself",
            )

    def _cache(self, standard: PriceTier) -> None:
        hit, given = standard.cached_input_usd, standard.input_usd
        if hit is None:
            self._miss("cache hit", "no usable price of cached input")
        else:
            self._hit(hit, given)
        timed = [write for write in standard.cache_writes if write.lifetime_s is not None]
        slope = standard.storage_usd_per_s
        method = "storage price"
        if slope is None and len(timed) >= 2:
            first, last = timed[0], timed[-1]
            slope = forms.storage_usd_per_token_s(first.usd, first.lifetime_s or 0.0, last.usd, last.lifetime_s or 0.0)
            method = f"cache writes of {first.name} and {last.name}"
            if given is not None:
                once = first.usd - given - slope * (first.lifetime_s or 0.0)
                if once > 0:
                    self._add("cache_write_usd_per_mtok", "USD", method, (once * 1e6, once * 1e6), claim="C119")
        if slope is None:
            reason = "a single lifetime" if timed else "no storage price and no cache writes with a lifetime"
            self._miss("memory tier of the cache", f"{reason}: no price of time")
        elif slope <= 0:
            self._miss("memory tier of the cache", "a longer lifetime costs no more")
        else:
            self._kept(slope, method)
        for write in timed:
            self._rule(write.lifetime_s or 0.0)

    def _hit(self, hit: float, given: float | None) -> None:
        if given is not None:
            self._add("hit_over_miss", "ratio", "cached over uncached input", (hit / given, hit / given), claim="C109")
        x, (low_rent, high_rent) = self.price_over_cost, self._rents
        path = _PATH_BYTES_PER_S
        low = hit * path.low / (x.high * high_rent)
        high = hit * path.high / (x.low * low_rent)
        self._add(
            "kv_bytes_per_token",
            "bytes",
            "cache hit",
            self._ends(low, high),
            hit * self.draws.within(path) / (self.drawn_x * self.draws.usd_per_chip_s),
            bound="at most",
            claim="C110",
            note="if the chip waits for the load over its host link, 63 to 450 GB/s, and the hit pays for that",
        )

    def _kept(self, slope: float, method: str) -> None:
        """KV bytes a token that the price of time pays for in each tier."""
        x = self.price_over_cost
        self._add("storage_usd_per_mtok_hour", "USD", method, (slope * 3.6e9, slope * 3.6e9), claim="C116")
        for kind in _KEEPING:
            rates = self._usd_per_byte_s(kind)
            if rates is None:
                continue
            own = self.draws.usd_per_chip_s / self.draws.hbm_bytes
            rate = own if kind == "hbm" else self.draws.within(rates)
            self._add(
                "kv_bytes_per_token",
                "bytes",
                f"{method}, if kept in {kind}",
                (slope / (x.high * rates.high), slope / (x.low * rates.low)),
                slope / (self.drawn_x * rate),
                claim="C116",
                note="what the price of time pays for",
            )

    def _usd_per_byte_s(self, kind: str) -> Range | None:
        """Cost of a byte for a second in a tier: the chip's rent for its memory, the unit's cost for the others."""
        if kind == "hbm":
            held = np.array([offer.chip.hbm_bytes for offer, _ in self.unknowns.points])
            low, high = self._rents
            return Range(low=float((low / held).min()), high=float((high / held).max()))
        rates = [
            unit.usd_per_hour / 3600.0 / unit.capacity_bytes
            for unit in self.units
            if unit.tier == kind and unit.usd_per_hour is not None
        ]
        return Range(low=min(rates), high=max(rates)) if rates else None

    def _rule(self, lifetime_s: float) -> None:
        drains = {f"hbm of {o.chip.name}": o.chip.drain_s for o, _ in self.unknowns.points}
        drains |= {unit.name: unit.drain_s for unit in self.units}
        nearest = min(drains, key=lambda name: abs(np.log(drains[name] / lifetime_s)))
        self.kept_in.append(KeptIn(lifetime_s=lifetime_s, rule_tier=nearest, rule_drain_s=drains[nearest]))

"""Whether a host of a known model earns money: what its requests pay against what their tokens cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from rackline.arch import model
from rackline.passes.features import as_array
from rackline.pricing import forms
from rackline.pricing.sheet import PriceSheet
from rackline.pricing.unknowns import Draws

Earns = Literal["yes", "likely yes", "likely no", "no", "unknown"]

_MEMORY = 0.9  # of a chip's memory that holds weights and KV cache, as engines set by default
_WEIGHTS = 0.5  # of that memory at most, or more chips share the weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether the standard prices of short prompts cover the cost of the model.

    Args:
        earns: "yes" and "no" hold in nine of ten combinations of the unknowns, "likely ..." in more than half;
            "unknown" where the model or a price is.
        text: the same as a sentence, with how.
        earning_share: combinations of the unknowns in which the host earns money [fraction].
        likely_margin_low, likely_margin_high: sales over rent, idle hours included, less 1, in eight of ten
            combinations [ratio].
        input_price_over_cost, output_price_over_cost: of one token at full use, the median [ratio].
    """

    earns: Earns
    text: str
    earning_share: float | None = None
    likely_margin_low: float | None = None
    likely_margin_high: float | None = None
    input_price_over_cost: float | None = None
    output_price_over_cost: float | None = None


def verdict_of(sheet: PriceSheet, draws: Draws) -> Verdict:
    """Compare standard prices with the cost of the sheet's model under every drawn combination of the unknowns.

    On the ideal roofline, with full batches: an output token of a context L takes its share kv(L) of the chip's KV
    cache for a step, in which the whole memory is read once, and at least as long as a prompt token. The margin is
    computed, so the margins that the readings suppose do not count here.

        c_in = q * 2 * N / (mfu * flop_per_s),  c_out = max(c_in, q * memory / (share * hbm_bytes_per_s) / batch)

    Raises:
        UnknownNameError: a model that the catalogue does not have.

    Assumes: `output_usd_per_token`; weights fill at most half of the memory; attention's products are left out.
    """
    standard = sheet.standard
    if sheet.model is None:
        return Verdict(earns="unknown", text="unknown: the model is not public, and readings suppose that it does")
    if standard is None or standard.input_usd is None or standard.output_usd is None:
        return Verdict(earns="unknown", text="unknown: no usable price of input and output")
    d, known = draws, model(sheet.model)
    given, made, r = standard.input_usd, standard.output_usd, d.input_over_output
    c_in = as_array(forms.input_usd_per_token(known.active_params, d.flop_per_s, d.mfu, d.usd_per_chip_s, 1.0))
    weight_bytes = known.total_params * d.ridge * 2.0 * d.hbm_bytes_per_s / d.flop_per_s
    memory = _MEMORY * d.hbm_bytes
    chips = np.maximum(1.0, np.ceil(weight_bytes / (_WEIGHTS * memory)))
    kv = as_array(known.kv_bytes(d.context_len, 1.0)) * 2.0**d.share  # one to two bytes per element
    batch = (memory - weight_bytes / chips) / kv
    read = forms.output_usd_per_token(
        known.active_params, memory / batch, d.flop_per_s, d.mfu, d.hbm_bytes_per_s, d.hbm_share, d.usd_per_chip_s, 1.0
    )
    c_out = as_array(read)
    sales_over_rent = (made + r * given) / (c_out + r * c_in) * d.utilisation
    low, high = (float(end) - 1.0 for end in np.quantile(sales_over_rent, (0.1, 0.9)))
    share = float(np.mean(sales_over_rent > 1.0))
    earns: Earns = "yes" if share >= 0.9 else "likely yes" if share > 0.5 else "likely no" if share > 0.1 else "no"
    over = float(np.median(given / c_in)), float(np.median(made / c_out))
    return Verdict(
        earns=earns,
        text=f"{earns}: in {100 * share:.0f} % of the assumed combinations; margin likely {100 * low:+,.0f} % "
        f"to {100 * high:+,.0f} %, idle hours included; sells input at {over[0]:.2g} times its cost at full use, "
        f"output at {over[1]:.2g} times",
        earning_share=share,
        likely_margin_low=low,
        likely_margin_high=high,
        input_price_over_cost=over[0],
        output_price_over_cost=over[1],
    )

"""Options of a fleet → the fleet of a plan. Everything heavy is imported where it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rackline.errors import InputError
from rackline.units import parse_count, parse_fraction

if TYPE_CHECKING:
    from rackline.serving.fleet import Traffic


def read_traffic(
    tokens_per_s: str | None, peak: str | None, offline: str | None, provider: str | None
) -> Traffic | None:
    """Read --traffic and what belongs to it; None without it.

    Raises:
        InputError: an option that belongs to --traffic without it.
    """
    if tokens_per_s is None:
        for name, value in (("--peak-over-mean", peak), ("--offline", offline), ("--provider", provider)):
            if value is not None:
                raise InputError(what=name, given=value, allowed="together with --traffic TOKENS_PER_SECOND")
        return None
    from rackline.serving.fleet import Traffic

    return Traffic(
        tokens_per_s=parse_count(tokens_per_s, name="--traffic", maximum=1e15),
        peak_over_mean=parse_count(peak, name="--peak-over-mean", minimum=1.0, maximum=1e3) if peak else 1.0,
        offline_share=parse_fraction(offline, name="--offline") if offline else 0.0,
        provider_tokens_per_s=parse_count(provider, name="--provider", maximum=1e15) if provider else None,
    )

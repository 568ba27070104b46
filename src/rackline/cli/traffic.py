"""Options of `rackline simulate` that say what arrives and what must hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rackline.cli.options import tokens, whole
from rackline.errors import InputError, nearest_names
from rackline.units import parse_bytes, parse_count, parse_fraction, parse_rate, parse_seconds

if TYPE_CHECKING:
    from rackline.simulation import Requests, Slo, TierSpec
    from rackline.simulation.traces import TimeUnit
    from rackline.simulation.workloads import Spread

_LIMITS = ("ttft", "tpot", "e2e")
_SPREADS: tuple[Spread, ...] = ("fixed", "uniform", "exponential", "lognormal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What was given about the requests; texts as they were typed."""

    trace: str | None
    rate: str | None
    users: str | None
    count: str | None
    input_len: str | None
    output_len: str | None
    lengths: str
    burstiness: str
    swing: str
    turns: str | None
    think: str
    system: str
    fast_share: str
    speed: str
    seed: str
    skip_bad: bool
    time_unit: str | None

    def read(self) -> Requests:
        """The requests.

        Raises:
            InputError: options that contradict each other or miss each other.
        """
        from rackline.simulation import read_trace
        from rackline.simulation.traces import TIME_UNITS

        speed = parse_count(self.speed, name="--speed", maximum=1e6)
        if self.trace is not None:
            for name, value in (("--rate", self.rate), ("--users", self.users), ("--input", self.input_len),
                                ("--output", self.output_len), ("--turns", self.turns)):  # fmt: skip
                if value is not None:
                    raise InputError(what=name, given=value, allowed="only without --trace (--speed scales its rate)")
            unit: TimeUnit | None = next((known for known in TIME_UNITS if known == self.time_unit), None)
            if self.time_unit is not None and unit is None:
                raise InputError(what="--time-unit", given=self.time_unit, allowed=", ".join(TIME_UNITS))
            found = read_trace(self.trace, skip_bad=self.skip_bad, time_unit=unit)
            if self.count is not None:
                found = found.first(whole(self.count, "--requests"))
            return found.scaled(speed) if speed != 1.0 else found
        found = self._made()
        return found.scaled(speed) if speed != 1.0 else found

    def _made(self) -> Requests:
        import numpy as np

        from rackline.simulation import Lengths, closed_loop_of, conversations, open_arrivals

        if (self.rate is None) == (self.users is None):
            given = "neither" if self.rate is None else "both"
            raise InputError(what="traffic", given=given, allowed="one of --trace, --rate and --users")
        for name, value in (("--input", self.input_len), ("--output", self.output_len)):
            if value is None:
                raise InputError(what=name, given="nothing", allowed="mean tokens of a request, such as 2k")
        spread: Spread | None = next((known for known in _SPREADS if known == self.lengths), None)
        if spread is None:
            near = nearest_names(self.lengths, _SPREADS, 1)
            raise InputError(
                what="--lengths", given=self.lengths, allowed=", ".join(_SPREADS), nearest=near[0] if near else None
            )
        lengths = Lengths(
            input_len=tokens(self.input_len or "", "--input"),
            output_len=tokens(self.output_len or "", "--output"),
            spread=spread,
        )
        rng = np.random.default_rng(whole(self.seed, "--seed", minimum=0))
        count = whole(self.count or "1000", "--requests", maximum=1e8)
        think = parse_seconds(self.think, name="--think", zero_allowed=True)
        if self.users is not None:
            return closed_loop_of(rng, count, whole(self.users, "--users"), lengths, think_s=think)
        text = self.rate or ""
        rate = math.inf if text == "inf" else parse_count(text.removesuffix("/s"), name="--rate", maximum=1e9)
        if self.turns is not None:
            return conversations(
                rng,
                count,
                rate,
                lengths,
                turns=parse_count(self.turns, name="--turns", minimum=1.0, maximum=1e4),
                think_s=think,
                system_tokens=int(parse_count(self.system, name="--system", zero_allowed=True, maximum=1e7)),
            )
        return open_arrivals(
            rng,
            count,
            rate,
            lengths,
            burstiness=parse_count(self.burstiness, name="--burstiness", zero_allowed=True, maximum=100.0),
            swing=parse_fraction(self.swing, name="--swing"),
            fast_share=parse_fraction(self.fast_share, name="--fast-share"),
        )


def read_limits(text: str, option: str) -> Slo:
    """Read "ttft=2s,tpot=50ms@p99".

    Raises:
        InputError: another form.
    """
    from rackline.simulation import Slo

    limits, at, place = text.partition("@")
    found: dict[str, float] = {}
    for part in limits.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name not in _LIMITS or not equals:
            near = nearest_names(name, _LIMITS, 1)
            raise InputError(
                what=option,
                given=text,
                allowed="ttft, tpot or e2e with a time, and a percentile, such as ttft=2s,tpot=50ms@p99",
                nearest=f"{near[0]}=2s" if near else None,
            )
        found[f"{name}_s"] = parse_seconds(value, name=f"{option} {name}")
    percentile = 99.0
    if at:
        percentile = parse_count(place.strip().removeprefix("p"), name=f"{option} percentile", maximum=100.0)
    return Slo(**found, percentile=percentile)


def read_tiers(texts: Sequence[str] | None, bytes_per_token: float) -> tuple[TierSpec, ...]:
    """Read "host=2TB@50GB/s[@10us]" for each tier behind HBM, per rank.

    Raises:
        InputError: another form.
    """
    from rackline.simulation import TierSpec

    found: list[TierSpec] = []
    for text in texts or ():
        name, equals, rest = text.partition("=")
        parts = rest.split("@")
        if not equals or len(parts) not in (2, 3):
            raise InputError(what="--tier", given=text, allowed="NAME=BYTES@RATE[@LATENCY], such as host=500GB@50GB/s")
        found.append(
            TierSpec(
                name=name.strip(),
                tokens=parse_bytes(parts[0], name=f"--tier {name}") / bytes_per_token,
                tokens_per_s=parse_rate(parts[1], name=f"--tier {name}") / bytes_per_token,
                latency_s=parse_seconds(parts[2], name=f"--tier {name}") if len(parts) == 3 else 0.0,
            )
        )
    return tuple(found)

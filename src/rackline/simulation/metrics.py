"""Results of a run: latencies by request, percentiles, goodput, occupancy over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NotRequired, TypedDict

import numpy as np

from rackline.passes.features import Array
from rackline.simulation.classes import LATENCIES, Limits, Slo
from rackline.simulation.entrance import StageData
from rackline.simulation.outcomes import ClassData, Latencies, Outcome, at_percentile
from rackline.simulation.reuse import unlimited_hit_share
from rackline.simulation.statistics import (
    Interval,
    KnownSpread,
    PassRecord,
    Spread,
    Window,
    known_percentiles,
    spread_of_gaps,
    statistic_interval,
    statistic_of,
    warm_up,
)
from rackline.units import USUAL_PERCENTILE


class Measured(TypedDict):
    """Which requests the latencies are of.

    Args:
        requests: that were measured [requests].
        warm_up_requests: left out at the start, before the steady state [requests].
        last_requests: left out at the end, whose service other requests no longer disturbed [requests].
        steady: whether a steady state was found; None where none is looked for, as in a trace: every request counts.
        half_width: half of the widest interval of a percentile that was asked for, over the percentile; infinite where
            one is unbounded [1].
    """

    requests: int
    warm_up_requests: int
    last_requests: int
    steady: bool | None
    half_width: float


class Overload(TypedDict):
    """Rates at which requests arrived and started [requests/s], and how many were waiting when the last one arrived."""

    arrived_per_s: float
    started_per_s: float
    waiting: int


class Lockstep(TypedDict):
    """Share of time in passes with prompts, and the share of ranks that have prompt tokens in them."""

    prompt_time_share: float
    prompt_rank_share: float


class Costs(TypedDict):
    """Cost of a million tokens [USD]."""

    usd_per_mtok_input: float
    usd_per_mtok_output: float
    usd_per_mtok_output_all_in: float


class TierData(Latencies):
    """Requests of one priority tier; a lower number is more urgent."""

    priority: int
    requests: int
    finished: int
    queue_s: KnownSpread
    preemptions: int
    slo_attainment: NotRequired[float]


class RunData(Latencies):
    """A run as plain data in SI units; the NotRequired keys are present where limits or a price were given."""

    requests: int
    finished: int
    unfinished: int
    refused: int
    skipped: int
    interrupted: bool
    measured: Measured
    inter_token_s: Spread
    queue_s: KnownSpread
    by_priority: list[TierData]
    by_class: list[ClassData]
    frontend: list[StageData]
    frontend_binds: bool
    makespan_s: float
    requests_per_s: float
    output_tokens_per_s: float
    input_tokens_per_s: float
    busy_share: float
    decoding_sequences: float
    kv_share: float
    overload: Overload | None
    lockstep: Lockstep | None
    preemptions: int
    steps: int
    cache_hit_share: float
    cache_hit_share_by_tier: list[float]
    cache_hit_share_unlimited: float | None
    adapter_loads: NotRequired[int]
    adapter_hit_share: NotRequired[float]
    slo: NotRequired[Limits]
    meets_slo: NotRequired[bool]
    slo_attainment: NotRequired[float]
    goodput_requests_per_s: NotRequired[float]
    usd_per_mtok_input: NotRequired[float]
    usd_per_mtok_output: NotRequired[float]
    usd_per_mtok_output_all_in: NotRequired[float]


_LEAST_TO_JUDGE = 40  # requests needed to tell a growing queue from chance


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Result(Outcome):
    """A finished or interrupted run.

    Args:
        engine_s: handover to the scheduler by request [s], (n,).
        cached_tokens: prompt tokens found in a cache by request [tokens], (n,).
        gaps: histogram of inter-token times: bin of the logarithm → count.
        steps, passes: steps of all replicas, and the number of pieces in which they were evaluated [count].
        busy_s, sequence_s, used_block_s: time in passes, sequences × time, blocks × time, over all replicas [s].
        prompt_pass_s, prompt_rank_s: time in passes with prompts, and the same times the share of a replica's ranks
            that had prompt tokens; 0 where each replica has one rank [s].
        num_blocks, ranks: KV blocks and ranks of all replicas [count].
        tier_tokens: prompt tokens found in HBM and in each tier behind it [tokens].
        samples: (replica, time [s], decoding, waiting, blocks) over time, (m, 5).
        passes_run: records of passes by replica, if they were kept.
        blocks_left: blocks in use at the end, 0 when every request has finished [count].
        adapter_loads: transfers of low-rank adapters from the host [count].
        prefill_busy_s, prefill_passes: of a pool that computes prompts only: time in passes, and their number; of all
            its replicas [s], [count].
    """

    columns: ClassVar = (*Outcome.columns, "engine_s", "cached_tokens")

    engine_s: Array
    cached_tokens: Array
    gaps: dict[int, int]
    steps: int
    passes: int
    busy_s: float
    sequence_s: float
    used_block_s: float
    prompt_pass_s: float
    prompt_rank_s: float
    num_blocks: int
    ranks: int
    replicas: int
    tier_tokens: tuple[int, ...]
    samples: Array
    passes_run: tuple[Sequence[PassRecord], ...]
    blocks_left: int
    adapter_loads: int
    prefill_busy_s: float
    prefill_passes: int

    @property
    def queue_s(self) -> Array:
        """Time in the scheduler's waiting queue before the first start [s], (n,)."""
        return self.admitted_s - self.engine_s

    @property
    def makespan_s(self) -> float:
        """First arrival to the end of the last request [s]."""
        done = self.finish_s[self.finished]
        return float(done.max() - np.nanmin(self.arrival_s)) if len(done) else 0.0

    def inter_token_s(self) -> Spread:
        """Mean and percentiles of the time between tokens [s]."""
        return spread_of_gaps(self.gaps)

    def window(self) -> Window:
        """The requests that are measured: all of a trace, those in steady state of a stationary process; none of an
        offline class.

        Left out are the warm-up and the requests that were served while no others came: those that arrived after the
            oldest one that was unfinished when the last one arrived, or, in a closed loop, when the last one was taken.
        """
        requests = self.requests
        places = np.argsort(self.arrival_s, kind="stable")
        if requests.offline is not None:
            places = places[~requests.offline[places]]
        if requests.process is None or self.interrupted:
            return Window(places=places)
        free = np.ones(len(requests), dtype=bool) if requests.after is None else requests.after < 0
        ends_s = float(self.arrival_s[free].max())
        if requests.process == "closed":  # when a user took the last request: arrivals of those that follow are pauses
            ends_s = float(self.arrival_s[-1] - requests.arrival_s[-1])
        left_s = np.where(self.refused, self.arrival_s, self.finish_s)[places]
        stop = int(np.argmax(np.append(~(left_s <= ends_s), True)))
        if 2 * stop < len(places):  # nothing would be left: the run is about as long as a request
            return Window(places=places, steady=False)
        warm, steady = 0, True
        for values in (self.ttft_s[places[:stop]], self.tpot_s[places[:stop]]):
            known = np.isfinite(values)
            if known.any():
                start, settled = warm_up(np.where(known, values, values[known].mean()))
                warm, steady = max(warm, start), steady and settled
        return Window(places=places[warm:stop], warm_up=warm, last=len(places) - stop, steady=steady)

    def half_width(self, slo: Slo | None = None) -> float:
        """Half of the widest 95 % interval of an asked percentile, over that percentile; infinite for an unbounded one
        and without a steady state [1].

        Args:
            slo: whose latencies and percentile are asked; without limits, the 99th of all.
        """
        window, widest = self.window(), 0.0
        if window.steady is False:
            return math.inf
        for name in (slo is not None and slo.limits()) or LATENCIES:
            values = getattr(self, name)[window.places]
            known = values[np.isfinite(values)]
            if len(known) and known.max() > 0:
                percentile = USUAL_PERCENTILE if slo is None else slo.percentile(name)
                ends = statistic_interval(known, percentile)
                width = 0.5 * (ends["high"] - ends["low"]) / statistic_of(known, percentile)
                widest = max(widest, math.inf if math.isnan(width) else width)
        return widest

    def holds(self, slo: Slo) -> bool:
        """Whether each limit is met at its percentile by the measured requests (an unfinished one counts as late), and
        the queue of a stationary process does not keep growing."""
        if self.interrupted or (self.requests.process is not None and self.overload() is not None):
            return False
        return all(self.at(name, slo.percentile(name))[0] <= limit for name, limit in slo.limits().items())

    def at(self, name: str, percentile: float | None) -> tuple[float, Interval]:
        """Return a statistic of the measured requests and its 95 % confidence interval; unfinished ones are late [s].

        Args:
            name: of the latency, such as ttft_s.
            percentile: above 0, up to 100; None for the mean.
        """
        values = self.counted(name, self.window().places)
        return at_percentile(values, percentile), statistic_interval(values, percentile)

    def overload(self) -> Overload | None:
        """Rates at which requests arrived and started until the last arrival [requests/s], and how many were waiting
        then.

        None where the queue does not keep growing: fewer than a tenth of the requests are waiting then, or the last
            quarter of them waited at most 1.5 times as long as the second quarter.
        """
        served = np.isfinite(self.engine_s)
        count, last_s = int(served.sum()), float(np.max(self.engine_s[served], initial=0.0))
        if self.requests.after is not None or self.interrupted or count < _LEAST_TO_JUDGE or not last_s > 0:
            return None
        waiting = int(np.sum(self.admitted_s > last_s))
        quarters = [float(part.mean()) for part in np.array_split(self.queue_s[served], 4)]
        if waiting < 0.1 * count or quarters[3] < 1.5 * quarters[1]:
            return None
        return {"arrived_per_s": count / last_s, "started_per_s": (count - waiting) / last_s, "waiting": waiting}

    def lockstep(self) -> Lockstep | None:
        """Share of time in passes with prompts, and the share of ranks with prompts in them; None for one rank."""
        if self.ranks == self.replicas or not self.prompt_pass_s:
            return None
        return {
            "prompt_time_share": _per(self.prompt_pass_s, self.busy_s),
            "prompt_rank_share": _per(self.prompt_rank_s, self.prompt_pass_s),
        }

    def by_priority(self, slo: Slo | None = None) -> list[TierData]:
        """Latencies of each priority tier, the most urgent first; empty where all requests are equal.

        Args:
            slo: latency limits to check.
        """
        tiers = self.requests.priority
        if tiers is None:
            return []
        places = self.window().places
        found: list[TierData] = []
        for tier in np.unique(tiers):
            mine = tiers == tier
            here = places[mine[places]]
            data: TierData = {
                "priority": int(tier),
                "requests": int(mine.sum()),
                "finished": int(self.finished[mine].sum()),
                **self.latencies(here),
                "queue_s": known_percentiles(self.queue_s[here]),
                "preemptions": int(self.preempted[mine].sum()),
            }
            if slo is not None and slo.limits():
                data["slo_attainment"] = float(self.good(slo)[here].mean())
            found.append(data)
        return found

    def by_class(self) -> list[ClassData]:
        """What became of each class of requests; empty where there are none."""
        return self.classes_among(self.window().places, self.makespan_s)

    @property
    def frontend_binds(self) -> bool:
        """Whether the frontend keeps requests back.

        It passes fewer than come, or they wait for it during more than half of the time to the first token.
        """
        if any(one["utilization"] >= 1.0 for one in self.frontend):
            return True
        waits_s = sum(one["wait_s"]["mean"] for one in self.frontend)
        known = self.ttft_s[np.isfinite(self.ttft_s)]
        return bool(len(known)) and waits_s > 0.5 * float(known.mean())

    def tokens(self) -> tuple[float, float]:
        """Prompt tokens and output tokens of finished requests [tokens]."""
        done, requests = self.finished, self.requests
        return float(requests.input_len[done].sum()), float(requests.output_len[done].sum())

    def usd_per_mtok(self, usd_per_s: float, prompt_cost_share: float) -> Costs:
        """Cost of a million input tokens, of a million output tokens, and of those with their prompts [USD].

        Args:
            usd_per_s: rent of all servers, paid for the makespan [USD/s].
            prompt_cost_share: share of it that goes to prompts [1].
        """
        given, made = self.tokens()
        usd = usd_per_s * self.makespan_s * 1e6

        def cost(share: float, tokens: float) -> float:
            return usd * share / tokens if tokens else math.nan

        return {
            "usd_per_mtok_input": cost(prompt_cost_share, given),
            "usd_per_mtok_output": cost(1.0 - prompt_cost_share, made),
            "usd_per_mtok_output_all_in": cost(1.0, made),
        }

    def summary(self, slo: Slo | None = None, costs: Costs | None = None) -> RunData:
        """Percentiles, rates and shares of the run, in SI units.

        Args:
            slo: latency limits to check.
            costs: costs of the tokens from `usd_per_mtok`.
        """
        done, span, window = self.finished, self.makespan_s, self.window()
        (given, made), places = self.tokens(), window.places
        prompt_tokens = float(self.requests.input_len[np.isfinite(self.first_s)].sum())
        data: RunData = {
            "requests": len(self.requests),
            "finished": int(done.sum()),
            "unfinished": int((~done & ~self.refused).sum()),
            "refused": int(self.refused.sum()),
            "skipped": self.skipped + self.requests.skipped,
            "interrupted": self.interrupted,
            "measured": {
                "requests": len(places),
                "warm_up_requests": window.warm_up,
                "last_requests": window.last,
                "steady": window.steady,
                "half_width": self.half_width(slo),
            },
            **self.latencies(places),
            "inter_token_s": self.inter_token_s(),
            "queue_s": known_percentiles(self.queue_s[places]),
            "by_priority": [] if self.requests.kinds else self.by_priority(slo),
            "by_class": self.by_class(),
            "frontend": list(self.frontend),
            "frontend_binds": self.frontend_binds,
            "makespan_s": span,
            "requests_per_s": _per(float(done.sum()), span),
            "output_tokens_per_s": _per(made, span),
            "input_tokens_per_s": _per(given, span),
            "busy_share": _per(self.busy_s, span * self.replicas),
            "decoding_sequences": _per(self.sequence_s, span),
            "kv_share": _per(self.used_block_s, span * self.num_blocks),
            "overload": self.overload() if self.requests.offline is None else None,
            "lockstep": self.lockstep(),
            "preemptions": int(self.preempted.sum()),
            "steps": self.steps,
            "cache_hit_share": _per(float(self.cached_tokens.sum()), prompt_tokens),
            "cache_hit_share_by_tier": [_per(float(tokens), prompt_tokens) for tokens in self.tier_tokens],
            "cache_hit_share_unlimited": unlimited_hit_share(self.requests),
        }
        if self.requests.adapters is not None:
            started = float(np.isfinite(self.admitted_s).sum() + self.preempted.sum())
            data = {
                **data,
                "adapter_loads": self.adapter_loads,
                "adapter_hit_share": 1.0 - _per(float(self.adapter_loads), started),
            }
        if slo is not None and slo.limits():
            share = float(self.good(slo)[places].mean())
            data = {
                **data,
                "slo": slo.data,
                "meets_slo": self.holds(slo),
                "slo_attainment": share,
                "goodput_requests_per_s": share * _per(float(len(self.requests)), span),
            }
        return data if costs is None else {**data, **costs}


def _per(amount: float, base: float) -> float:
    return amount / base if base > 0 else 0.0

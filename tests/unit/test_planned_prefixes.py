"""Prompts that repeat in a plan: hit rates that follow from its own rate and memory, tiers, evictions, refusals."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import rackline as rl
from rackline.api.answer import Watch
from rackline.api.plan_parts import PlanQuestion, plan_inputs
from rackline.api.traffic import tiers_of
from rackline.errors import InputError, UnknownNameError
from rackline.hardware import memory_tier
from rackline.report.prefix_report import kept_report
from rackline.search.kept_prefixes import KeptIn, KeptPrefixes, agreeing
from rackline.system import Constraints
from rackline.units import format_seconds

TRACE = Path("../shared/traces/mooncake_conversation_trace.jsonl")
ONE: dict[str, Any] = {"model": "llama-3.1-8b", "on": "dgx-h100", "chips": 1, "layout": "tp=1", "tpot": "20ms"}
TALKS: dict[str, Any] = ONE | {
    "input": 300, "output": 300, "turns": 5, "think_time": "30s", "system_prompt": 1000, "mode": "chunked=2048",
    "session_lengths": "fixed",
}  # fmt: skip
HOST = "host=30GB@50GB/s"


def found(**options: Any) -> KeptPrefixes:
    """Prefixes of a plan by estimates."""
    asked = plan_inputs(PlanQuestion(**options), Watch())
    assert asked.keeping is not None

    def by_estimates(hit: float) -> Any:
        return asked.with_hits(hit).plan(served=False)

    _, kept = agreeing(asked.keeping, by_estimates, by_estimates)
    assert kept is not None
    return kept


@pytest.mark.slow
def test_the_hit_rate_follows_from_the_plan_and_its_sessions_find_it() -> None:
    answer = rl.plan(**TALKS)
    kept = answer.result.prefixes
    assert kept is not None
    assert answer.result.plan.demand.workload.cache_hit == kept.assumed_hit_share
    assert kept.hit_share == pytest.approx(kept.assumed_hit_share, abs=0.005)
    assert 0.2 < kept.hit_share < kept.unlimited_share - 0.05
    assert kept.simulated is not None
    assert kept.simulated.hit_share == pytest.approx(kept.hit_share, abs=0.03)
    assert answer.to_dict()["prefixes"]["tiers"][0]["hit_share"] == kept.tiers[0].hit_share
    assert kept.simulated.requests > 2000


@pytest.mark.slow
def test_memory_behind_and_lifetimes() -> None:
    alone, behind, short = found(**TALKS), found(**TALKS, tier=[HOST]), found(**TALKS, cache_ttl="5s", tier=[HOST])
    assert behind.hit_share > alone.hit_share + 0.05
    host = behind.tiers[1]
    assert host.hit_share == pytest.approx(behind.hit_share - behind.tiers[0].hit_share)
    assert host.held_bytes <= host.capacity_bytes == pytest.approx(30e9, rel=1e-3)
    read = host.hit_share * behind.input_len * behind.requests_per_s * behind.bytes_per_token
    assert host.read_bytes_per_s == pytest.approx(read)
    assert host.link_share == pytest.approx(read / 50e9)
    assert short.tiers[0].kept_s == short.tiers[0].ttl_s == 5.0
    assert short.hit_share < behind.hit_share
    assert found(**TALKS, cache_ttl="5s", tier=[f"{HOST},ttl=1h"]).hit_share > short.hit_share + 0.1


def test_how_long_a_memory_keeps_a_prefix_is_written_as_a_time() -> None:
    host = KeptIn(
        name="host", capacity_bytes=1e10, ttl_s=None, kept_s=90.0, hit_share=0.4, held_bytes=1e9,
        read_bytes_per_s=1e9, link_share=0.1, load_s=0.01,
    )  # fmt: skip
    kept = KeptPrefixes(
        name="talks", assumed_hit_share=0.4, hit_share=0.4, unlimited_share=0.6, requests_per_s=1.0, caches=1,
        input_len=1000.0, bytes_per_token=1e5, tiers=(host,), eviction="lru", is_estimated=True, simulated=None,
        not_simulated="by estimates",
    )  # fmt: skip

    def shown(one: KeptPrefixes) -> str:
        console = Console(file=io.StringIO(), width=120)
        console.print(kept_report(one, Constraints(), full=True))
        return console.file.getvalue()  # type: ignore[attr-defined]

    assert format_seconds(90.0) in shown(kept)
    assert "forever" in shown(replace(kept, tiers=(replace(host, kept_s=None),)))


@pytest.mark.slow
def test_other_evictions_are_looked_up() -> None:
    short = TALKS | {"turns": 3, "think_time": "10s"}
    of = {name: found(**short, eviction=name) for name in ("lru", "cost-aware")}
    assert of["lru"].is_estimated
    assert not of["cost-aware"].is_estimated
    assert of["cost-aware"].tiers[0].kept_s is None
    assert of["cost-aware"].hit_share != of["lru"].hit_share
    assert abs(of["cost-aware"].apart) <= 0.005


@pytest.mark.skipif(not TRACE.is_file(), reason="needs ../shared/traces")
@pytest.mark.slow
def test_a_recorded_trace_in_a_plan() -> None:
    trace = ONE | {"trace": str(TRACE), "tpot": "40ms", "ttft": None, "mode": "chunked=4096"}
    short = found(**trace, cache_ttl="5min", tier=["flash=100TB@50GB/s"])
    assert short.hit_share == pytest.approx(0.293, abs=0.002)  # what five minutes find without a limit of memory
    assert not short.is_estimated
    assert sum(tier.hit_share for tier in short.tiers) == pytest.approx(short.hit_share, abs=1e-6)
    assert short.tiers[1].hit_share > 0.01


SINGLE = ONE | {"input": 300, "output": 300}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (SINGLE | {"cache_ttl": "5min"}, "only with `turns` or `trace`"),
        (SINGLE | {"eviction": "cost-aware"}, "only with `turns` or `trace`"),
        (SINGLE | {"tool_calls": 2, "tool_output": 100}, "only with `turns`"),
        (SINGLE | {"think_time": "3s"}, "together with `users` or `turns`"),
        (TALKS | {"cache_hit": "50%"}, "only without `turns`"),
        (TALKS | {"tool_calls": 2}, "tool_output"),
        (TALKS | {"tier": ["host=1GB"]}, "NAME=BYTES@RATE"),
        (TALKS | {"tier": [f"{HOST},ttl=5s"], "cache_ttl": "1min"}, "at least 60 s"),
        (TALKS | {"prefill_on": "dgx-h100"}, "single engines"),
        (TALKS | {"trace": "x.jsonl"}, "only without"),
    ],
)
def test_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        rl.plan(**options)


def test_an_unknown_eviction_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="lru"):
        rl.plan(**TALKS, eviction="lruu")


def test_a_tier_has_the_price_of_the_memory_that_it_is_named_for() -> None:
    ddr5 = memory_tier("ddr5-host")
    priced, own = tiers_of(["ddr5-host=1TB@50GB/s", "flash=4TB@6GB/s"], 1.0)
    assert priced.usd_per_byte_hour == ddr5.usd_per_hour / ddr5.capacity_bytes  # type: ignore[operator]
    assert own.usd_per_byte_hour is None

"""What keeping the prefixes of traffic costs, and what an API's two write prices say about it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rackline as rl
from rackline.errors import InputError, UnknownNameError
from rackline.pricing import price_sheet
from rackline.pricing.cache import KeepingCost, recompute_cost
from rackline.pricing.prefixes import Repeats, best_lifetime, bought_lifetimes, lifetime_cost, staged_lifetime
from rackline.simulation import Requests
from rackline.simulation.reuse import reuse_of

TRACE = Path("../shared/traces/mooncake_synthetic_trace.jsonl")
ON = {"model": "llama-3.1-8b", "on": "dgx-h100", "layout": "tp=1"}
CHAT = {"turns": 4, "rate": 1, "input": 300, "output": 400, "think_time": "1min"}

# found 1 - exp(-t / 60 s), held 60 s · (1 - exp(-t / 60 s)): each token comes again, after 60 s on average
AGAIN = Repeats(
    found=lambda t: 1.0 - float(np.exp(-t / 60.0)),
    held_s=lambda t: 60.0 * (1.0 - float(np.exp(-t / 60.0))),
    found_in=lambda _: 0.0,
    input_len=1000.0,
)
COMPUTE = recompute_cost(1e-3, 0.1)


def line(name: str, hold: float, retrieve: float = 0.0) -> KeepingCost:
    return KeepingCost(name=name, tier=name, once_usd=0.0, hold_usd_per_s=hold, retrieve_usd=retrieve)


def test_cost_of_a_lifetime() -> None:
    near, far = line("near", 1e-5), line("far", 1e-7, 4e-4)
    one = lifetime_cost([near, far, COMPUTE], AGAIN, 1000.0, 60.0)
    share = 1.0 - np.exp(-1.0)
    assert one.tier == "far"
    usd = 1e-7 * 60.0 * share + share * 4e-4 + (1.0 - share) * 1e-3
    assert one.usd_per_mtok_prompt == pytest.approx(usd * 1e3)
    assert one.saving == pytest.approx(1.0 - usd / 1e-3)
    assert lifetime_cost([near, COMPUTE], AGAIN, 1000.0, 60.0).tier == "near"
    with pytest.raises(InputError, match="memory tier"):
        lifetime_cost([COMPUTE], AGAIN, 1000.0, 60.0)


def test_cost_of_two_tiers_after_each_other() -> None:
    near, far = line("near", 1e-5), line("far", 1e-7, 4e-4)
    one = staged_lifetime([near, far, COMPUTE], AGAIN, 1000.0, (60.0, 300.0))
    assert one is not None
    assert (one.tier, one.then_tier, one.until_s, one.ttl_s) == ("near", "far", 60.0, 300.0)
    soon, late = 1.0 - np.exp(-1.0), 1.0 - np.exp(-5.0)
    held = 1e-5 * 60.0 * soon + 1e-7 * 60.0 * (late - soon)
    usd = held + (late - soon) * 4e-4 + (1.0 - late) * 1e-3
    assert one.usd_per_mtok_prompt == pytest.approx(usd * 1e3)
    assert one.hit_share == pytest.approx(late)
    best = staged_lifetime([near, far, COMPUTE], AGAIN, 1000.0)
    assert best is not None
    assert best.usd_per_mtok_prompt < one.usd_per_mtok_prompt
    # a token on the chip costs 1e-5 a second, the chance of a use in it saves 4e-4 / 60 s: less, so it does not stay
    assert best.until_s == pytest.approx(1.0)
    assert staged_lifetime([near, COMPUTE], AGAIN, 1000.0) is None
    assert staged_lifetime([near, far, COMPUTE], AGAIN, 1000.0, (60.0,)) is None


def test_what_always_pays_is_kept_longest_and_what_never_pays_shortest() -> None:
    """Reuse after exponential pauses is as likely at any time: each second held pays or does not."""
    cheap, dear = line("cheap", 1e-6), line("dear", 1e-4)
    assert best_lifetime([cheap, COMPUTE], AGAIN, 1000.0).ttl_s > 600.0
    assert best_lifetime([dear, COMPUTE], AGAIN, 1000.0).ttl_s == 1.0


def test_bought_at_two_write_prices() -> None:
    five, hour = bought_lifetimes(price_sheet("claude-opus-4.6").standard, AGAIN)
    assert (five.ttl_s, hour.ttl_s) == (300.0, 3600.0)
    share = AGAIN.found(300.0)
    assert five.usd_per_mtok_prompt == pytest.approx(5.0 * (0.1 * share + 1.25 * (1.0 - share)))
    assert hour.usd_per_mtok_prompt == pytest.approx(5.0 * 0.1, rel=1e-6)


def test_the_hour_of_two_write_prices_is_nearly_the_break_even() -> None:
    """Input 1, hit 0.1, writes 1.25 for 5 minutes and 2 for an hour: time costs 0.75 / 55 min."""
    found = rl.read_prices(price_sheet("claude-opus-4.6")).find("cache_break_even_s")
    assert found is not None
    assert found.low == found.high == pytest.approx(0.9 / (0.75 / 3300.0))
    assert found.low == pytest.approx(3960.0)


def test_held_time_counts_each_block_once() -> None:
    requests = Requests(
        arrival_s=np.array([0.0, 10.0, 40.0]),
        input_len=np.array([32, 16, 32]),
        output_len=np.array([1, 1, 1]),
        hashes=[[1, 2], [1], [1, 2]],
        hash_tokens=16,
    )
    reuse = reuse_of(requests)
    assert reuse is not None
    # block 1 is used at 0, 10, 40 s; block 2 at 0 and 40 s; both until the end of the requests at 40 s
    assert reuse.held_s(np.inf) == pytest.approx(16 * (40 + 40) / 80)
    assert reuse.held_s(15.0) == pytest.approx(16 * (10 + 15 + 15) / 80)
    assert [float(reuse.hit_share(ttl_s=t)) for t in (5.0, 15.0, 31.0, 41.0)] == pytest.approx(
        [0.0, 16 / 80, 32 / 80, 48 / 80]
    )


def test_conversations_in_tiers() -> None:
    found = rl.tiers(**ON, **CHAT, hold_time=["1min", "1h"], sheet="claude-opus-4.6").to_dict()["traffic"]
    short, long = found["lifetimes"]
    assert 0.3 < short["hit_share"] < long["hit_share"] <= found["unlimited_share"] < 1.0
    assert found["best"]["usd_per_mtok_prompt"] <= min(short["usd_per_mtok_prompt"], long["usd_per_mtok_prompt"])
    assert [row["name"] for row in found["bought"]] == ["5min", "1h"]
    assert {row["tier"] for row in found["devices"]} >= {"ddr5-host", "nvme-4tb"}
    assert rl.tiers(**ON).to_dict()["traffic"] is None


@pytest.mark.skipif(not TRACE.is_file(), reason="needs ../shared/traces")
def test_a_trace_in_tiers() -> None:
    found = rl.tiers(**ON, trace=str(TRACE)).to_dict()["traffic"]
    assert found["unlimited_share"] == pytest.approx(0.6512, abs=5e-5)
    assert found["lifetimes"][0]["hit_share"] == pytest.approx(0.5951, abs=5e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": 1}, "only with `turns`"),
        ({"turns": 3}, "with `turns`"),
        ({**CHAT, "trace": "x.jsonl"}, "only without `trace`"),
        ({**CHAT, "tool_calls": 2}, "both"),
        ({**CHAT, "sheet": "claude-opus"}, "claude-opus"),
    ],
)
def test_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        rl.tiers(**ON, **options)  # pyright: ignore[reportArgumentType]


def test_agents_need_turns() -> None:
    with pytest.raises(InputError, match="only with `turns`"):
        rl.simulate("llama-3.1-8b", on="dgx-h100", rate=1, input=100, output=10, tool_calls=2, tool_output=100)


@pytest.mark.slow
def test_other_evictions_in_one_device() -> None:
    """All these sessions fit into each device, so that what would leave first does not matter."""
    ask = ON | {"turns": 3, "rate": 2, "input": 200, "output": 100, "think_time": "5s", "session_lengths": "fixed"}
    by = {name: rl.tiers(**ask, eviction=name).result.traffic for name in ("lru", "fifo")}  # pyright: ignore[reportArgumentType]
    lru, fifo = by["lru"], by["fifo"]
    assert lru is not None
    assert fifo is not None
    assert (lru.eviction, fifo.eviction) == ("lru", "fifo")
    for one, other in zip(lru.devices, fifo.devices, strict=True):
        assert other.hit_share == pytest.approx(one.hit_share, abs=0.04)
    with pytest.raises(UnknownNameError, match="lru"):
        rl.tiers(**ask, eviction="lruu")  # pyright: ignore[reportArgumentType]

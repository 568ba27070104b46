"""The lecture's systems Y01 to Y25 by a second hand: other numbers than elsewhere, worked out here without the library.

Those that are built in JAX are in tests/lab/test_built_systems.py; docs/lecture.md lists all and what runs each.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rackline.catalog import price_sheet_record
from rackline.cli.main import run
from rackline.hardware import MemoryTier, cluster, scale_up_cables, scale_up_path
from rackline.ledger.said import System, claims, systems
from rackline.ledger.table import ledger
from rackline.ledger.work import World
from rackline.parallel.exchange import ExpertRouting, combine_traffic, dispatch_traffic
from rackline.pricing.cache import envelope, keeping_cost, tier_by_drain
from rackline.scaling import (
    LossLaw,
    dense_equivalent_params as dense_equivalent,
    equal_costs,
    lifetime_tokens,
    loss_law,
    optimal_tokens_of_params,
    routed_law,
)
from rackline.serving import blackboard as bb
from rackline.serving.capacity import TrainLine, share_of_fleet
from rackline.serving.workload import expected_tokens
from rackline.training.schedules import SCHEDULE_OF, equal_stages

ROOT = Path(__file__).resolve().parents[2]


def close(value: object, wanted: float, rel: float = 1e-9) -> None:
    assert float(value) == pytest.approx(wanted, rel=rel)  # type: ignore[arg-type]


def test_y01() -> None:
    """A model of 50 B, 6 B active, in 1 byte, on 1 PFLOP/s and 2.5 TB/s, with 3 KB a token: 100 and 9,000 sequences."""
    for batch, context in ((100, 4_000), (9_000, 0)):
        compute_s = 2 * batch * 6e9 / 1e15
        memory_s = (50e9 + batch * context * 3000) / 2.5e12
        close(bb.compute_s(batch, 6e9, 1e15), compute_s)
        close(bb.memory_s(batch, 50e9, 1.0, context, 3000, 2.5e12), memory_s)
        close(bb.pass_s(batch, 50e9, 6e9, 1.0, context, 3000, 1e15, 2.5e12), max(compute_s, memory_s))
    close(bb.pass_s(1e-12, 50e9, 6e9, 1.0, 0.0, 3000, 1e15, 2.5e12), 0.020)  # 50 GB at 2.5 TB/s


def test_y02() -> None:
    """Balance at 200 multiplies a weight and 5 times the active parameters is 1,000; 3 times the speed, 4 the price."""
    close(bb.balance_batch(200.0, 5.0), 1000.0)
    close(bb.batch_cost_ratio(1.0, 1000.0), 1000.0)
    modes = bb.mode_batches(3.0, 4.0, 1000.0)
    close(modes.normal_batch, 3000.0)  # three times as long as the floor
    close(modes.fast_batch, 250.0)  # the floor over 250 sequences costs four times the floor over 1,000
    # half of the arithmetic's slope is cache: t = (1000 + b / 2) against b
    close(bb.balance_batch_with_kv(200.0, 5e9, 1e9, 1.0, 100.0, 1e9 / (200.0 * 200.0)), 2000.0)


def test_y03() -> None:
    """Trains each 30 ms with 5 places and 40 arrivals a second: written out as a queue, on 200,000 requests."""
    rng = random.Random(5)
    interval, places, rate = 0.03, 5, 40.0
    now, departure = 0.0, interval
    waiting: list[float] = []
    waits: list[float] = []
    while len(waits) < 200_000:
        now += rng.expovariate(rate)
        while now > departure:
            boarding, waiting = waiting[:places], waiting[places:]
            waits += [departure + interval - arrived for arrived in boarding]
            departure += interval
        waiting.append(now)
    line = TrainLine(interval_s=interval, capacity=places, arrivals_per_s=rate)
    close(line.mean_s, float(np.mean(waits)), rel=0.01)
    close(bb.train_latency(interval).worst_s, 0.06)
    assert TrainLine(interval_s=interval, capacity=places, arrivals_per_s=170.0).saturated  # 5.1 for 5 places


def test_y05() -> None:
    """40 layers, 4 KV heads of 96, 2 bytes; 12 B active on 500 TFLOP/s and 2 TB/s."""
    close(bb.kv_bytes_per_token(40, 4, 96, 2), 61_440)
    star = (2 * 12e9 / 500e12) / (61_440 / 2e12)
    close(bb.crossover_context(12e9, 61_440, 500e12, 2e12), star)
    close(bb.mfu_at_context(4 * star, star), 0.25)
    close(bb.mfu_at_context(0.5 * star, star), 1.0)


def test_y08() -> None:
    """12 experts on 6 ranks of two racks, 3 of them a token: chances counted over all 220 choices."""
    choices = list(itertools.combinations(range(12), 3))
    ranks = [{expert // 2 for expert in choice} for choice in choices]
    hit = sum(0 in one for one in ranks) / len(choices)
    routing = ExpertRouting(num_ranks=6, num_experts=12, experts_per_token=3, ranks_per_domain=3)
    out = dispatch_traffic(routing, 700.0, 10.0)
    assert np.allclose(out.sent, 7000.0 * hit)
    close(out.crossing_share, 0.5)
    assert np.allclose(combine_traffic(out, 2.0).sent, 2.0 * out.sent.T)
    # a rank sends to 2 others inside, to 3 beyond; 100 and 10 GB/s
    close(out.seconds(100e9, 10e9), max(2 * 7000 * hit / 100e9, 3 * 7000 * hit / 10e9))


def test_y09() -> None:
    """72 packages with 18 links each over switches; from a chip up to a switch and down are two hops."""
    level = cluster("gb200-nvl72").scale_up
    assert scale_up_cables(level, 20) == 20 * 18
    assert scale_up_path(level).hops == 2
    assert len(scale_up_path(level).stops) == 3  # chip, switch, chip


def test_y10() -> None:
    """300 GB of weights on 16 chips of 1.5 TB/s: 24 TB/s together."""
    close(bb.weight_fetch_s(300e9, 1.0, 1.5e12, 16), 300 / 24_000)
    close(bb.weight_fetch_s(300e9, 0.5, 1.5e12, 16), 150 / 24_000)


def test_y11() -> None:
    """6 stages, 10 micro-batches, forward 1 and backward 2: drawn by hand, a step of 45 with 15 idle on each."""
    close(bb.flush_bubble_share(6, 10), 5 / 15)
    for name in ("gpipe", "1f1b"):
        schedule = SCHEDULE_OF[name]
        line = schedule.run(6, 10, equal_stages(schedule, 6, 1.0, 1.0, 1.0))
        close(line.step_s, (10 + 5) * 3)
        close(line.bubble_fraction, 5 / 15)
    # a ring: 3 of 6 groups leave half of the stages idle, and hops of 1 ms add six
    step = bb.ring_step(0.012, 6, 3, 100)
    close(step.idle_share, 0.5)
    close(bb.ring_step(0.012, 6, 6, 100, 0.001).token_s, 0.018)


def test_y12() -> None:
    """480 GB on 16 chips and 3 stages, 500 sequences of 20,000 tokens of 4 KB in each micro-batch."""
    held = bb.chip_memory(480e9, 1.0, 500, 20_000, 4000, 16, 3)
    close(held.weights_bytes, 10e9)
    close(held.kv_bytes, 500 * 20_000 * 4000 / 16)


def test_y13() -> None:
    """Links 12 times slower, 5 experts, 2 layers a stage: 20 crossings inside for one beyond."""
    close(bb.scale_up_over_scale_out_time(12.0, 5.0, 2.0), 20 / 12)


def test_y14() -> None:
    """A step at 64,000 tokens of a model of 30 B active, 800 TFLOP/s, 4 TB/s."""
    kv = bb.kv_bytes_per_token_from_crossover(30e9, 64_000, 800e12, 4e12)
    close(kv, 2 * 30e9 / 800e12 * 4e12 / 64_000)
    close(bb.cost_floor_usd(30e9, 96_000, kv, 800e12, 4e12, 3600.0) / (2 * 30e9 / 800e12), 1.5)


def test_y15() -> None:
    """Output at 4 times input: with memory at 4 times the arithmetic of a token, 4 tokens a pass are balanced."""
    flop, hbm = 4e14, 1e12
    batch, active = 10.0, 1e10
    arithmetic = 2 * batch * active / flop
    total = 4 * arithmetic * hbm  # bytes that take four times as long
    times = [bb.pass_s(batch, total, active, 1.0, 0.0, 0.0, flop, hbm)] + [
        max(bb.compute_s(batch, active, flop, n), bb.memory_s(batch, total, 1.0, 0.0, 0.0, hbm)) for n in (4.0, 8.0)
    ]
    per_token = [times[0] / 1, times[1] / 4, times[2] / 8]
    close(per_token[0] / per_token[2], 4.0)
    close(per_token[1] / per_token[2], 1.0)


def test_y16() -> None:
    """A fast and a slow tier, 1 and 0.01 dollars an hour, 100 GB at 100 GB/s and 1 TB at 1 GB/s, for 10 GB."""
    fast = MemoryTier(name="fast", tier="host_dram", capacity_bytes=1e11, bytes_per_s=1e11, usd_per_hour=1.0)
    slow = MemoryTier(name="slow", tier="disk", capacity_bytes=1e12, bytes_per_s=1e9, usd_per_hour=0.01)
    lines = [keeping_cost(tier, 1e10) for tier in (fast, slow)]
    hold = [1.0 / 3600 * 0.1, 0.01 / 3600 * 0.01]
    read = [1.0 / 3600 * 0.1, 0.01 / 3600 * 10.0]
    for line, each, once in zip(lines, hold, read, strict=True):
        close(line.usd(7.0), once + each * 7.0 + once)  # written, held, read
    assert tier_by_drain(lines, 2.0).name == "fast"  # drains in 1 s, the other in 1,000
    assert tier_by_drain(lines, 400.0).name == "slow"
    assert envelope(lines)[-1].cost.name == "slow"


def test_y17() -> None:
    """30 M tokens a second for 90 days; a quarter of the MFU; and the optimum by trying sizes."""
    used = lifetime_tokens(30e6, 90 * 86_400)
    close(used, 30e6 * 90 * 86_400)
    equal = equal_costs(used, 4.0, 0.25, 0.25)
    close(equal.pretrain_tokens, 2 / 6 / 0.25 * used)
    close(float(equal.pretrain_tokens) / float(equal.rl_tokens), 4 / 6 / 0.25)
    law: LossLaw = loss_law("besiroglu")
    e, a, b, alpha, beta = (1.8172, 482.01, 2085.43, 0.3478, 0.3658)
    params, per_param = 20e9, 2 * 1e14
    best = float(optimal_tokens_of_params(law, params, per_param))
    loss = e + a / params**alpha + b / best**beta
    sizes = params * np.exp(np.linspace(-0.5, 0.5, 2001))
    tokens = (b / (loss - e - a / sizes**alpha)) ** (1 / beta)
    cheapest = sizes[np.argmin(6 * sizes * tokens + per_param * sizes)]
    close(cheapest, params, rel=0.02)


def test_y18() -> None:
    """Clark et al., equation 1, for 1 B and 16 experts, written out."""
    a, b, c, d = -0.082, -0.108, 0.009, 1.104
    start, most, experts, size = 1.847, 314.478, 16.0, 1e9
    saturated = 1 / (1 / (experts - 1 + 1 / (1 / start - 1 / most)) + 1 / most)

    def log_loss(params: float, count: float) -> float:
        n, e = math.log10(params), math.log10(count)
        return a * n + b * e + c * n * e + d

    wanted = log_loss(size, saturated)
    dense = 1 / (1 / (0.0 + 1 / (1 / start - 1 / most)) + 1 / most)
    e = math.log10(dense)
    same = 10 ** ((wanted - d - b * e) / (a + c * e))
    close(dense_equivalent(routed_law("clark-s-base"), size, experts), same, rel=1e-6)


def test_y19() -> None:
    """1,500 sequences a pass of 25 ms are 60,000 tokens a second, one part in 5,000 of 300 M."""
    close(bb.tokens_per_s(1500, 0.025), 60_000)
    close(share_of_fleet(60_000, 300e6), 1 / 5000)


def test_y21() -> None:
    """Three rounds over decimal digits, sums modulo 10, by a table without inverse; done by hand from (3, 8)."""
    table = [4, 4, 7, 1, 1, 0, 9, 4, 7, 2]

    def round_function(shift: int) -> Callable[[int], int]:
        return lambda half: table[(half + shift) % 10]

    def plus(p: int, q: int) -> int:
        return (p + q) % 10

    def minus(p: int, q: int) -> int:
        return (p - q) % 10

    functions = [round_function(shift) for shift in (0, 5, 2)]
    x, y = 3, 8
    for shift in (0, 5, 2):
        x, y = (y + table[(x + shift) % 10]) % 10, x
    rounds = bb.coupled_rounds(3, 8, functions, plus)
    assert rounds == (x, y)
    assert bb.uncoupled_rounds(*rounds, functions, minus) == (3, 8)


def test_y22() -> None:
    """The S-box x -> 3 x modulo 17 less one, and mixing of six bytes each of which reads two neighbours."""
    pytest.importorskip("jax", reason="JAX has no wheel on this platform")
    from rackline.lab import cipher

    box = [(3 * (x + 1)) % 17 - 1 for x in range(16)]
    counts: dict[tuple[int, int], int] = {}
    for difference in range(1, 16):
        for x in range(16):
            key = difference, box[x ^ difference] ^ box[x]
            counts[key] = counts.get(key, 0) + 1
    assert cipher.differential_uniformity(np.array(box)) == max(counts.values())
    ring = np.zeros((6, 6), dtype=bool)
    for place in range(6):
        ring[place, [place, (place + 1) % 6, (place - 1) % 6]] = True
    assert bb.layers_until_mixed(ring) == 3  # the opposite byte is three steps away


def test_y23() -> None:
    """Dollars of the lists as published, against what the sheets hold; ratios by hand."""
    opus = price_sheet_record("anthropic-claude-opus-4.6")
    tiers = {tier.name: tier for tier in opus.tiers}
    standard, fast = tiers["standard"], tiers["fast"]
    assert (standard.usd_per_mtok_input, standard.usd_per_mtok_output) == (5.0, 25.0)
    assert (fast.usd_per_mtok_input, fast.usd_per_mtok_output) == (30.0, 150.0)
    sheet = World().sheet("google-gemini-3.1-pro").of_mode("standard")
    close((sheet[1].output_usd or 0) / (sheet[0].output_usd or 1), 18 / 12)
    close((sheet[1].input_usd or 0) / (sheet[0].input_usd or 1), 4 / 2)


def test_y24() -> None:
    """4 drafts, each right in 6 of 10 cases: 200,000 steps counted, and the geometric sum."""
    rng = random.Random(2)
    made = 0
    for _ in range(200_000):
        made += 1
        for _ in range(4):
            if rng.random() >= 0.6:
                break
            made += 1
    close(expected_tokens(0.6, 4), made / 200_000, rel=0.01)
    close(expected_tokens(0.6, 4), (1 - 0.6**5) / (1 - 0.6))


def test_y25() -> None:
    """HBM of 100 GB a chip and DDR5 at 20 dollars a GB: 200 of 13,500 / 2 dollars a GB-pair, by hand."""
    (found,) = ledger(World({"gb200": {"hbm_bytes": 100e9}, "ddr5-host": {"usd_per_byte": 20e-9}}, None), claim="C66")
    share = found.computed[0].value
    assert share is not None
    close(share, 100 * (2 * 20) * 2 / 13_500)
    rent = 3.30 * 126.23e6 / 3600
    close(found.computed[1].value or 0.0, (100 * 40 + 240 * 20) / rent, rel=1e-6)


@pytest.mark.parametrize("system", systems(), ids=lambda one: one.id)
def test_each_system_has_claims_a_line_that_runs_and_a_test(system: System, capsys: pytest.CaptureFixture[str]) -> None:
    assert set(system.claims) <= {one.id for one in claims()}
    file, _, name = system.test_name.partition("::")
    text = (ROOT / file).read_text(encoding="utf-8")
    assert f"def {name}(" in text
    words = system.command.split()
    if words[1] == "lab":  # tests/lab runs them
        pytest.importorskip("jax", reason="JAX has no wheel on this platform")
        from rackline.lab.experiments import EXPERIMENTS

        assert system.id in EXPERIMENTS[words[2]].systems
    else:
        assert run(words[1:]) == 0
        assert capsys.readouterr().out

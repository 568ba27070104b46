"""Routing laws against Monte Carlo: what the busiest expert-parallel rank gets."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from rackline.errors import InputError
from rackline.parallel import Routing, parse_routing
from rackline.passes import ExpertLoad
from rackline.passes.routing import (
    distinct_ranks,
    experts_touched_mean,
    largest_of,
    log_normal_shares,
    normal_maximum,
    power_law_shares,
    rearranged,
)

E, K = 256, 8
TRIALS = {1: 1500, 8: 800, 64: 150, 1024: 20}


def inclusion(exponent: float) -> np.ndarray:
    """Probability that a token picks each expert: K times its share, at most 1, what is cut goes to the others."""
    shares = power_law_shares(E, exponent)
    chosen = np.zeros(E, dtype=bool)
    while True:
        left = K - chosen.sum()
        picks = np.where(chosen, 1.0, shares * left / shares[~chosen].sum())
        over = (picks > 1.0) & ~chosen
        if not over.any():
            return picks
        chosen |= over


def systematic_picks(picks: np.ndarray, tokens: int, rng: np.random.Generator) -> np.ndarray:
    """K distinct experts a token with exactly these probabilities: shape (tokens, K).

    Systematic sampling: the experts of a token in random order laid end to end, cut at u, u + 1, ..., u + K - 1.
    """
    order = np.argsort(rng.random((tokens, E)), axis=1)
    ends = np.cumsum(picks[order], axis=1)
    ends[:, -1] = K
    marks = rng.random((tokens, 1)) + np.arange(K)
    rows = [np.searchsorted(end, mark, side="right") for end, mark in zip(ends, marks, strict=True)]
    return np.take_along_axis(order, np.array(rows), axis=1)


@cache
def monte_carlo(exponent: float, ep: int, tokens: int) -> tuple[float, float]:
    """Mean over trials of (tokens, touched experts) of the busiest of ep ranks."""
    rng = np.random.default_rng([ep, tokens, int(exponent * 100)])
    picks = inclusion(exponent)
    busiest: list[int] = []
    touched: list[int] = []
    for _ in range(TRIALS[tokens]):
        if exponent == 0.0:
            chosen = np.argpartition(rng.random((tokens, E)), K - 1, axis=1)[:, :K]
        else:
            chosen = systematic_picks(picks, tokens, rng)
        counts = np.bincount(chosen.ravel(), minlength=E)[rng.permutation(E)].reshape(ep, E // ep)
        busiest.append(int(counts.sum(axis=1).max()))
        touched.append(int((counts > 0).sum(axis=1).max()))
    return float(np.mean(busiest)), float(np.mean(touched))


@pytest.mark.parametrize("ep", [8, 32, 64])
@pytest.mark.parametrize("tokens", [1, 8, 64, 1024])
def test_uniform_busiest_rank(ep: int, tokens: int) -> None:
    load = ExpertLoad.tabulate(num_experts=E, experts_per_token=K, ep=ep, law="uniform")
    expected_tokens, expected_touched = monte_carlo(0.0, ep, tokens)
    assert float(load.expert_tokens(tokens)) == pytest.approx(expected_tokens, rel=0.10)
    assert float(load.experts_touched(tokens)) == pytest.approx(expected_touched, rel=0.10)


@pytest.mark.parametrize("exponent", [0.5, 1.0])
@pytest.mark.parametrize("ep", [8, 32, 64])
@pytest.mark.parametrize("tokens", [1, 8, 64])
def test_power_law_busiest_rank(exponent: float, ep: int, tokens: int) -> None:
    load = ExpertLoad.tabulate(num_experts=E, experts_per_token=K, ep=ep, law="power_law", skew=exponent)
    expected_tokens, expected_touched = monte_carlo(exponent, ep, tokens)
    # a single token whose first expert is certain has hardly any spread: the sum of spreads is too much there
    rel = 0.20 if exponent == 1.0 and tokens == 1 else 0.10
    assert float(load.expert_tokens(tokens)) == pytest.approx(expected_tokens, rel=rel)
    assert float(load.experts_touched(tokens)) == pytest.approx(expected_touched, rel=rel)


def test_few_tokens_over_many_ranks_load_the_busiest_two_and_a_half_times_the_mean() -> None:
    """8 tokens, 8 of 256 experts, 32 ranks: touched experts, busiest over mean."""
    load = ExpertLoad.tabulate(num_experts=E, experts_per_token=K, ep=32, law="uniform")
    mean = float(experts_touched_mean(E, K, 8.0)) / 32
    assert float(load.experts_touched(8.0)) / mean == pytest.approx(2.5, abs=0.15)
    assert monte_carlo(0.0, 32, 8)[1] / mean == pytest.approx(2.5, abs=0.15)


def test_balanced_is_the_mean() -> None:
    load = ExpertLoad.tabulate(num_experts=E, experts_per_token=K, ep=32, law="balanced")
    tokens = np.array([1.0, 7.3, 64.0, 4096.0])
    assert np.asarray(load.expert_tokens(tokens)) == pytest.approx(tokens * K / 32)
    touched = experts_touched_mean(E, K, tokens) / 32
    assert np.asarray(load.experts_touched(tokens)) == pytest.approx(touched, rel=5e-3)


@pytest.mark.parametrize("law", ["balanced", "uniform", "log_normal", "power_law"])
def test_one_rank_has_everything(law: str) -> None:
    load = ExpertLoad.tabulate(num_experts=E, experts_per_token=K, ep=1, law=law, skew=0.5)  # type: ignore[arg-type]
    assert float(load.expert_tokens(100.0)) == pytest.approx(800.0, rel=1e-9)
    assert float(load.experts_touched(1e6)) == pytest.approx(256.0)


@pytest.mark.parametrize("ep", [2, 8, 48, 64, 256])
def test_uniform_lies_between_balanced_and_everything(ep: int) -> None:
    uniform = ExpertLoad.tabulate(num_experts=E, experts_per_token=K, ep=ep, law="uniform")
    balanced = ExpertLoad.tabulate(num_experts=E, experts_per_token=K, ep=ep, law="balanced")
    tokens = np.geomspace(1.0, 1e6, 60)
    busy, mean = np.asarray(uniform.expert_tokens(tokens)), np.asarray(balanced.expert_tokens(tokens))
    assert np.all(busy >= mean * (1 - 1e-9))
    assert np.all(busy <= tokens * K * (1 + 1e-9))
    assert np.all(np.asarray(uniform.experts_touched(tokens)) <= np.ceil(E / ep) + 1e-9)
    assert np.all(np.diff(busy) > 0)
    assert np.all(np.diff(np.asarray(uniform.experts_touched(tokens))) >= -1e-9)


@pytest.mark.parametrize("exponent", [0.3, 0.8])
def test_power_law_with_no_skew_is_uniform_and_skew_adds_load(exponent: float) -> None:
    def busy(z: float) -> float:
        load = ExpertLoad.tabulate(num_experts=E, experts_per_token=K, ep=32, law="power_law", skew=z)
        return float(load.expert_tokens(512.0))

    uniform = ExpertLoad.tabulate(num_experts=E, experts_per_token=K, ep=32, law="uniform")
    assert busy(0.0) == pytest.approx(float(uniform.expert_tokens(512.0)), rel=1e-9)
    assert busy(exponent) > busy(0.0)


def test_fractions_of_a_token_are_in_proportion() -> None:
    load = ExpertLoad.tabulate(num_experts=E, experts_per_token=K, ep=32)
    assert float(load.expert_tokens(0.25)) == pytest.approx(0.25 * float(load.expert_tokens(1.0)))
    assert float(load.experts_touched(0.25)) == pytest.approx(0.25 * float(load.experts_touched(1.0)))
    assert float(load.expert_tokens(0.0)) == 0.0


def test_beyond_the_grid_the_load_is_in_proportion() -> None:
    load = ExpertLoad.tabulate(num_experts=E, experts_per_token=K, ep=32, max_tokens=1e6)
    assert float(load.expert_tokens(4e7)) == pytest.approx(10 * float(load.expert_tokens(4e6)))


@pytest.mark.parametrize(("k", "quoted"), [(8, 7.7), (16, 14.6), (32, 26.6)])
def test_distinct_ranks_ledger_y13(k: int, quoted: float) -> None:
    assert round(float(distinct_ranks(64, 256, k)), 1) == quoted


@pytest.mark.parametrize(("ranks", "k"), [(8, 8), (32, 8), (64, 16), (256, 8)])
def test_distinct_ranks_against_monte_carlo(ranks: int, k: int) -> None:
    rng = np.random.default_rng(ranks * 100 + k)
    chosen = np.argpartition(rng.random((4000, E)), k - 1, axis=1)[:, :k] // (E // ranks)
    hit = np.zeros((4000, ranks), dtype=bool)
    hit[np.arange(4000)[:, None], chosen] = True
    assert float(distinct_ranks(ranks, E, k)) == pytest.approx(hit.sum(axis=1).mean(), rel=0.01)


def test_distinct_ranks_limits() -> None:
    assert float(distinct_ranks(1, E, K)) == pytest.approx(1.0)
    assert float(distinct_ranks(E, E, K)) == pytest.approx(K)


def test_touched_mean_against_monte_carlo() -> None:
    rng = np.random.default_rng(5)
    for tokens in (1, 8, 64):
        seen = [len(np.unique(np.argpartition(rng.random((tokens, E)), K - 1, axis=1)[:, :K])) for _ in range(400)]
        assert float(experts_touched_mean(E, K, tokens)) == pytest.approx(np.mean(seen), rel=0.01)
    assert float(experts_touched_mean(8, 8, 1.0)) == 8.0
    assert float(experts_touched_mean(8, 8, 0.0)) == 0.0


def test_largest_of_binomials_against_numpy() -> None:
    rng = np.random.default_rng(11)
    for count, trials, share in ((8, 64, 0.1), (32, 500, 0.02), (16, 40000, 0.01)):
        drawn = rng.binomial(trials, share, size=(4000, count)).max(axis=1).mean()
        ours = largest_of(count, np.array([trials * share]), np.array([float(trials)]))
        assert float(ours[0]) == pytest.approx(drawn, rel=0.02)


@pytest.mark.parametrize("count", [1, 2, 10, 300])
def test_normal_maximum_against_numpy(count: int) -> None:
    drawn = np.random.default_rng(3).standard_normal((20000, count)).max(axis=1)
    assert normal_maximum(count) == pytest.approx(drawn.mean(), abs=0.03)


def test_unknown_law_and_impossible_ep() -> None:
    with pytest.raises(InputError, match=r"routing law: got 'zipf', allowed: balanced, uniform, log_normal, power_law"):
        ExpertLoad.tabulate(num_experts=8, experts_per_token=2, ep=2, law="zipf")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"ep: got 9, allowed: 1 to 8"):
        ExpertLoad.tabulate(num_experts=8, experts_per_token=2, ep=9)


def test_rearranged_experts_fill_all_slots_and_even_the_ranks() -> None:
    popularity = log_normal_shares(64, 1.0)
    for ep, copies in ((8, 0), (8, 8), (16, 16), (24, 0)):
        placed = rearranged(popularity, ep, copies)
        slots = -(-(64 + copies) // ep)
        assert np.all(placed.sum(axis=0) == slots)
        assert np.all(placed.sum(axis=1) >= 1)
        load = (popularity / placed.sum(axis=1)) @ placed
        as_numbered = popularity.reshape(8, 8).sum(axis=1) if ep == 8 else None
        assert load.sum() == pytest.approx(1.0)
        if as_numbered is not None:
            assert load.max() < 0.7 * as_numbered.max()


@pytest.mark.parametrize("tokens", [8, 64, 1024])
def test_copies_lower_the_busiest_rank(tokens: int) -> None:
    def busy(copies: int | None) -> float:
        load = ExpertLoad.tabulate(
            num_experts=64,
            experts_per_token=6,
            ep=16,
            law="log_normal",
            skew=0.7,
            redundant_experts=copies,
            max_tokens=1024,
        )
        assert float(load.experts_touched(tokens)) <= 64 / 16 + (copies or 0) / 16
        return float(load.expert_tokens(tokens))

    assert busy(16) < busy(0) < busy(None)
    assert busy(16) > tokens * 6 / 16


@pytest.mark.parametrize(
    ("text", "routing"),
    [
        ("log-normal", Routing(law="log_normal")),
        ("log-normal=0.7", Routing(law="log_normal", spread=0.7)),
        ("log-normal=0.7+32", Routing(law="log_normal", spread=0.7, rearranged_from_ep=1, redundant_experts=32)),
        ("power-law=0.85+0", Routing(law="power_law", exponent=0.85, rearranged_from_ep=1)),
    ],
)
def test_a_routing_is_read_as_it_is_written(text: str, routing: Routing) -> None:
    assert parse_routing(text) == routing
    assert routing.label() == text


@pytest.mark.parametrize("text", ["uniform+32", "zipf", "balanced=1", "log-normal=x", "log-normal+", "power-law+-1"])
def test_other_routings_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_routing(text)


def test_experts_lie_as_numbered_below_the_width_from_which_a_stack_rearranges() -> None:
    routing = Routing(law="log_normal", rearranged_from_ep=16, redundant_experts=32)
    assert [routing.copies(ep) for ep in (1, 8, 16, 32)] == [None, None, 32, 32]
    assert Routing(law="log_normal").copies(64) is None

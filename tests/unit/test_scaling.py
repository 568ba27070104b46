"""Scaling laws: limits, neighbours, inverses, bad input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rackline import scaling as sc
from rackline.errors import InputError, RacklineError, UnknownNameError
from rackline.plain import plain

LAW = sc.loss_law("besiroglu")
MFU = sc.PhaseMfu(pretrain=0.4, rl=0.12, inference=0.12)


class TestOptimum:
    @pytest.mark.parametrize("name", ["besiroglu", "chinchilla", "muennighoff", "sardana"])
    @pytest.mark.parametrize("use", [0.0, 1e12, 1e15, 1e18])
    @pytest.mark.parametrize("unique", [None, 5e12])
    def test_beats_a_thousand_random_neighbours(self, name: str, use: float, unique: float | None) -> None:
        law = sc.loss_law(name)
        target = float(sc.loss(law, 70e9, 15e12))
        best = sc.optimal_allocation(law, target, use, unique)
        if not best.feasible:
            assert "few different tokens" in best.reason
            return
        rng = np.random.default_rng(8)
        near = float(best.params) * np.exp(rng.normal(0.0, 0.5, 1000))
        others = np.asarray(sc.lifetime_flop_of(law, near, target, use, unique))
        assert np.all(others >= float(best.lifetime_flop) * (1 - 1e-12))
        itself = sc.lifetime_flop_of(law, float(best.params), target, use, unique)
        assert itself == pytest.approx(best.lifetime_flop, rel=1e-6)

    def test_without_use_it_is_compute_optimal(self) -> None:
        for target in (1.9, 1.95, 2.2, 3.0):
            best, plain = sc.optimal_allocation(LAW, target), sc.compute_optimal_of_loss(LAW, target)
            assert (best.params, best.tokens) == pytest.approx((plain.params, plain.tokens))

    def test_with_endless_use_it_is_the_smallest_model(self) -> None:
        smallest = (LAW.params_coefficient / (1.95 - LAW.irreducible_loss)) ** (1 / LAW.params_exponent)
        sizes = np.asarray(sc.optimal_allocation(LAW, 1.95, np.logspace(10, 24, 15)).params)
        assert np.all(np.diff(sizes) < 0)
        assert sizes[-1] == pytest.approx(smallest, rel=0.01)
        assert sizes[-1] > smallest

    def test_compute_optimal_has_the_least_loss_of_its_flop(self) -> None:
        best = sc.compute_optimal(LAW, 1e24)
        sizes = best.params * np.exp(np.random.default_rng(0).normal(0.0, 1.0, 1000))
        assert np.all(np.asarray(sc.loss(LAW, sizes, 1e24 / (6 * sizes))) >= sc.loss(LAW, best.params, best.tokens))
        assert sc.compute_optimal_of_loss(LAW, sc.loss(LAW, best.params, best.tokens)).params == pytest.approx(
            best.params
        )
        assert sc.compute_optimal_of_params(LAW, best.params).tokens == pytest.approx(best.tokens)

    def test_use_that_a_run_implies_gives_the_run_back(self) -> None:
        lifetime = sc.implied_lifetime_flop_per_param(LAW, 8e9, 15e12)
        best = sc.optimal_allocation(LAW, sc.loss(LAW, 8e9, 15e12), lifetime)
        assert (best.params, best.tokens) == pytest.approx((8e9, 15e12), rel=1e-6)
        assert sc.optimal_tokens_of_params(LAW, 8e9, lifetime) == pytest.approx(15e12, rel=1e-6)

    def test_few_tokens_ask_for_a_larger_model(self) -> None:
        free = sc.optimal_allocation(LAW, 1.93, 1e15)
        short = sc.optimal_allocation(LAW, 1.93, 1e15, float(free.tokens) / 10)
        assert short.params > free.params
        assert short.lifetime_flop > free.lifetime_flop
        none = sc.optimal_allocation(LAW, 1.93, 1e15, 1e9)
        assert not none.feasible
        assert np.isnan(none.params)


class TestRepeats:
    def test_fresh_tokens_count_in_full_and_repeats_less(self) -> None:
        assert sc.effective_tokens(1e12, 2e12, 15.4) == 1e12
        tokens = np.linspace(1e12, 400e12, 50)
        worth = np.asarray(sc.effective_tokens(tokens, 1e12, 15.4))
        assert np.all(worth <= tokens)
        assert np.all(np.diff(worth) > 0)
        assert worth[-1] == pytest.approx(1e12 * 16.4, rel=1e-3)
        assert np.asarray(sc.tokens_of_effective(worth, 1e12, 15.4)) == pytest.approx(tokens, rel=1e-6)
        assert sc.tokens_of_effective(17e12, 1e12, 15.4) == np.inf

    def test_up_to_four_epochs_are_almost_as_good_as_fresh(self) -> None:
        assert sc.effective_tokens(4e12, 1e12, 15.387756) / 4e12 == pytest.approx(0.93, abs=0.01)


class TestRouted:
    def test_one_expert_is_the_dense_model(self) -> None:
        assert sc.dense_equivalent_params(sc.routed_law(), 370e6, 1.0) == pytest.approx(370e6)

    def test_more_experts_are_better_with_falling_returns(self) -> None:
        size = np.asarray(sc.dense_equivalent_params(sc.routed_law(), 370e6, 2.0 ** np.arange(9)))
        growth = size[1:] / size[:-1]
        assert np.all(growth > 1.0)
        assert growth[-1] < growth[2]

    def test_totals_and_experts_are_inverses(self) -> None:
        assert sc.routed_num_experts(sc.routed_total_params(37e9, 28.0), 37e9) == pytest.approx(28.0)
        with pytest.raises(InputError, match="not smaller than its active part"):
            sc.routed_num_experts(10e9, 37e9)

    def test_experts_save_compute_at_equal_loss(self) -> None:
        dense = sc.joint_law(1.0)
        target = sc.loss(dense, 7e9, 1e12)
        costs = [float(sc.compute_optimal_of_loss(sc.joint_law(e), target).train_flop) for e in (1.0, 4.0, 16.0, 64.0)]
        assert costs == sorted(costs, reverse=True)


class TestOvertrain:
    def test_equal_costs_are_equal(self) -> None:
        answer = sc.equal_costs(2.592e14, 4.0, 0.25, 0.3)
        pretrain = 6 * answer.pretrain_tokens
        assert 4.0 * answer.rl_tokens / 0.25 == pytest.approx(pretrain)
        assert 2.0 * answer.inference_tokens / 0.3 == pytest.approx(pretrain)

    def test_least_sum_is_where_weighted_parts_are_equal(self) -> None:
        x = sc.power_sum_minimum(2.0, 1.5, 3.0, 0.5)
        near = x * np.exp(np.linspace(-1, 1, 2001))
        assert near[np.argmin(2 * near**1.5 + 3 * near**-0.5)] == pytest.approx(x, rel=1e-3)
        assert 2 * x**1.5 / (3 * x**-0.5) == pytest.approx(0.5 / 1.5)

    def test_chance_of_not_shipping_derates(self) -> None:
        assert sc.lifetime_tokens(1e6, 100.0, 0.25) == pytest.approx(25e6)


class TestBudget:
    def ask(self, **changes: float) -> sc.Budget:
        usage = sc.Usage(inference_tokens=2.592e14, rl_tokens=1e13, prompt_tokens=1e14)
        return sc.budget(
            LAW,
            float(sc.loss(LAW, 70e9, 15e12)),
            usage,
            mfu=MFU,
            peak_flop_per_s=989e12,
            usd_per_chip_hour=2.0,
            **changes,
        )

    def test_parts_sum_to_the_optimum(self) -> None:
        answer = self.ask()
        seconds = sum(phase.chip_hours for phase in answer.phases) * 3600
        assert seconds * 989e12 * MFU.pretrain == pytest.approx(float(answer.optimum.lifetime_flop))
        assert sum(phase.share for phase in answer.phases) == pytest.approx(1.0)
        assert answer.usd == pytest.approx(2.0 * answer.chip_hours)
        assert [phase.name for phase in answer.phases] == ["pretrain", "rl", "prompts", "inference"]

    def test_flat_range_costs_what_it_says(self) -> None:
        answer = self.ask()
        for within, (low, high) in answer.flat.items():
            costs = sc.lifetime_flop_of(LAW, np.array([low, high]), answer.loss, answer.lifetime_flop_per_param)
            assert np.asarray(costs) == pytest.approx(float(answer.optimum.lifetime_flop) * (1 + within), rel=1e-6)
            assert low < float(answer.optimum.params) < high

    def test_infeasible_is_an_answer(self) -> None:
        answer = self.ask(unique_tokens=1e6)
        assert not answer.feasible
        assert answer.phases == ()
        assert plain(answer)["reason"]

    def test_curve_has_its_minimum_at_the_optimum(self) -> None:
        answer = self.ask()
        assert np.min(answer.curve_flop) == pytest.approx(float(answer.optimum.lifetime_flop), rel=1e-6)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: sc.tokens_for_loss(LAW, 1e9, 1.8), "above 1.817, the irreducible loss"),
        (lambda: sc.optimal_allocation(LAW, 1.8172), "irreducible loss of the law besiroglu"),
        (lambda: sc.loss(LAW, 1e9, -1.0), "tokens: got -1.0"),
        (lambda: sc.chip_hours_of_flop(1e20, 1.2, 989e12), "no run is above the peak"),
        (lambda: sc.PhaseMfu(pretrain=1.1, rl=0.1, inference=0.1), "MFU of pretrain: got 1.1"),
        (lambda: sc.Usage(inference_tokens=-1.0), "inference_tokens"),
        (lambda: sc.Usage(rl_flop_per_param_token=7.0), "nearest: 6"),
        (lambda: sc.loss_law("clark"), "a law of loss against size and tokens"),
        (lambda: sc.routed_law("besiroglu"), "a law of routed models"),
        (lambda: sc.joint_law(4.0, "besiroglu"), "a joint law"),
        (lambda: sc.frontier("besiroglu"), "a frontier"),
        (lambda: sc.joint_law(0.5), "at least 1"),
        (lambda: sc.fit_loss_law([1e9], [1e10], [2.0]), "at least 8"),
        (lambda: sc.fit_loss_law([1e9] * 9, [1e10] * 8, [2.0] * 9), "shapes"),
        (lambda: sc.isoflop_minimum([1e8, 1e9, 1e10], [2.0, 3.0, 2.0]), "have a minimum"),
        (lambda: sc.known_run("deepseek-v3", LAW, 0.3, {"active_params": 1e12}), "exceed total_params"),
    ],
)
def test_bad_input_is_refused_in_one_line(call: object, words: str) -> None:
    with pytest.raises(RacklineError, match=words) as caught:
        call()  # type: ignore[operator]
    assert "\n" not in str(caught.value)


def test_unknown_law_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="besiroglu"):
        sc.loss_law("besirogl")


class TestPoints:
    def write(self, folder: Path, text: str) -> str:
        file = folder / "runs.csv"
        file.write_text(text, encoding="utf-8")
        return str(file)

    def test_fit_gives_back_the_law_that_made_the_points(self, tmp_path: Path) -> None:
        n, d = np.meshgrid(np.logspace(8, 10, 5), np.logspace(9.5, 11.5, 5))
        lines = [f"{a},{b},{sc.loss(LAW, a, b)}" for a, b in zip(n.ravel(), d.ravel(), strict=True)]
        fitted = sc.fit_file(self.write(tmp_path, "\n".join(["N,D,loss", *lines])))
        assert fitted.median_abs_error < 1e-4
        assert fitted.law.params_exponent == pytest.approx(LAW.params_exponent, rel=0.01)
        assert fitted.law.irreducible_loss == pytest.approx(LAW.irreducible_loss, rel=0.005)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("N,D\n1,2\n", "columns"),
            ("N,D,loss\n1e9,x,2\n", "line 2"),
            ("N,D,loss\n1e9,1e9,2\n", "at least 8"),
            ("", "columns"),
        ],
    )
    def test_bad_files(self, tmp_path: Path, text: str, words: str) -> None:
        with pytest.raises(InputError, match=words):
            sc.fit_file(self.write(tmp_path, text))

    def test_missing_file(self) -> None:
        with pytest.raises(InputError, match="readable CSV"):
            sc.fit_file("no/such.csv")


def test_a_frontier_gives_the_budget_of_a_size() -> None:
    """The budget for which a size is best has that size as its best, and all of it is spent."""
    line = sc.frontier("chinchilla-1")
    sizes = np.array([1e9, 7e10, 1e12])
    found = line.at_params(sizes)
    np.testing.assert_allclose(line.coefficient * np.asarray(found.train_flop) ** line.exponent, sizes, rtol=1e-9)
    np.testing.assert_allclose(6.0 * np.asarray(found.params) * np.asarray(found.tokens), found.train_flop, rtol=1e-12)


def test_a_run_has_the_evidence_of_its_weaker_source() -> None:
    """Size from the vendor and tokens from a paper: not better than the paper."""
    kinds = {run.name: run.evidence for run in sc.known_runs(LAW, 0.3)}
    assert kinds["llama-3.1-405b"] == "paper"
    assert kinds["deepseek-v2"] == "assumed"
    assert kinds["llama-3-70b"] == "vendor"


def test_flop_of_pre_training_are_six_per_parameter_and_token() -> None:
    """Chinchilla: 70B parameters on 1.4T tokens (Hoffmann et al. 2022, table 3: 5.76e23 with their own count)."""
    found = np.asarray(sc.train_flop(np.array([1.0, 70e9]), np.array([1.0, 1.4e12])))
    np.testing.assert_allclose(found, [6.0, 6.0 * 70e9 * 1.4e12], rtol=1e-15)

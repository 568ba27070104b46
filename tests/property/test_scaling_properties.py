"""Scaling laws: what holds for every law, loss and use."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from rackline import scaling as sc

laws = st.builds(
    sc.LossLaw,
    name=st.just("drawn"),
    irreducible_loss=st.floats(0.1, 3.0),
    params_coefficient=st.floats(1.0, 1e4),
    tokens_coefficient=st.floats(1.0, 1e5),
    params_exponent=st.floats(0.1, 0.8),
    tokens_exponent=st.floats(0.1, 0.8),
)
sizes = st.floats(1e7, 1e13)
tokens = st.floats(1e9, 1e15)
uses = st.floats(0.0, 1e19)


@given(laws, sizes, tokens, uses, uses)
def test_more_use_never_asks_for_a_larger_model(
    law: sc.LossLaw, size: float, data: float, less: float, more: float
) -> None:
    target = sc.loss(law, size, data)
    low, high = sorted((less, more))
    few, many = (sc.optimal_allocation(law, target, use) for use in (low, high))
    assert many.params <= few.params * (1 + 1e-9)
    assert many.tokens >= few.tokens * (1 - 1e-9)
    assert many.lifetime_flop >= few.lifetime_flop * (1 - 1e-9)


@given(laws, sizes, tokens, uses)
def test_optimum_reaches_its_loss_and_no_model_of_that_loss_is_cheaper(
    law: sc.LossLaw, size: float, data: float, use: float
) -> None:
    target = sc.loss(law, size, data)
    best = sc.optimal_allocation(law, target, use)
    assert sc.loss(law, best.params, best.tokens) - law.irreducible_loss == pytest.approx(
        target - law.irreducible_loss, rel=1e-6
    )
    assert best.lifetime_flop <= size * (6 * data + use) * (1 + 1e-9)


@given(laws, sizes, tokens)
def test_implied_use_is_the_inverse_of_the_optimum(law: sc.LossLaw, size: float, data: float) -> None:
    use = sc.implied_lifetime_flop_per_param(law, size, data)
    if use > 0:
        assert sc.optimal_tokens_of_params(law, size, use) == pytest.approx(data, rel=1e-6)


@given(st.floats(1e9, 1e15), st.floats(1e9, 1e15), st.floats(1.0, 50.0))
def test_repeats_are_worth_no_more_than_fresh_tokens(data: float, unique: float, useful: float) -> None:
    worth = sc.effective_tokens(data, unique, useful)
    assert min(data, unique) * (1 - 1e-12) <= worth <= data * (1 + 1e-12)
    if data / unique < 10 * useful:  # beyond that the worth no longer tells the repeats apart
        assert sc.tokens_of_effective(worth, unique, useful) == pytest.approx(data, rel=1e-5)


@given(st.floats(1e7, 1e11), st.floats(1.0, 1000.0))
def test_experts_never_make_a_model_worse(active: float, experts: float) -> None:
    size = sc.dense_equivalent_params(sc.routed_law("clark-s-base"), active, np.array([1.0, experts]))
    assert size[0] == pytest.approx(active)
    # beyond the size where the law's two terms cancel, experts stop helping: about 937 B (Clark et al.)
    assert size[1] >= size[0] * (1 - 1e-9)

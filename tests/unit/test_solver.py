"""The one fit: it finds what made the data, keeps what nothing determines at its prior, and never sees what is out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rackline.fitting.solver import Parameter, Values, fit, groups_of, leave_out
from rackline.passes.features import Array

X = np.linspace(1.0, 9.0, 40)
RATE = Parameter(name="rate", start=1.0, spread=1.0)
SHARE = Parameter(name="share", start=0.5, form="share")
SHIFT = Parameter(name="shift", start=0.1, form="plain", low=0.0, high=1.0)
UNUSED = Parameter(name="unused", start=2.0, prior=5.0, spread=0.5)


def model(values: Values) -> Array:
    return values["rate"] * X * (1.0 - values["share"]) + values["shift"]


def errors(values: Values) -> Array:
    return np.log(model(values) / (4.0 * X * 0.75 + 0.3))


@pytest.mark.parametrize("loss", ["robust", "robust cases", "squares"])
def test_planted_values_come_back_in_every_form(loss: str) -> None:
    share = replace(SHARE, start=0.25, spread=1e-4)
    found = fit([replace(RATE, spread=1e6), share, SHIFT], errors, loss=loss).values  # type: ignore[arg-type]
    assert found == pytest.approx({"rate": 4.0, "share": 0.25, "shift": 0.3}, rel=1e-3)


def test_rounding_errors_do_not_move_a_fit() -> None:
    terms = [replace(RATE, spread=1e6), replace(SHARE, start=0.3, spread=1.0), SHIFT]
    random = np.random.default_rng(1)
    wanted = np.log(4.0 * X * 0.75 + 0.3) + random.normal(0.0, 0.1, X.shape)

    def noisy(values: Values) -> Array:
        return (np.log(model(values)) - wanted) * (1.0 + random.normal(0.0, 1e-15, X.shape))

    exact = fit(terms, lambda values: np.log(model(values)) - wanted).values
    assert all(fit(terms, noisy).values == exact for _ in range(20))


def test_a_value_that_no_case_notices_is_zero() -> None:
    shift = replace(SHIFT, form="log", low=None)
    straight = [replace(RATE, spread=1e6), shift]
    found = fit(straight, lambda values: np.log(model({**values, "share": 0.0}) / (3.0 * X))).values
    assert found["shift"] == 0.0
    assert found["rate"] == pytest.approx(3.0, rel=1e-4)


def test_a_parameter_that_nothing_depends_on_goes_to_its_prior() -> None:
    found = fit([replace(RATE, spread=1e6), UNUSED], lambda v: errors({"share": 0.25, "shift": 0.3, **v}))
    assert found.values["unused"] == pytest.approx(5.0, rel=1e-6)
    width = found.spreads()
    assert width[1] == pytest.approx(0.5, rel=1e-3)  # nothing but the prior says where it is
    assert width[0] < 0.05
    assert found.spreads(step=1e-3) == pytest.approx(width, rel=1e-3)


def test_the_stronger_a_prior_the_nearer_is_the_value() -> None:
    def at(spread: float) -> float:
        free = replace(RATE, spread=spread)
        return fit([free], lambda v: errors({"share": 0.25, "shift": 0.3, **v})).values["rate"]

    values = [at(spread) for spread in (1e-3, 0.02, 0.1, 10.0)]
    assert values == sorted(values)
    assert values[0] == pytest.approx(1.0, abs=0.1)
    assert values[-1] == pytest.approx(4.0, rel=1e-3)


def test_an_outlier_counts_little() -> None:
    off = np.zeros(len(X))
    off[3] = 3.0
    free = [replace(RATE, spread=1e6)]

    def wrong(values: Values) -> Array:
        return errors({"share": 0.25, "shift": 0.3, **values}) + off

    robust, squares = (fit(free, wrong, loss=loss).values["rate"] for loss in ("robust", "squares"))
    assert robust == pytest.approx(4.0, rel=0.01)
    assert squares < 3.8


def test_a_bound_holds() -> None:
    tight = replace(SHIFT, high=0.2)
    found = fit([replace(RATE, spread=1e6), tight], lambda v: errors({"share": 0.25, **v})).values
    assert found["shift"] <= 0.2
    assert found["shift"] == pytest.approx(0.2, rel=1e-3)


def test_parameters_that_are_alike_are_drawn_to_each_other() -> None:
    def apart(spread: float) -> float:
        both = [Parameter(name=n, start=1.0, form="plain", alike="x", spread=spread) for n in ("a", "b")]
        found = fit(both, lambda v: np.log([v["a"] / 2.0, v["b"] / 3.0]), loss="robust cases").values
        return found["b"] - found["a"]

    assert apart(1e3) == pytest.approx(1.0, rel=1e-3)
    assert 0.0 < apart(0.01) < 0.1


def test_each_group_is_predicted_by_the_others() -> None:
    values = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    groups = groups_of(["a", "b", "a", "c", "b"])
    assert list(groups) == ["a", "b", "c"]
    told: list[tuple[str, int, int]] = []
    found = list(
        leave_out(
            groups,
            lambda held: float(values[~held].sum()),
            lambda total, held: (total, values[held].tolist()),
            lambda *progress: told.append(progress),
        )
    )
    assert {one.name: one.scored for one in found} == {
        "a": (26.0, [1.0, 4.0]), "b": (13.0, [2.0, 16.0]), "c": (23.0, [8.0]),
    }  # fmt: skip
    assert told == [("a", 1, 3), ("b", 2, 3), ("c", 3, 3)]

"""Expressions over columns: of each row they are what Python makes of the same text."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, strategies as st

from rackline.sweeps.expression import read_expression

COLUMNS = {
    "a": np.array([0.0, 1.0, 2.0, 3.5, -1.0]),
    "b": np.array([2.0, 2.0, -3.0, 0.5, 7.0]),
    "c": np.array([1.0, 3.0, 3.0, -0.25, 0.0]),
}
IN_PYTHON = {"min": min, "max": max, "abs": abs, "floor": math.floor, "ceil": math.ceil}

LEAVES = st.sampled_from(["a", "b", "c", "1", "2.5", "0"])
NUMBERS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from("+-*"), inner),
        st.builds("{}({}, {})".format, st.sampled_from(["min", "max"]), inner, inner),
        st.builds("{}({})".format, st.sampled_from(["abs", "floor", "ceil", "-"]), inner),
    ),
    max_leaves=5,
)
SIGNS = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
COMPARED = st.builds(
    lambda first, others: first + "".join(f" {sign} {one}" for sign, one in others),
    NUMBERS,
    st.lists(st.tuples(SIGNS, NUMBERS), min_size=1, max_size=3),
)
TESTS = st.recursive(
    COMPARED,
    lambda inner: st.one_of(
        st.builds("({})".format, st.lists(inner, min_size=2, max_size=3).map(" and ".join)),
        st.builds("({})".format, st.lists(inner, min_size=2, max_size=3).map(" or ".join)),
        st.builds("(not {})".format, inner),
    ),
    max_leaves=4,
)


def in_python(text: str) -> list[float]:
    """The text for each row, as Python evaluates it."""
    rows = ({key: float(values[at]) for key, values in COLUMNS.items()} for at in range(5))
    return [float(eval(text, {"__builtins__": {}}, {**IN_PYTHON, **row})) for row in rows]


@given(st.one_of(NUMBERS, TESTS))
def test_an_expression_is_what_python_makes_of_it(text: str) -> None:
    found = np.broadcast_to(read_expression(text, "x").value(COLUMNS), 5)
    np.testing.assert_allclose(found.astype(float), in_python(text), rtol=1e-12)


@given(TESTS)
def test_what_is_true_or_false_is_told_apart(text: str) -> None:
    assert read_expression(text, "x").is_test

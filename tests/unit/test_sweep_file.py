"""The sweep file: what it may say, ranges, expressions, and what is refused where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rackline.errors import InputError
from rackline.sweeps.expression import Draws, read_expression
from rackline.sweeps.file import read_file
from rackline.sweeps.space import Chunk, draw, space_of
from rackline.sweeps.sweep import EXAMPLE

PASS: dict[str, Any] = {"model": "llama-3.1-8b", "on": "l40s-8", "layout": "tp=1", "batch": [1, 8], "context": "2k"}


def of(name: str, **tables: Any) -> Any:
    """The values of one quantity of a sweep."""
    found = read_file({"options": PASS, **tables} if "options" not in tables else tables)
    return next(one.values for one in found.axes if one.name == name)


def test_lists_steps_and_units() -> None:
    assert of("context", options={**PASS, "context": ["2k", "8k", 100]}) == (2000.0, 8000.0, 100.0)
    assert of("batch", options={**PASS, "batch": {"log": [1, 8], "num": 4}}) == (1, 2, 4, 8)
    assert of("batch", options={**PASS, "batch": {"linear": [1, 4], "num": 7}}) == (1, 2, 3, 4)  # whole, each once
    assert of("hbm_bytes_per_s", set={"hbm_bytes_per_s": {"linear": ["1TB/s", "3TB/s"], "num": 3}}) == (
        1e12,
        2e12,
        3e12,
    )
    falling = of("context", options={**PASS, "context": {"linear": ["8k", "2k"], "num": 3}})
    assert falling == (8000, 5000, 2000)


def test_dotted_keys_are_one_level() -> None:
    wanted = {"levels": {"scale_up": {"size": [8, 16], "latency_s": "1us"}}, "hbm_bytes": ["80GB"]}
    found = read_file({"options": PASS, "set": wanted})
    assert [one.name for one in found.axes if one.place == "set"] == ["levels.scale_up.size", "hbm_bytes"]
    assert found.settings == {"levels.scale_up.latency_s": 1e-6}


@pytest.mark.parametrize(
    ("form", "first", "second", "median"),
    [
        ("uniform", 1.0, 3.0, 2.0),
        ("log_uniform", 1.0, 4.0, 2.0),
        ("normal", 5.0, 1.0, 5.0),
        ("log_normal", 5.0, 0.3, 5.0),
    ],
)
def test_draws_have_their_median_and_stay_inside(form: str, first: float, second: float, median: float) -> None:
    draws = of("x", inputs={"x": {form: [first, second]}})
    assert isinstance(draws, Draws)
    assert float(draws.at(np.array(0.5))) == pytest.approx(median)
    values = draws.at(np.linspace(0.001, 0.999, 99))
    assert np.all(np.diff(values) > 0)
    if "uniform" in form:
        assert values.min() >= first
        assert values.max() <= second


@pytest.mark.parametrize("method", ["sobol", "latin_hypercube", "random"])
def test_samples_follow_their_seed_and_fill_the_space(method: Any) -> None:
    from rackline.sweeps.file import Sample

    one, again, other = (draw(2, Sample(method=method, num=512, seed=seed)) for seed in (1, 1, 2))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    assert one.shape == (512, 2)
    counts = np.histogramdd(one, bins=(4, 4), range=((0, 1), (0, 1)))[0]
    assert counts.min() > (10 if method == "random" else 24)  # 32 of each on average
    assert 0 < one.min() < one.max() < 1


def test_the_design_of_saltelli_exchanges_one_quantity_at_a_time() -> None:
    from rackline.sweeps.file import Sample

    found = draw(3, Sample(method="saltelli", num=8, seed=0)).reshape(5, 8, 3)
    a, b, *mixed = found
    for place, one in enumerate(mixed):
        assert np.array_equal(one[:, place], b[:, place])
        others = [column for column in range(3) if column != place]
        assert np.array_equal(one[:, others], a[:, others])


def test_expressions_are_arithmetic_of_columns() -> None:
    columns = {"a": np.array([1.0, 4.0]), "b": 2.0, "best.tpot_s": 3.0, "tiers.0.usd": 5.0}
    cases = {
        "a * b + 1": [3.0, 9.0],
        "max(a, b) ** 2": [4.0, 16.0],
        "where(a > b, best.tpot_s, -1)": [-1.0, 3.0],
        "sqrt(a) - tiers[0].usd": [-4.0, -3.0],
        "log2(a) / 0": [np.nan, np.inf],
    }
    for text, values in cases.items():
        np.testing.assert_array_equal(read_expression(text, "x").value(columns), values)
    test = read_expression("1 < a <= 4 and not b > 3 or a == 9", "x")
    assert test.is_test
    assert test.value(columns).tolist() == [False, True]
    assert test.names == ("a", "b")


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "a.__class__()", "open(1)", "[1]", "a if b else c", "lambda: 1", "'text'", "min(a)", "f(a)",
     "a[b]", "(1).real", "a := 1", "True", "", "1 +", "a" * 2000, "-" * 400 + "1", "a[-1]", "min(*a, b)"],
)  # fmt: skip
def test_expressions_are_nothing_else(text: str) -> None:
    with pytest.raises(InputError, match="derived x"):
        read_file({"options": PASS, "derived": {"x": text}})


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"opitons": {}}, "nearest: options"),
        ({"ask": "explian"}, "nearest: explain"),
        ({"ask": "lecture"}, "allowed: plan, afford, price"),
        ({"options": {**PASS, "contxt": 1}}, "nearest: context"),
        ({"options": {"model": "llama-3.1-8b"}}, "options.on: got 'nothing'"),
        ({"options": {**PASS, "batch": []}}, "an empty list"),
        ({"options": {**PASS, "batch": [1, 1]}}, "each value once"),
        ({"options": {**PASS, "batch": {"log": [0, 8], "num": 3}}}, "batch log: got .0.0, 8.0."),
        ({"options": {**PASS, "batch": {"log": [1, 8]}}}, "batch num: got 'nothing'"),
        ({"options": {**PASS, "batch": {"logg": [1, 8], "num": 3}}}, "nearest: log"),
        ({"options": {**PASS, "batch": {"log": [1, 8], "num": 3, "seed": 1}}}, "got 'seed'"),
        ({"options": {**PASS, "batch": {"log": [1, 8, 9], "num": 3}}}, "two values"),
        ({"options": {**PASS, "batch": -1}}, "batch: got -1"),
        ({"options": {**PASS, "set": ["a=1"]}}, r"a table \[set\]"),
        ({"options": {**PASS, "model": {"linear": ["a", "b"], "num": 2}}}, "names and texts are listed"),
        ({"set": {"hbm_bytes_per_s": ["20TB/x"]}}, "hbm_bytes_per_s"),
        ({"inputs": {"x": "3"}}, "a number in SI units"),
        ({"inputs": {"x": {"normal": [1, 0]}}}, "a mean and a deviation"),
        ({"inputs": {"x": {"uniform": [1, 2]}}, "sample": {"num": 1000}}, "nearest: 1024"),
        ({"inputs": {"x": {"uniform": [1, 2]}}, "sample": {"methd": "sobol"}}, "nearest: method"),
        ({"sample": {"num": 8}}, "a quantity with a distribution"),
        ({"constraints": {"c": "server_s * 2"}}, "a comparison"),
        ({"objectives": {"server_s": "least"}}, "min, max"),
        ({"output": {"float_bits": 16}}, "32 or 64"),
        ({"output": {"results": "server_s"}}, "a list of names"),
        ({"derived": {"batch": "1"}}, "another name"),
        ({"derived": {"reason": "1"}}, "a column of every sweep"),
        ({"options": 3}, r"a table \[options\]"),
    ],
)
def test_refusals_name_the_place_and_what_is_allowed(tables: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_file({"options": PASS, **tables})


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"derived": {"x": "servr_s * 2"}}, "nearest: server_s"),
        ({"constraints": {"c": "y < 1"}}, "constraints c: got 'y'"),
        ({"objectives": {"usd": "min"}}, "nearest: usd_per_mtok_output"),
        ({"output": {"results": ["sevrer_s"]}}, "nearest: server_s"),
        ({"options": {**PASS, "layout": "cheepest"}}, "nearest: cheapest"),
        ({"options": {**PASS, "layout": ["cheapest", "tp=1"]}}, "a rule by itself"),
        ({"options": {**PASS, "layout": "tp=1,dp=2"}}, "without dp"),
        (
            {"ask": "fit", "options": {"model": "llama-3.1-8b", "on": ["l40s-8"]}, "output": {"results": ["fts"]}},
            "fits",
        ),
    ],
)
def test_columns_are_checked_before_anything_runs(tables: dict[str, Any], words: str) -> None:
    from rackline.sweeps.chunk import job_of

    with pytest.raises(InputError, match=words):
        job_of(read_file({"options": PASS, **tables}))


def test_files_say_where_they_are_wrong(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("ask = \n")
    with pytest.raises(InputError, match=r"a\.toml: got .*line 1"):
        read_file(path)
    path.write_text('[options]\nmodel = "m"\non = "c"\nbatch = 1\ncontext = "2parsec"\n')
    with pytest.raises(InputError, match=r"a\.toml: context: got '2parsec'"):
        read_file(path)
    with pytest.raises(InputError, match="sweep"):
        read_file(tmp_path / "none.toml")


def test_the_example_is_a_sweep(tmp_path: Path) -> None:
    path = tmp_path / "example.toml"
    path.write_text(EXAMPLE)
    found = read_file(path)
    assert found.is_compiled
    assert found.objectives == {"usd_per_mtok": "min", "server_s": "min"}
    assert found.numbers["utilisation"] == 0.6


def test_chunks_hold_every_point_once() -> None:
    found = read_file(
        {
            "options": {**PASS, "on": ["l40s-8", "dgx-h100"], "batch": [1, 2, 3], "context": [1, 2, 3, 4, 5]},
            "inputs": {"x": [1, 2], "y": {"uniform": [1, 2]}},
            "sample": {"num": 4},
        }
    )
    levels: Any = {"on": "table", "batch": "point", "context": "point", "x": "after", "y": "after"}
    space = space_of(found.axes, found.sample, lambda one: levels[one.name])
    assert space.num_points == 2 * 15 * 8
    for rows in (1, 3, 8, 20, 100, 130, 1000):
        seen: dict[tuple[int, ...], int] = {}
        for chunk in space.chunks(rows):
            assert chunk.num_points <= max(rows, 1) or rows == 1
            for point in _points(chunk):
                seen[point] = seen.get(point, 0) + 1
        assert len(seen) == space.num_points
        assert set(seen.values()) == {1}
    part = space.part("point", (0, 15))
    pairs = list(zip(part.values("batch"), part.values("context"), strict=True))
    assert len(set(pairs)) == 15
    assert pairs[:2] == [(1, 1), (1, 2)]


def _points(chunk: Chunk) -> list[tuple[int, ...]]:
    bounds = (chunk.tables, chunk.lanes, chunk.points, chunk.after)
    grid = np.meshgrid(*(np.arange(*one) for one in bounds), indexing="ij")
    return [tuple(row) for row in np.stack(grid, axis=-1).reshape(-1, 4).tolist()]

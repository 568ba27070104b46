"""What is read from a sweep: fronts, groups, sensitivities, constraints, crossovers, SQL; searches."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, strategies as st

import rackline as rl
from rackline.api.answer import Watch
from rackline.cli.main import run as command
from rackline.errors import InputError
from rackline.sweeps.optimum import optimum
from rackline.sweeps.read import Results, front_of
from rackline.sweeps.sensitivity import bands, sensitivities, tornado

SPACE: dict[str, Any] = {
    "title": "Two clusters",
    "options": {
        "model": "llama-3.1-8b",
        "on": ["l40s-8", "dgx-h100"],
        "layout": "cheapest",
        "batch": {"log": [1, 512], "num": 20},
        "context": ["1k", "4k", "16k"],
    },
    "constraints": {"fast": "server_s <= 0.03", "roomy": "max_sequences >= 20"},
    "objectives": {"usd_per_mtok_output": "min", "server_s": "min"},
    "output": {"rows_per_shard": 17, "float_bits": 64},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    out = str(tmp_path_factory.mktemp("sweep") / "a")
    rl.sweep(SPACE, out=out, workers=1)
    return out


@given(st.lists(st.tuples(*[st.integers(0, 6)] * 3), min_size=1, max_size=60))
def test_fronts_are_those_of_the_definition(points: list[tuple[int, int, int]]) -> None:
    for columns in (1, 2, 3):
        values = np.array(points, dtype=float)[:, :columns]
        kept = {tuple(row) for row in values[front_of(values)].tolist()}
        best = {
            tuple(a)
            for a in values.tolist()
            if not any(all(x <= y for x, y in zip(b, a, strict=True)) and b != a for b in values.tolist())
        }
        assert kept == best
        assert len(front_of(values)) == len(best)


@pytest.mark.parametrize(
    "objectives",
    [
        {"usd_per_mtok_output": "min", "server_s": "min"},
        {"server_s": "min"},
        {"output_tokens_per_s_per_chip": "max", "server_s": "min", "max_sequences": "max"},
        {"context": "max", "usd_per_mtok_output": "min"},
    ],
)
def test_the_front_of_all_shards_is_that_of_all_rows(objectives: dict[str, Any], folder: str) -> None:
    results = Results.of(folder)
    assert len(results.names) > 5
    found = results.front(objectives)
    every = results.scan().filter("feasible").collect()
    signs = [1 if sense == "min" else -1 for sense in objectives.values()]
    values = every.select(list(objectives)).to_numpy() * signs
    wanted = every[front_of(values).tolist()].select(list(objectives))
    assert found.select(list(objectives)).sort(pl.all()).equals(wanted.sort(pl.all()))
    assert found["feasible"].all()


def test_the_best_of_each_group(folder: str) -> None:
    results = Results.of(folder)
    found = results.best(["on", "context"], "usd_per_mtok_output", "min")
    every = results.scan().filter("feasible").collect()
    assert found.height == every.select("on", "context").unique().height > 3
    for row in found.iter_rows(named=True):
        mine = every.filter((pl.col("on") == row["on"]) & (pl.col("context") == row["context"]))
        assert row["usd_per_mtok_output"] == mine["usd_per_mtok_output"].min()


def test_where_constraints_bind(folder: str) -> None:
    results = Results.of(folder)
    every = results.scan().collect()
    found = {one.constraint: one for one in results.binding("usd_per_mtok_output", "min")}
    assert set(found) == {"fast", "roomy", "memory and others"}
    fits = every["reason"].is_null()
    alone = (~every["fast"] & every["roomy"] & fits).mean()
    assert found["fast"].broken == pytest.approx((~every["fast"]).mean())
    assert found["fast"].alone == pytest.approx(alone)
    assert alone
    without = every.filter(every["roomy"] & fits)["usd_per_mtok_output"].min()
    assert found["fast"].best_without == without
    assert found["fast"].best == every.filter("feasible")["usd_per_mtok_output"].min()


def test_crossovers_lie_where_the_curves_cross(folder: str) -> None:
    results = Results.of(folder)
    found = results.crossovers("on", "batch", "usd_per_mtok_output", "min")
    every = results.scan().filter("feasible").collect()
    best = every.group_by("on", "batch").agg(pl.col("usd_per_mtok_output").min()).sort("batch")
    winners = [part.sort("usd_per_mtok_output")["on"][0] for _, part in best.group_by("batch", maintain_order=True)]
    assert len(found.points) == sum(a != b for a, b in itertools.pairwise(winners))


def test_a_crossover_of_two_lines(tmp_path: Path) -> None:
    """y = batch and y = 10 + batch / 2 cross at 20."""
    space = {
        "options": {
            "model": "llama-3.1-8b",
            "on": "l40s-8",
            "layout": "tp=1",
            "batch": [1, 4, 16, 25, 64],
            "context": 100,
        },
        "inputs": {"way": [1, 2]},
        "derived": {"y": "where(way == 1, batch, 10 + batch / 2)"},
        "objectives": {"y": "min"},
    }
    rl.sweep(space, out=str(tmp_path / "a"))
    found = rl.sweep_show(str(tmp_path / "a"), options_of="way", along="batch").result.crossovers
    assert found is not None
    (point,) = found.points
    assert (point.before, point.after) == ("1", "2")
    assert point.at == pytest.approx(20, rel=0.03)  # between 16 and 25, in logarithms


def test_indices_of_a_grid_are_those_of_an_analysis_of_variance(tmp_path: Path) -> None:
    """y = x + 2 z + x z on a grid: the shares follow by hand."""
    space = {
        "options": {"model": "llama-3.1-8b", "on": "l40s-8", "layout": "tp=1", "batch": [1, 2], "context": "1k"},
        "inputs": {"x": [-1.0, 1.0], "z": [-1.0, 1.0]},
        "derived": {"y": "x + 2 * z + x * z"},
        "objectives": {"y": "min"},
        "output": {"float_bits": 64},
    }
    rl.sweep(space, out=str(tmp_path / "a"))
    found = {one.quantity: one for one in sensitivities(Results.of(str(tmp_path / "a")), "y")}
    assert found["x"].first == pytest.approx(1 / 6)
    assert found["z"].first == pytest.approx(4 / 6)
    assert found["x"].total == pytest.approx(2 / 6)
    assert found["z"].total == pytest.approx(5 / 6)
    assert found["batch"].total == pytest.approx(0)
    effects = {one.quantity: one for one in tornado(Results.of(str(tmp_path / "a")), "y")}
    assert effects["z"].at_high - effects["z"].at_low == pytest.approx(4.0)


@pytest.mark.parametrize(("method", "num"), [("saltelli", 1024), ("sobol", 4096)])
def test_indices_of_draws_hold_the_known_ones_of_ishigami(method: str, num: int, tmp_path: Path) -> None:
    """Ishigami's function without its sine of the first: a x² + b z with known variances, uniform draws."""
    space = {
        "options": {"model": "llama-3.1-8b", "on": "l40s-8", "layout": "tp=1", "batch": 1, "context": "1k"},
        "inputs": {"x": {"uniform": [-1, 1]}, "z": {"uniform": [-1, 1]}, "w": {"normal": [0, 1]}},
        "sample": {"method": method, "num": num, "seed": 5},
        "derived": {"y": "3 * x ** 2 + z + 0.5 * x * w"},
        "objectives": {"y": "min"},
        "output": {"float_bits": 64},
    }
    rl.sweep(space, out=str(tmp_path / "a"))
    # Var(3x²) = 9 · 4/45, Var(z) = 1/3, Var(xw/2) = 1/12
    parts = np.array([9 * 4 / 45, 1 / 3, 1 / 12])
    first = dict(zip("xzw", [parts[0], parts[1], 0.0] / parts.sum(), strict=True))
    total = dict(zip("xzw", [parts[0] + parts[2], parts[1], parts[2]] / parts.sum(), strict=True))
    for one in sensitivities(Results.of(str(tmp_path / "a")), "y"):
        assert one.first == pytest.approx(first[one.quantity], abs=0.05)
        assert one.first_low is not None
        assert one.first_high is not None
        assert one.first_low - 0.03 <= first[one.quantity] <= one.first_high + 0.03
        if method == "saltelli":
            assert one.total == pytest.approx(total[one.quantity], abs=0.03)
            assert one.total_high is not None
            assert one.total_high - one.total_low < 0.2  # type: ignore[operator]


def test_bands_are_quantiles_of_the_draws(tmp_path: Path) -> None:
    space = {
        "options": {"model": "llama-3.1-8b", "on": "l40s-8", "layout": "tp=1", "batch": [1, 4, 16], "context": "1k"},
        "inputs": {"x": {"uniform": [1, 2]}},
        "sample": {"num": 256},
        "derived": {"y": "x * batch"},
        "objectives": {"y": "min"},
    }
    rl.sweep(space, out=str(tmp_path / "a"))
    found = bands(Results.of(str(tmp_path / "a")), "y", "batch", None)
    assert found["batch"].to_list() == [1, 4, 16]
    assert np.allclose(found["p50"] / found["batch"], 1.5, atol=0.02)
    assert np.allclose(found["p95"] / found["batch"], 1.95, atol=0.02)
    figure = rl.sweep_show(str(tmp_path / "a"), along="batch").plot("bands")
    assert len(figure.rows) == 3


def test_sql_reads_the_same_rows(folder: str) -> None:
    found = rl.sweep_show(folder, sql='SELECT "on", count(*) AS n FROM sweep GROUP BY "on" ORDER BY "on"')
    every = Results.of(folder).scan().collect()
    half = every.height // 2
    assert found.result.values == (("dgx-h100", half), ("l40s-8", half))
    assert found.to_frame()["n"].sum() == every.height
    with pytest.raises(InputError, match="SQL over the table sweep"):
        rl.sweep_show(folder, sql="SELECT nothing FROM sweep")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"objectives": "servr_s"}, "nearest: server_s"),
        ({"objectives": "server_s=least"}, "COLUMN=min"),
        ({"objectives": "on"}, "a column of numbers"),
        ({"by": "onn"}, "nearest: on"),
        ({"along": "on"}, "along: got 'on'"),
        ({"options_of": "batch", "along": "batch"}, "another quantity"),
    ],
)
def test_refusals(options: dict[str, Any], words: str, folder: str) -> None:
    with pytest.raises(InputError, match=words):
        rl.sweep_show(folder, **options)


def test_the_command_shows_all_of_it(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["sweep", "show", folder]) == 0
    said = capsys.readouterr().out
    for words in ("Two clusters", "feasible", "Pareto front", "where constraints bind", "Sobol' indices", "tornado"):
        assert words in said
    for kind in ("front", "options", "sensitivity", "tornado"):
        path = tmp_path / f"{kind}.json"
        assert command(["sweep", "show", folder, "--plot", str(path), "--plot-kind", kind]) == 0
        assert json.loads(path.read_text())["title"]["text"] == "Two clusters"
    capsys.readouterr()
    assert command(["sweep", "show", folder, "--plot", str(tmp_path / "b.json"), "--plot-kind", "bands"]) == 2
    assert command(["sweep-show", folder, "--json"]) == 0


# ------------------------------------------------------------------------------------------------ search


def brute(space: dict[str, Any], out: Path) -> float:
    rl.sweep(space, out=str(out))
    name, sense = next(iter(space["objectives"].items()))
    values = Results.of(str(out)).scan().filter("feasible").collect()[name]
    return float(values.min() if sense == "min" else values.max())  # type: ignore[arg-type]


SEARCHES: list[dict[str, Any]] = [
    {
        "options": {"model": "gpt-oss-120b", "on": ["dgx-h100", "dgx-h200", "l40s-8"], "layout": "cheapest",
                    "batch": {"linear": [1, 400], "num": 400}, "context": ["1k", "3k", "9k", "27k"]},
        "constraints": {"fast": "server_s <= 0.02"},
        "objectives": {"usd_per_mtok_output": "min"},
    },
    {
        "options": {"model": "llama-3.1-70b", "on": "dgx-h200", "layout": ["tp=1", "tp=2", "tp=4", "tp=8", "tp=4,pp=2"],
                    "precision": ["bf16", "fp8"], "batch": {"linear": [1, 300], "num": 300}, "context": "4k"},
        "set": {"hbm_bytes_per_s": {"linear": ["2TB/s", "9TB/s"], "num": 8}},
        "constraints": {"fast": "server_s * hbm_bytes_per_s <= 1.2e11"},
        "objectives": {"output_tokens_per_s_per_chip": "max"},
    },
    {
        "options": {"model": "llama-3.1-8b", "on": "l40s-8", "layout": "tp=1",
                    "batch": {"linear": [1, 200], "num": 200}, "context": {"linear": [100, 20000], "num": 100}},
        "derived": {"score": "abs(server_s - 0.031) + abs(context - 7000) / 1e6 + where(batch % 7 == 3, 0, 0.01)"},
        "objectives": {"score": "min"},
    },
]  # fmt: skip


@pytest.mark.parametrize("space", SEARCHES)
def test_a_search_finds_what_all_points_hold(space: dict[str, Any], tmp_path: Path) -> None:
    space = {**space, "output": {"float_bits": 64}}
    best = brute(space, tmp_path / "a")
    found = optimum(space, 1500, Watch())
    assert found.how == "search"
    assert found.evaluations <= 1500 < found.points
    assert found.value == pytest.approx(best, rel=1e-9)


def test_small_spaces_are_looked_at_whole_and_impossible_ones_said(tmp_path: Path) -> None:
    found = rl.sweep(SPACE, search=True).result
    assert found.how == "all points"
    assert found.evaluations == found.points > 100
    assert found.value == pytest.approx(brute(SPACE, tmp_path / "a"))
    none = rl.sweep({**SPACE, "constraints": {"never": "server_s < 0"}}, search=True).result
    assert none.best is None
    with pytest.raises(InputError, match="together with `search`"):
        rl.sweep(SPACE, evaluations=5)


def test_quantities_without_steps_are_searched_too() -> None:
    space = {
        "options": {"model": "llama-3.1-8b", "on": "l40s-8", "layout": "tp=1", "batch": 4, "context": "1k"},
        "inputs": {"x": {"uniform": [0, 10]}, "z": {"uniform": [-5, 5]}},
        "derived": {"y": "(x - 3.3) ** 2 + (z + 1) ** 2 + server_s"},
        "objectives": {"y": "min"},
    }
    found = rl.sweep(space, search=True, evaluations=4000).result
    assert found.best is not None
    assert found.best["x"] == pytest.approx(3.3, abs=0.02)
    assert found.best["z"] == pytest.approx(-1, abs=0.02)


def test_questions_are_searched_one_by_one() -> None:
    space = {
        "ask": "fit",
        "options": {"model": "llama-3.1-8b", "on": ["l40s-8", "dgx-h100"], "context": ["1k", "2k", "4k", "8k"]},
        "output": {"results": ["rows.0.max_concurrency"]},
        "derived": {"tokens": "rows[0].max_concurrency * context"},
        "objectives": {"tokens": "max"},
    }
    found = rl.sweep(space, search=True).result
    assert found.how == "all points"
    assert found.best is not None
    assert found.best["on"] == "dgx-h100"


def test_only_rows_that_keep_a_condition(folder: str) -> None:
    some, every = Results.of(folder, "context = 4000 AND \"on\" = 'l40s-8'"), Results.of(folder).scan().collect()
    wanted = every.filter((pl.col("context") == 4000) & (pl.col("on") == "l40s-8"))
    assert some.scan().collect().equals(wanted)
    objectives: Any = {"usd_per_mtok_output": "min", "server_s": "min"}
    front = some.front(objectives)
    values = wanted.filter("feasible").select(list(objectives)).to_numpy()
    assert front.height == len(front_of(values))
    assert front["context"].unique().to_list() == [4000]
    for where in ("contxt = 1", "context + 1", "context ="):
        with pytest.raises(InputError, match="where: got"):
            Results.of(folder, where)

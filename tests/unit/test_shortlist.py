"""A search in parts that drops what cannot win gives the answer of a search that looks at everything at once."""

import importlib

import numpy as np
import pytest

from helpers import planned
from rackline.arch import model
from rackline.hardware import cluster
from rackline.passes import calibration
from rackline.passes.features import Array
from rackline.plain import plain
from rackline.search import pareto_front
from rackline.search.points import OperatingPoints, Shortlist
from rackline.search.single_engines import nearest_violations
from rackline.serving.workload import Workload
from rackline.system import Constraints

shortlist, evaluate = (importlib.import_module(f"rackline.search.{name}") for name in ("points", "space"))
LIMITS = Constraints(tpot_s=0.5, ttft_s=0.6)


@pytest.mark.parametrize(
    ("name", "on", "chips", "limits"),
    [
        ("deepseek-v3", "gb200-nvl72", 16, Constraints(tpot_s=0.03, ttft_s=2.0)),
        ("deepseek-v3", "gb200-nvl72", 16, Constraints(tpot_s=0.0001, ttft_s=2.0)),
        ("llama-3.1-70b", "dgx-h100", 8, Constraints(tpot_s=0.05)),
        ("llama-3.1-70b", "dgx-h100", 8, Constraints()),
    ],
)
def test_a_search_in_small_parts_finds_the_same(
    name: str, on: str, chips: int, limits: Constraints, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = cluster(on).with_num_chips(chips)

    def answer() -> dict[str, object]:
        return plain(
            planned(
                model(name),
                place,
                Workload(input_len=4000, output_len=1000),
                calibration=calibration("auto", place.chip),
                constraints=limits,
                served=False,
            )
        )

    whole = answer()
    timed = 0

    def count(points: OperatingPoints, *given: object) -> OperatingPoints:
        nonlocal timed
        timed += len(points)
        return keep(points, *given)

    keep = shortlist.worth_keeping
    monkeypatch.setattr(shortlist, "worth_keeping", count)
    monkeypatch.setattr(shortlist, "MOST_WAITING", 500)
    monkeypatch.setattr(evaluate, "LAYOUTS_AT_ONCE", 7)
    monkeypatch.setattr(shortlist, "MOST_RANKED", 100)
    parts = answer()
    assert timed, "nothing was sorted out"
    _alike(whole, parts)


def _alike(a: object, b: object, where: str = "") -> None:
    if isinstance(a, dict):
        assert isinstance(b, dict), where
        assert a.keys() == b.keys(), where
        for name in a:
            _alike(a[name], b[name], f"{where}.{name}")
    elif isinstance(a, list | tuple):
        assert isinstance(b, list | tuple), where
        assert len(a) == len(b), where
        for index, (one, other) in enumerate(zip(a, b, strict=True)):
            _alike(one, other, f"{where}[{index}]")
    else:
        assert a == (pytest.approx(b, rel=1e-12) if isinstance(a, float) else b), where


def _random(rng: np.random.Generator, size: int) -> tuple[OperatingPoints, OperatingPoints]:
    """Points with many equal values, and lower bounds of them."""

    def draw(low: float, high: float) -> Array:
        return np.round(rng.uniform(low, high, size), 1)

    points = OperatingPoints(
        engine=np.arange(size),
        kind=np.zeros(size, dtype=int),
        per_rank=np.ones(size),
        tpot_s=draw(0.1, 1.0),
        ttft_s=(ttft_s := draw(0.1, 1.0)),
        alone_s=ttft_s,
        cost=draw(1.0, 9.0),
        rate=draw(1.0, 9.0),
        free_bytes=1e9 * draw(-1.0, 2.0),
        utilisation=draw(0.2, 1.3),
        prompt_cost_share=draw(0.0, 1.0),
        steepness=np.zeros(size),
    )
    loose = rng.uniform(0.3, 1.0, size)
    bounds = OperatingPoints(
        engine=points.engine,
        kind=points.kind,
        per_rank=points.per_rank,
        tpot_s=points.tpot_s * loose,
        ttft_s=np.zeros(size),
        alone_s=np.zeros(size),
        cost=points.cost * loose,
        rate=points.rate,
        free_bytes=points.free_bytes,
        utilisation=np.where(points.utilisation >= 1.0, points.utilisation, 0.0),
        prompt_cost_share=points.prompt_cost_share,
        steepness=points.steepness,
    )
    return points, bounds


@pytest.mark.parametrize("seed", range(20))
def test_what_is_dropped_is_in_no_answer(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortlist, "MOST_WAITING", 300)
    monkeypatch.setattr(shortlist, "MOST_RANKED", 20)
    rng = np.random.default_rng(seed)
    points, bounds = _random(rng, 5000)
    found = Shortlist(limits=LIMITS)
    order = rng.permutation(50)
    for block in order:
        some = np.arange(block * 100, block * 100 + 100)
        wanted = found.wanted(bounds.take(some))
        found.add(points.take(some[wanted]))
    kept = found.points()
    assert found.looked_at == 5000
    assert len(kept) < 1500

    def front(of: OperatingPoints) -> list[int]:
        return of.engine[pareto_front(np.where(of.serves, 1.0 / of.tpot_s, np.nan), of.cost)].tolist()

    def cheapest(of: OperatingPoints) -> list[int]:
        good = np.flatnonzero(of.serves & of.meets(LIMITS))
        return of.engine[good[np.argsort(of.cost[good], kind="stable")][:20]].tolist()

    def rejected(of: OperatingPoints, best_cost: float) -> list[object]:
        found = nearest_violations(of, LIMITS, best_cost)
        return [(limit, int(of.engine[at]), excess) for limit, at, excess in found]

    assert front(kept) == front(points)
    assert cheapest(kept) == cheapest(points)
    for best_cost in (0.5, 2.0, 3.3, 7.0, np.inf):
        assert rejected(kept, best_cost) == rejected(points, best_cost)

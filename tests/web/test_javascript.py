"""The pass in JavaScript is the pass in Python: 10,000 random points a scenario, to 1e-12."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from node import run

from helpers import deploy, numbers
from rackline.errors import InputError
from rackline.parallel import Deployment
from rackline.passes import PassTable
from rackline.passes.features import GROUP_TOKENS
from rackline.passes.javascript import (
    PRELUDE,
    Lines,
    Traced,
    compile_table,
    experts_javascript,
    function,
    row_features,
    rows_javascript,
    step_javascript,
)

POINTS = 10_000
CASES = {
    "dense": ("llama-3.1-70b", "tp=8", "dgx-h100", "bf16", "vllm", None),
    "expert parallel": ("deepseek-v3", "attention_dp=32,ep=32", "gb200-nvl72", "fp8", "sglang", None),
    "beyond the domain": ("deepseek-v3", "attention_dp=16,ep=16", "h100-96", "fp8", "vllm", "overlap"),
    "windows": ("gpt-oss-120b", "tp=4,ep=4", "dgx-h100", "bf16", "vllm", None),
    "blackboard": ("deepseek-v3", "attention_dp=32,ep=32", "gb200-nvl72", "fp8", "unit", "blackboard"),
    "sparse": ("deepseek-v3.2", "tp=8,ep=8", "dgx-b200", "fp8", "vllm", None),
}


def _table(case: str) -> tuple[Deployment, PassTable, Any]:
    model, layout, on, label, calibration, policy = CASES[case]
    deployment = deploy(model, layout, on=on, label=label).with_calibration(numbers(calibration, on))
    return deployment, deployment.table(), policy


def _points(names: tuple[str, ...]) -> np.ndarray:
    """Random features, one in ten of them 0, over nine orders of magnitude."""
    rng = np.random.default_rng(20261122)
    values = 10.0 ** rng.uniform(-1.0, 8.0, (POINTS, len(names)))
    return np.where(rng.random(values.shape) < 0.1, 0.0, values)


def _agree(found: Any, wanted: np.ndarray) -> None:
    """To 1e-12 of the larger of the value and the time of a launch: a difference of equal times is rounding."""
    np.testing.assert_allclose(np.array(found), wanted, rtol=1e-12, atol=1e-18)


@pytest.mark.parametrize("case", CASES)
def test_a_pass_in_javascript_is_that_in_python(case: str, tmp_path: Path) -> None:
    _, table, policy = _table(case)
    step = compile_table(table, policy)
    points = _points(step.parameters)
    script = f"{PRELUDE}const step={step_javascript(step)};return points.map(point=>step(...point))"
    _agree(run(script, points.tolist(), tmp_path), np.array([step.call(*point) for point in points.tolist()]))


@pytest.mark.parametrize("case", CASES)
def test_rows_in_javascript_are_those_in_python(case: str, tmp_path: Path) -> None:
    _, table, policy = _table(case)
    names = row_features(compile_table(table, policy), table.experts)
    points = _points(names)[:300]
    script = f"{PRELUDE}const rows={rows_javascript(table.numbers().in_use(), names)};return points.map(p=>rows(...p))"
    found = np.array(run(script, points.tolist(), tmp_path)).reshape(len(points), -1, 4)
    breakdown = table.breakdown("serial")
    for point, mine in zip(points.tolist(), found, strict=True):
        time = breakdown.time({"1": 1.0, **dict(zip(names, point, strict=True))})
        rows = [row for row, numbers in zip(time.rows, time.breakdown.numbers.rows, strict=True) if numbers.known]
        _agree(mine[:, 3], np.array([row.seconds for row in rows]))
        _agree(mine[:, 2], np.array([row.overhead_s for row in rows]))
        _agree(mine[:, :2].max(axis=1), np.array([max(row.resource_s.values(), default=0.0) for row in rows]))


def test_the_busiest_rank_in_javascript_is_that_in_python(tmp_path: Path) -> None:
    load: Any = _table("expert parallel")[1].experts
    groups = _points((GROUP_TOKENS,))[:, 0]
    found = run(f"{PRELUDE}return points.map({experts_javascript(load)})", groups.tolist(), tmp_path)
    wanted = np.stack([load.expert_tokens(groups), load.experts_touched(groups)], axis=1)
    np.testing.assert_allclose(np.array(found), wanted, rtol=1e-11)


def test_a_formula_is_traced_with_its_shared_parts_once(tmp_path: Path) -> None:
    def formula(a: Any, b: Any) -> list[Any]:
        ratio = np.where(b > 1.0, a / b, -a)
        return [np.minimum(ratio, 2.0) ** 2, np.rint(a) + np.sqrt(a / b), np.clip(a / b, 0.5, 3.0), 1.0 - np.floor(a)]

    code = function(["a", "b"], formula)
    assert code.count("a/b") == 1
    points = np.random.default_rng(1).uniform(0.1, 5.0, (1000, 2))
    points[:5, 0] = [0.5, 1.5, 2.5, 3.5, 4.0]  # halves are rounded to the even number
    found = run(f"{PRELUDE}const f={code};return points.map(point=>f(...point))", points.tolist(), tmp_path)
    np.testing.assert_allclose(np.array(found), np.stack(formula(*points.T), axis=1), rtol=1e-14)


def test_a_branch_on_a_traced_number_is_refused() -> None:
    with pytest.raises(InputError, match=r"np\.where"):
        function(["a"], lambda a: a if a > 1.0 else 0.0)
    with pytest.raises(TypeError):
        np.cumsum(Traced(Lines(), "a"))  # pyright: ignore
    for unknown in (np.any, np.all):
        with pytest.raises(TypeError):
            unknown(Traced(Lines(), "a") > 1.0)

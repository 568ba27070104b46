"""One plan asked through every door gives the same numbers: twenty of the deployments that bench/agreement.py draws.

What the doors give to the search is compared with all that it reads; bench/agreement.py lets each search by itself.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts import load_script

SCRIPT = load_script("agreement")
DRAWN = list(SCRIPT.cases(24))
CASES = [  # one of prompts that repeat, which take four times as long
    *[case for case in DRAWN if "turns" not in case][:19],
    next(case for case in DRAWN if "turns" in case),
]
DOORS = {"command line", "ask", "HTTP body", "HTTP address", "sweep", "what-if", "compare", "explain", "fit"}


@pytest.mark.slow
@pytest.mark.usefixtures("searched_once")
@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_a_plan_is_the_same_through_every_door(case: dict[str, object], tmp_path: Path) -> None:
    differ, asked = SCRIPT.disagreements(case, tmp_path)
    assert differ == [], json.dumps(case)
    assert {"command line", "ask", "sweep"} <= set(asked) <= DOORS


def test_every_stack_workload_and_option_is_drawn() -> None:
    drawn = list(SCRIPT.cases(300))
    assert len({json.dumps(case, sort_keys=True) for case in drawn}) == 300
    assert {case["calibration"] for case in drawn} == set(SCRIPT.STACKS)
    for part in (*SCRIPT.DEPLOYMENTS, *SCRIPT.OBJECTIVES, *SCRIPT.WORKLOADS, *SCRIPT.OPTIONS):
        assert any(part.items() <= case.items() for case in drawn), part


def test_a_door_that_loses_an_option_is_noticed() -> None:
    known = {"best": {"tpot_s": 0.02, "mode": "chunked"}, "elapsed_s": 1.0}
    differences = SCRIPT.differences
    assert (
        list(differences(known, {"best": {"tpot_s": 0.02 * (1 + 1e-12), "mode": "chunked"}}))
        == [".elapsed_s: gone"][1:]
    )
    assert list(differences(known, {"best": {"tpot_s": 0.02001, "mode": "chunked"}}))
    assert list(differences(known, {"best": {"tpot_s": 0.02}}))
    assert list(differences(known, {"refused": "chips: got 0"}))
    assert list(differences({"refused": "`chips`: got 0"}, {"refused": "--chips: got 0"})) == []

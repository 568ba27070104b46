"""Which deployments are simulated, and which of them wins."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from helpers import system
from rackline.parallel import Layout, Routing
from rackline.search import Choice, SearchSpace, plan
from rackline.search.finalists import serve_kinds
from rackline.search.served import Group, Service, Simulated
from rackline.search.sustained_rate import NoSustainedRate, SustainedRate, sustained_rate
from rackline.serving.workload import Workload
from rackline.simulation import Requests, Result
from rackline.system import Constraints, Demand


@cache
def small_plan() -> tuple[Choice, Service]:
    """One layout, with a rate that holds."""
    serves = system("llama-3.1-8b", on="dgx-h100", calibration="vllm", routing=Routing()).with_chips(1)
    demand = Demand(workload=Workload(input_len=1500, output_len=100), limits=Constraints(tpot_s=0.02, ttft_s=1.0))
    found = plan(serves, demand, SearchSpace(layouts=[Layout()]), prefill=None).best
    assert found is not None
    assert found.sustained is not None
    return found, Service(system=serves, prefill_system=serves, demand=demand)


def unserved(*_: object, **__: object) -> Simulated:
    raise AssertionError("simulated")


def test_what_cannot_win_is_simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    choice, service = small_plan()
    rate, runs = choice.requests_per_s, list[Requests]()
    run = Group.run

    def counted(self: Group, requests: Requests, seed: int) -> Result:
        runs.append(requests)
        return run(self, requests, seed)

    monkeypatch.setattr(Group, "run", counted)
    none = sustained_rate(choice.estimate, service, above=1.3 * rate)
    assert isinstance(none, NoSustainedRate)
    assert len(runs) == 1
    assert "more than 95 % of its capacity" in none.reason
    again = sustained_rate(choice.estimate, service, above=0.9 * rate, max_num_seqs=choice.max_num_seqs)
    assert isinstance(again, SustainedRate)
    assert again.requests_per_s == pytest.approx(rate, rel=0.1)  # short runs may promise a little more or less


@pytest.mark.parametrize(("dearer", "wins"), [(1.02, True), (0.98, False)])
def test_a_kind_is_held_against_the_cost_of_the_other(
    monkeypatch: pytest.MonkeyPatch, dearer: float, wins: bool
) -> None:
    """The second kind wins where its rate is above the one at which it costs as much as the first."""
    choice, service = small_plan()
    promised = choice.sustained
    assert promised is not None
    other = replace(choice, sustained=None, estimate=replace(choice.estimate, usd_per_mtok_output_all_in=100.0))

    def found(
        estimate: object, _: Service, above: float = 0.0, *, max_num_seqs: int | None = None
    ) -> SustainedRate | NoSustainedRate:
        if max_num_seqs is not None:
            return NoSustainedRate(reason="fewer slots serve less")
        if estimate is choice.estimate:
            assert above == 0.0
            return promised
        rate = dearer * 100.0 * choice.estimate.requests_per_s / choice.usd_per_mtok_output_all_in
        return replace(promised, requests_per_s=rate) if rate > above else NoSustainedRate(reason="no")

    monkeypatch.setattr("rackline.search.finalists.sustained_rate", found)
    monkeypatch.setattr("rackline.search.finalists.confirmed_rate", lambda _, __, rate: rate)
    (first, _), (second, _) = serve_kinds(service, ([replace(choice, sustained=None)], [other]))
    assert first is not None
    assert second is not None
    assert (second.sustained is not None) == wins
    assert (second.usd_with_leftover < first.usd_with_leftover) == wins


def test_the_first_of_all_is_simulated_at_any_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing to be dearer than, nothing is too dear."""
    choice, service = small_plan()
    monkeypatch.setattr(Group, "run", unserved)
    with pytest.raises(AssertionError, match="simulated"):
        serve_kinds(service, ([replace(choice, sustained=None)], []))

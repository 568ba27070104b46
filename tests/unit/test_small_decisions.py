"""Decisions that a small change of a line would turn, though no stored answer would: each is looked at by itself."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from rich.console import Console
from test_autoscaling import _seen, _setting

from helpers import cluster, model
from rackline.display.column import Sheet
from rackline.ledger.golden import layer_reads
from rackline.parallel import Layout, precision
from rackline.parallel.memory import allocator_bytes
from rackline.report.choice_report import served_table
from rackline.report.pricing_figures import modes_figure
from rackline.search.changes import Held, decoding_cost
from rackline.search.choice import Choice
from rackline.search.space import Space
from rackline.simulation.autoscalers import AUTOSCALERS
from rackline.simulation.routers import PrefixAware, Standing
from rackline.web.asked import ProblemError, offered
from rackline.web.endpoints import Answers
from rackline.web.workers import Workers


@pytest.mark.parametrize(("tokens", "place"), [(250, 1), (300, 0)])
def test_a_prefix_has_to_be_more_than_half_of_the_prompt(tokens: int, place: int) -> None:
    """Of 10 blocks of 50 tokens, five or six are in the cache of the replica with more requests."""
    requests: Any = SimpleNamespace(hashes=[range(10)], hash_tokens=50)
    standing: Any = SimpleNamespace(loads=[3, 1], known=lambda _: [tokens, 0], least=lambda: Standing.least(standing))
    assert PrefixAware(requests).choose(0, standing) == place


def kept_answers(sizes: str) -> list[str]:
    """Which questions are asked of the workers: answers of 25 bytes, or of 1 for a small letter, in 100 bytes."""
    asked: list[str] = []

    async def ask(form: str, _: Any, **__: Any) -> bytes:
        asked.append(form)
        return b"x" * (25 if form.isupper() else 1)

    async def all_of_them() -> None:
        answers = Answers(cast("Workers", SimpleNamespace(ask=ask)), kept_bytes=100)
        for one in sizes:
            await answers.get(one, one, {}, is_long=False, tell=lambda _: None)

    asyncio.run(all_of_them())
    return asked


def test_the_oldest_answer_goes_when_there_is_no_room() -> None:
    assert kept_answers("ABCDA") == list("ABCD")  # just room for four
    assert kept_answers("ABCDEA") == list("ABCDEA")  # A has gone
    assert kept_answers("ABCDEDCB") == list("ABCDE")  # nothing else has
    assert kept_answers("ABCDAEB") == list("ABCDEB")  # A was asked for since
    assert kept_answers("ABCDaA") == list("ABCDaA")  # a byte too much


def test_arrivals_within_a_second_are_a_rate_of_a_minute() -> None:
    """Of 300 arrivals in the first second a minute has 5 a second; a replica takes 2."""
    arrivals = np.linspace(0.1, 0.9, 300)
    policy = AUTOSCALERS.find("oracle")(replace(_setting(start_s=0.0), arrivals_s=arrivals))
    assert policy.wish(_seen(0.0)) == 3


def test_a_question_of_any_length_is_quoted_to_80_characters() -> None:
    with pytest.raises(ProblemError, match=f"no question '{'x' * 80}'$") as caught:
        offered("x" * 200)
    assert caught.value.more["given"] == "x" * 80


def test_full_attention_is_spread_evenly_among_local_layers() -> None:
    """10 of 62 layers: the i-th stands at (i + 1/2) / 10, where 5.2 i + 2.6 of the 52 others stand before."""
    reads = layer_reads(cast("Any", model("gemma-3-27b")), 1e5)
    assert [place for place, one in enumerate(reads) if one == max(reads)] == [3, 9, 15, 21, 27, 34, 40, 46, 52, 58]


@pytest.mark.parametrize(("name", "stages", "share"), [("qwen3-32b", 4, 16 / 64), ("gpt-oss-120b", 5, 8 / 36)])
def test_a_stage_rounds_the_tensors_of_its_layers_alone(name: str, stages: int, share: float) -> None:
    types = precision("bf16", model(name), cluster("dgx-h100").chip)
    whole, staged = (float(allocator_bytes(model(name), Layout(tp=8, pp=pp), types)) for pp in (1, stages))
    assert whole > 0
    assert staged == pytest.approx(share * whole)


def test_a_layout_without_room_decodes_nothing_however_little_it_lacks() -> None:
    """It is the faster one of two, in a precision that lacks half a byte."""

    class Grid(list[Layout]):
        def take(self, _: Any) -> Grid:
            return self

        def layout(self, row: int) -> Layout:
            return self[row]

    def engines(step_s: float, _: Any) -> Any:
        return SimpleNamespace(decode_s=lambda *_, **__: np.array([[step_s]]), time_table=lambda _: None)

    types = [SimpleNamespace(short=lambda name=name: name) for name in ("bf16", "fp8")]
    on = cluster("dgx-h100")
    system = SimpleNamespace(precisions=types, table=lambda _, one: 1.0 + types.index(one), engines=engines, cluster=on)
    asked = SimpleNamespace(system=system, per_rank=lambda _: np.ones(1), context_len=1000.0, requests=1)
    held: Any = SimpleNamespace(asked=asked, grid=Grid([Layout(tp=2)]), fits=True, free_bytes=np.array([[-0.5], [7.0]]))
    found = decoding_cost(cast("Held", held))
    assert (found.layout, found.step_s) == ("tp=2 · fp8", 2.0)


def test_a_layout_starts_in_pools_in_some_precision_and_in_all() -> None:
    """Of three layouts one starts in no pool, one in that of decodes, one in both, in one precision of two."""
    starts = {("bf16", "prefill"): [0, 0, 1], ("bf16", "decode"): [0, 1, 1], ("fp8", "prefill"): [0, 0, 0],
              ("fp8", "decode"): [0, 0, 0]}  # fmt: skip

    def launches(one: str, _: Any, role: str) -> Any:
        return np.array(starts[one, role], dtype=bool)

    def pools(*precisions: str, every: bool) -> list[bool]:
        modes = [SimpleNamespace(two_batch_overlap=False)]
        system = SimpleNamespace(precisions=precisions)
        one: Any = SimpleNamespace(grid=range(3), system=system, modes=modes, launches=launches)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("rackline.search.space.replace", lambda mode, **_: mode)
            return Space.in_pools(one, every=every).tolist()

    assert pools("bf16", "fp8", every=False) == [False, True, True]
    assert pools("bf16", every=True) == [False, False, True]
    assert pools("bf16", "fp8", every=True) == [False, False, False]


def test_the_interval_of_p99_gives_way_on_a_narrow_screen() -> None:
    figures = {"mean": 1.0, "p50": 1.0, "p90": 1.0, "p99": 1.0, "p99_interval": {"low": 0.9, "high": 1.1}}
    one = SimpleNamespace(**figures)
    simulated = SimpleNamespace(requests=100, ttft_s=one, tpot_s=one, e2e_s=one)
    choice: Any = SimpleNamespace(sustained=SimpleNamespace(simulated=simulated, requests_per_s=3.0))
    sheet = served_table(cast("Choice", choice))
    assert isinstance(sheet, Sheet)
    assert {column.key: column.priority for column in sheet.columns if column.priority} == {"p99_interval": 1}

    def shown(width: int) -> str:
        console = Console(width=width, color_system=None)
        with console.capture() as said:
            console.print(sheet)
        return said.get()

    assert "900 ms to 1.10 s" in shown(100)
    assert "1.10 s" not in shown(45)


def test_modes_stand_by_how_long_they_may_wait_whatever_is_sold_first() -> None:
    way = SimpleNamespace(costs=SimpleNamespace(deployment=SimpleNamespace(layout=Layout(tp=2))))
    tiers = [
        SimpleNamespace(name=name, way=way, until_len=1000.0, input_usd=1e-6, cached_input_usd=1e-7, output_usd=2e-6,
                        tpot_s=0.01)
        for name in ("priority", "standard", "flex", "batch")
    ]  # fmt: skip
    offered: Any = SimpleNamespace(
        tiers=tiers, deployment=None, rent=SimpleNamespace(usd_per_chip_hour=2.0),
        terms=SimpleNamespace(utilisation=0.5, margin=0.2),
    )  # fmt: skip
    drawn = modes_figure(offered)
    found = [one["sort"] for one in places(drawn.spec) if "sort" in one]
    assert ["batch", "flex", "standard", "priority"] in found


def places(spec: Any) -> list[dict[str, Any]]:
    """Each object within a specification."""
    inner = spec.values() if isinstance(spec, dict) else spec if isinstance(spec, list) else ()
    return [*([spec] if isinstance(spec, dict) else []), *(found for one in inner for found in places(one))]

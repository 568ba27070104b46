"""`compare` of deployments: a line each, two engines, and a plan with what runs today."""

from __future__ import annotations

import json
from functools import cache
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

import rackline as rl
from helpers import call
from rackline.api.answer import Answer
from rackline.api.compare import Compared, Now, parse_now
from rackline.api.plan import Planned
from rackline.cli.main import run
from rackline.display.column import sheets_of
from rackline.errors import InputError, RacklineError
from rackline.search import Plan

pytestmark = pytest.mark.usefixtures("searched_once")

ASKED = ("compare", "llama-3.1-8b@l40s-8", "--input", "1k", "--output", "200", "--tpot", "60ms", "--ttft", "2s")
NOW = ("--now", "tp=2,batch=16,precision=bf16")


def compared(*names: str, **more: Any) -> Compared:
    asked: dict[str, Any] = {"input": 1000, "output": 200, "tpot": "60ms", "ttft": "2s", **more}
    return rl.compare(list(names), **asked).result


def planned(name: str, **asked: Any) -> Plan:
    found = rl.plan(name, **asked).result
    assert isinstance(found, Planned)
    return found.plan


@cache
def answered(**more: Any) -> Answer[Any, Compared]:
    return rl.compare(["llama-3.1-8b@l40s-8"], input=1000, output=200, tpot="60ms", ttft="2s", precision="any", **more)


def printed(answer: Answer[Any, Compared], width: int) -> str:
    out = StringIO()
    console = Console(file=out, width=width, color_system=None)
    for part in answer.text(width):
        console.print(part)
    return out.getvalue()


@pytest.mark.parametrize("more", [{"now": "tp=2,batch=16,precision=bf16"}, {"engine": "vllm,sglang"}], ids=str)
def test_nothing_is_cut(more: dict[str, str]) -> None:
    for width in (80, 100, 160):
        text = printed(answered(**more), width)
        assert "…" not in text
        assert max(len(line) for line in text.splitlines()) <= width
        flat = " ".join(text.split())
        for word in (
            "tpot",
            "ttft",
            "requests/s",
            "per M",
            "×",
            "low",
            "high",
            "fp8",
            *(("batch", "chips", "drawn") if width > 100 else ()),
        ):
            assert word in flat, word


def test_both_ends_of_a_band_are_shown_or_none() -> None:
    found = sheets_of(answered(engine="vllm,sglang").text(160))
    sheet = next(one for one in found if one.name == "deployments")
    shown = [{str(column.header) for column in sheet.table(width).columns} for width in range(40, 161)]
    assert all(("low" in titles) == ("high" in titles) for titles in shown)
    assert {"low" in titles for titles in shown} == {True, False}


@pytest.mark.parametrize("width", [80, 100, 160])
def test_chips_side_by_side_are_not_cut(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = call(capsys, "compare", "h100", "h200", "b200", "mi355x", "tpu-v7")
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= width
    for name in ("h100-sxm", "h200-sxm", "b200-sxm", "mi355x", "tpu-v7"):
        assert name in text


def test_a_side_is_the_plan_of_its_deployment_with_all_options() -> None:
    more: dict[str, Any] = {"precision": "fp8", "chips": 4, "serving": "aggregated", "bill": "used"}
    first, second = compared("llama-3.1-8b@l40s-8", "llama-3.1-8b@dgx-h100", rent="on-demand", **more).sides
    for side, on in ((first, "l40s-8"), (second, "dgx-h100")):
        asked: dict[str, Any] = {"input": 1000, "output": 200, "tpot": "60ms", "ttft": "2s", "rent": "on-demand"}
        best = planned("llama-3.1-8b", on=on, **asked, **more).best
        assert best is not None
        assert side.deployed is not None
        assert side.values["usd_per_mtok_output_all_in"] == best.usd_per_mtok_output_all_in
        choice = side.deployed.choice
        assert choice is not None
        assert choice.layout.label() == best.layout.label()
        assert choice.serving == "aggregated"
        assert "fp8" in choice.precision.short()
        assert best.num_chips <= 4
        band = side.deployed.bands["usd_per_mtok_output_all_in"]
        assert band.low < best.usd_per_mtok_output_all_in < band.high
    assert best.energy is not None
    assert second.values["power_w"] == pytest.approx(best.energy.power_w)
    assert second.values["joules_per_output_token"] == pytest.approx(best.energy.joules_per_output_token)


def test_engines_are_compared_under_their_own_rules() -> None:
    found = compared("llama-3.1-8b@l40s-8", engine="vllm,sglang=0.5.6", serving="aggregated")
    assert [side.name for side in found.sides] == ["llama-3.1-8b@l40s-8 vllm", "llama-3.1-8b@l40s-8 sglang=0.5.6"]
    asked: dict[str, Any] = {"on": "l40s-8", "input": 1000, "output": 200, "tpot": "60ms", "ttft": "2s"}
    plans = [
        planned("llama-3.1-8b", **asked, serving="aggregated", engine=engine) for engine in ("vllm", "sglang=0.5.6")
    ]
    assert plans[1].rules_name.startswith("sglang")
    for side, one in zip(found.sides, plans, strict=True):
        assert one.best is not None
        assert side.values["tpot_s"] == one.best.tpot_s
    assert found.sides[0].values["tpot_s"] != found.sides[1].values["tpot_s"]


def test_what_would_change_against_today() -> None:
    found = compared("llama-3.1-8b@l40s-8", now="tp=2,batch=16,precision=bf16", serving="aggregated", precision="any")
    today, then = found.sides
    assert today.deployed is not None
    assert today.deployed.today
    assert today.deployed.choice is not None
    assert today.deployed.choice.layout.label() == "tp=2,dp=4"
    assert today.values["batch_size"] == 16
    moved = {change.what: change for change in found.changes}
    assert moved["layout"].before == "tp=2,dp=4"
    assert moved["precision"].before.startswith("bf16")
    for what, key in (("requests/s", "requests_per_s"), ("time per output token", "tpot_s")):
        before, after = today.values[key], then.values[key]
        assert before is not None
        assert after is not None
        assert moved[what].ratio == pytest.approx(after / before)
    cheaper = moved["$ per M output, all-in"].ratio
    assert cheaper is not None
    assert cheaper < 1.0, "the plan may choose today's deployment"
    assert found.why
    assert any("sequences per chip today" in reason for reason in found.why)


def test_today_is_what_its_closed_loop_serves() -> None:
    """Oracle: the simulator with as many users as sequences in flight, on every replica."""
    found = compared("llama-3.1-8b@l40s-8", now="tp=2,batch=16,mode=chunked=2048,precision=bf16")
    ran: dict[str, Any] = rl.simulate(
        "llama-3.1-8b", on="l40s-8", precision="bf16", layout="tp=2", users=64, requests=1500, input=1000, output=200,
        lengths="uniform", max_batched_tokens=2048, max_num_seqs=16,
    ).to_dict()  # fmt: skip
    today = found.sides[0].values
    assert today["tpot_s"] == pytest.approx(ran["tpot_s"]["mean"], rel=0.08)
    each = ran["output_tokens_per_s"] / 8
    assert today["output_tokens_per_s_per_chip"] == pytest.approx(each, rel=0.08)


def test_what_does_not_run_today_says_why() -> None:
    found = compared("llama-3.1-70b@l40s-8", now="tp=1,batch=4", precision="fp8")
    today = found.sides[0].deployed
    assert today is not None
    assert today.choice is None
    assert "fits" in today.reason or "GB" in today.reason
    assert found.changes == ()


def test_json_has_a_deployment_beside_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(call(capsys, *ASKED, *NOW, "--json"))
    today, then = (side["deployed"] for side in data["sides"])
    assert today["today"]
    assert not then["today"]
    assert today["basis"] == "closed_loop_estimate"
    assert then["basis"] == "simulated"
    assert then["intervals"]["usd_per_mtok_output_all_in"]["low"] > 0
    assert {change["what"] for change in data["changes"]} >= {"requests/s", "time per output token"}
    assert data["why"]


def test_today_is_read() -> None:
    assert parse_now("tp=8, batch=64") == Now(layout="tp=8", batch_size=64)
    assert parse_now("batch=8,mode=prefill-first=4096").mode == "prefill-first=4096"
    for text in ("tp=8", "tp=8,batch=0", "tp=8,batch=1.5", "batch=4,batch=8", "tp=8,btch=4", "tp=8,batch", ""):
        with pytest.raises(RacklineError):
            parse_now(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compare", "llama-3.1-8b@l40s-8"), "two or more of one kind"),
        (("compare", "llama-3.1-8b@l40s-8", "--engine", "vllm"), "two or more of one kind"),
        (("compare", "llama-3.1-8b@l40s-8", "--engine", "vllm,vlm"), "nearest: vllm"),
        (("compare", "llama-3.1-8b@l40s-8", "--engine", "vllm,sglang", "--calibration", "trtllm"), "several engines"),
        (("compare", "llama-3.1-8b@l40s-8", "--now", "tp=8"), "batch=64"),
        (("compare", "llama-3.1-8b@l40s-8", "--now", "tp=1,pp=2,batch=7"), "multiple of 2"),
        (("compare", "llama-3.1-8b@l40s-8", "--now", "tp=16,batch=6"), "tp"),
        (("compare", "h100", "b200", "--now", "tp=8,batch=6"), "only with deployments"),
        (("compare", "h100", "b200", "--engine", "vllm,sglang"), "only with deployments"),
        (("compare", "llama-3.1-8b@l40s-8", "h100"), "MODEL@CLUSTER"),
    ],
)
def test_refusals(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(list(arguments)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert message in err, err


def test_a_price_and_a_kind_of_rent_are_not_both() -> None:
    with pytest.raises(InputError, match="rent"):
        compared("llama-3.1-8b@l40s-8", "llama-3.1-8b@dgx-h100", rent="owned", price=2.0)

"""Layouts: reading, checking, enumerating."""

from __future__ import annotations

import pytest

from helpers import gqa_model, layouts, model
from rackline.errors import LayoutError
from rackline.parallel import Layout, LayoutGrid, enumerate_layouts, parse_layout
from rackline.parallel.layout import check, problem
from rackline.plain import plain


def test_parse_fills_in_moe_tp() -> None:
    deepseek = model("deepseek-v3")
    assert parse_layout("tp=8,ep=4", deepseek) == Layout(tp=8, ep=4, moe_tp=2)
    assert parse_layout("attention-dp=32, ep=32", deepseek) == Layout(attention_dp=32, ep=32)
    assert parse_layout("tp=8", model("llama-3.1-70b")) == Layout(tp=8)
    assert parse_layout("tp=4,ep=2,moe_tp=2", deepseek) == Layout(tp=4, ep=2, moe_tp=2)
    assert parse_layout("") == Layout()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tq=8", "got 'tq=8', allowed: tp=N, pp=N.*nearest: tp=8"),
        ("tp=0", "--layout tp: got '0', allowed: a whole number of at least 1; nearest: 1"),
        ("tp=-2", "--layout tp: got '-2'"),
        ("tp=eight", "--layout tp: got 'eight'"),
        ("tp", "--layout tp: got ''"),
        ("tp=2,tp=4", "allowed: tp once"),
        ("tp=1.5", "--layout tp: got '1.5'"),
    ],
)
def test_parse_says_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(LayoutError, match=message) as raised:
        parse_layout(text)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "layout", "reason"),
    [
        ("llama-3.1-70b", Layout(tp=3), "tp=3 does not divide the 64 query heads"),
        ("llama-3.1-70b", Layout(tp=4, cp=2), "context parallelism is not modelled"),
        ("llama-3.1-70b", Layout(pp=81), "pp=81 exceeds the 80 layers"),
        ("llama-3.1-70b", Layout(tp=4, ep=4), "a dense model has no ep"),
        ("llama-3.1-70b", Layout(tp=16), "needs 16 chips, the cluster has 8"),
        ("llama-3.1-70b", Layout(tp=4, dp=3), "needs 12 chips, the cluster has 8"),
        ("deepseek-v3", Layout(tp=4, ep=2), "must equal tp·attention_dp = 4"),
        ("qwen3-235b-a22b", Layout(tp=8, ep=1, moe_tp=8), None),
        ("gpt-oss-120b", Layout(tp=8, moe_tp=8, ep=1), None),
        ("gpt-oss-120b", Layout(attention_dp=7, moe_tp=7), "moe_tp=7 does not divide d_expert=2880"),
        ("mixtral-8x7b", Layout(tp=8, attention_dp=2, ep=16), "ep=16 exceeds the 8 experts"),
        ("lecture-frontier", Layout(tp=4, pp=2), "an aggregate model has no layers or experts"),
    ],
)
def test_problems_are_named(name: str, layout: Layout, reason: str | None) -> None:
    chips = 8 if name == "llama-3.1-70b" and layout.pp == 1 else None
    found = problem(layout, model(name), chips)
    if reason is None:
        assert found is None
    else:
        assert found is not None
        assert reason in found


def test_kv_heads_must_nest_with_tp() -> None:
    attention = {"kind": "gqa", "num_q_heads": 24, "num_kv_heads": 6, "head_dim": 64}
    m = gqa_model(attention=attention, ffn={"kind": "swiglu", "d_ff": 2304})
    assert problem(Layout(tp=12), m) is None
    assert problem(Layout(tp=8), m) == "tp=8 neither divides nor is a multiple of the 6 KV heads"


def test_check_offers_the_nearest_layout() -> None:
    with pytest.raises(LayoutError, match=r"got 'tp=7'.*nearest: tp=8") as raised:
        check(Layout(tp=7), model("llama-3.1-70b"), 8)
    assert "\n" not in str(raised.value)
    check(Layout(tp=8), model("llama-3.1-70b"), 8)


def test_chips_multiply() -> None:
    layout = Layout(tp=2, pp=3, attention_dp=4, ep=8, dp=5)
    assert (layout.chips_per_replica, layout.num_chips) == (24, 120)
    assert layout.label() == "tp=2,pp=3,ep=8,attention_dp=4,dp=5"
    assert Layout().label() == "tp=1"
    assert plain(layout)["attention_dp"] == 4
    assert parse_layout(layout.label()) == layout


@pytest.mark.parametrize(
    ("name", "chips"),
    [
        ("llama-3.1-70b", 8),
        ("llama-3.1-70b", 72),
        ("qwen3-235b-a22b", 16),
        ("deepseek-v3", 72),
        ("gpt-oss-120b", 8),
        ("lecture-frontier", 72),
    ],
)
def test_enumerated_layouts_are_possible_and_distinct(name: str, chips: int) -> None:
    found = layouts(name, chips)
    assert len(set(found)) == len(found) > 0
    for layout in found:
        assert problem(layout, model(name), chips) is None
        assert layout.dp == layout.cp == 1


def test_enumeration_is_exhaustive_on_a_small_cluster() -> None:
    """Brute force over every field; pp and group sizes (2^a 3^b, or all chips) as the enumeration offers them."""
    m = model("qwen3-235b-a22b")
    every = {
        Layout(tp=tp, pp=pp, ep=ep, moe_tp=moe_tp, attention_dp=dp)
        for tp in range(1, 9)
        for pp in (1, 2, 3, 4, 6, 8)
        for dp in range(1, 9)
        for ep in range(1, 9)
        for moe_tp in range(1, 9)
        if tp * pp * dp <= 8 and (tp * dp in (1, 2, 3, 4, 6, 8) or tp * pp * dp == 8)
    }
    assert {layout for layout in every if problem(layout, m, 8) is None} == set(layouts("qwen3-235b-a22b", 8))


def test_grid_keeps_the_order() -> None:
    found = list(layouts("deepseek-v3", 8))
    grid = LayoutGrid.of(found)
    assert len(grid) == len(found)
    assert grid.chips_per_replica.tolist() == [layout.chips_per_replica for layout in found]
    assert grid.ep.tolist() == [layout.ep for layout in found]


def test_max_pp_limits_the_stages() -> None:
    assert {layout.pp for layout in enumerate_layouts(model("llama-3.1-8b"), 8, max_pp=2)} == {1, 2}


def test_an_aggregate_model_is_cut_over_any_number_of_chips() -> None:
    assert enumerate_layouts(model("lecture-frontier"), 4) == [Layout(tp=tp) for tp in (1, 2, 3, 4)]

"""Figures as data: specifications that compile, numbers of the engine, files of every format, contrast and colours."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import vl_convert

import figures as made
from helpers import cluster
from rackline.display.axes import Kind, Measure, colour, linear_axis, linear_ticks, log_axis, log_ticks, text_of
from rackline.display.figure import (
    DARK,
    ENDINGS,
    LIGHT,
    NOTEBOOK_TYPE,
    STILL_FONT,
    THEME_NAMES,
    Figure,
    Theme,
    ThemeName,
    check_plot_path,
)
from rackline.display.wording import short_count
from rackline.errors import InputError
from rackline.parallel import SERVER, Deployment
from rackline.parallel.memory import fitting_sequences
from rackline.passes import Batch
from rackline.pricing import envelope
from rackline.report.train_report import differences, layout_text
from scripts import load_script

NAMES = list(made.MAKERS)


def rows(figure: Figure) -> list[dict[str, Any]]:
    return figure.rows


def parts(value: Any) -> Iterator[dict[str, Any]]:
    """Every object inside a specification."""
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from parts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from parts(inner)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("version", ["5.21", "6.4"])
def test_specification_compiles_without_a_warning(name: str, version: str, capfd: pytest.CaptureFixture[str]) -> None:
    spec = made.figure(name).to_dict(vega_lite=int(version[0]))
    json.dumps(spec, allow_nan=False)
    compiled = vl_convert.vegalite_to_vega(spec, vl_version=version, show_warnings=True)
    assert compiled["marks"]
    said = capfd.readouterr()
    assert "WARN" not in said.out + said.err


@pytest.mark.parametrize("name", NAMES)
def test_figure_says_what_it_shows_and_names_no_colour(name: str) -> None:
    figure = made.figure(name)
    assert len(figure.title) > 5
    assert len(figure.description.split()) > 6, "people who cannot see it are told what is there"
    assert not re.search(r"#[0-9a-f]{6}", json.dumps(figure.spec)), "colours belong to the theme"
    for part in parts(figure.spec):
        axis = part.get("axis")
        if isinstance(axis, dict) and "labelExpr" in axis:
            assert axis["title"], "an axis of numbers says what they are"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("look", THEME_NAMES)
def test_svg_is_well_formed_and_draws_nothing_outside(name: str, look: ThemeName) -> None:
    text = made.figure(name).svg(look)
    assert len(text) < 400_000
    root = ElementTree.fromstring(text)
    assert root.attrib["role"] == "img"
    assert [child.tag.rpartition("}")[2] for child in root[:2]] == ["title", "desc"]
    colours = set(re.findall(r"#[0-9a-f]{6}", text))
    other = LIGHT if look == "dark" else DARK
    assert other.background not in colours - {LIGHT.ink, DARK.ink}
    assert "NaN" not in text
    assert "undefined" not in text
    assert ">null<" not in text


@pytest.mark.parametrize("name", NAMES)
def test_names_on_an_axis_have_room_for_their_line(name: str) -> None:
    figure = made.figure(name)
    values = [row for part in parts(figure.spec) if isinstance(part.get("values"), list) for row in part["values"]]
    for part in parts(figure.spec):
        y = part.get("y")
        if isinstance(y, dict) and y.get("type") == "nominal":
            names = {row[y["field"]] for row in values if isinstance(row, dict) and y["field"] in row}
            assert figure.height >= 16 * len(names)


def test_a_legend_has_as_many_columns_as_its_names_leave_room_for() -> None:
    legends = [colour([letter * 60 for letter in "ab"], width=640), colour(["one", "two", "three"], width=640)]
    assert [one["legend"]["columns"] for one in legends] == [1, 3]
    pairs = colour([letter * 40 for letter in "abcd"], width=640)
    assert pairs["legend"]["columns"] == 2, "40 letters of some 6.6 pixels and a mark"


def test_front_has_the_numbers_of_the_plan() -> None:
    plan, figure = made.a_plan(), made.figure("front")
    found = [row for row in rows(figure) if row["series"] == "one engine"]
    assert [row["tokens_per_s_per_user"] for row in found] == [c.tokens_per_s_per_user for c in plan.pareto]
    assert [row["usd_per_mtok_output_all_in"] for row in found] == [c.usd_per_mtok_output_all_in for c in plan.pareto]
    assert [row["keeps_limits"] for row in found] == [c.tpot_s <= 0.02 for c in plan.pareto]
    lines = [part["x"]["datum"] for part in parts(figure.spec) if "x" in part and "datum" in part["x"]]
    assert 50.0 in lines, "the limit of 20 ms is drawn"
    best = plan.best
    assert best is not None
    marked = next(layer for layer in figure.spec["layer"] if layer["mark"].get("style") == "best")
    assert marked["data"]["values"][0]["usd_per_mtok_output_all_in"] == best.whole.usd_per_mtok_output_all_in


def test_tiers_follow_their_lines_and_never_pass_below_the_hull() -> None:
    lines = {line.name: line for line in made.tiers()}
    figure = made.figure("tiers")
    for row in rows(figure):
        usd = float(lines[row["series"]].usd(row["held_s"], 4.0)) / 8e3 * 1e6
        assert row["usd_per_mtok"] == pytest.approx(usd)
    hull = {row["held_s"]: row["usd_per_mtok"] for row in figure.spec["layer"][0]["data"]["values"]}
    assert all(hull[row["held_s"]] <= row["usd_per_mtok"] * (1 + 1e-12) for row in rows(figure))
    ends = {span.until_s for span in envelope(made.tiers(), 4.0) if np.isfinite(span.until_s)}
    rules = {
        layer["encoding"]["x"]["datum"] for layer in figure.spec["layer"] if layer["mark"].get("style") == "reference"
    }
    assert rules == ends


def test_prices_are_those_that_are_offered() -> None:
    sold = [tier for tier in made.offered().tiers if tier.mode == "standard"]
    priced = [row for row in rows(made.figure("price")) if row["what"] == "price" and row["series"] == "output"]
    assert [row["usd_per_mtok"] for row in priced[::2]] == [tier.output_usd * 1e6 for tier in sold]
    cost = [row for row in rows(made.figure("price")) if row["what"] == "cost"]
    for tier in sold:
        for series, price in (("input", tier.input_usd), ("output", tier.output_usd)):
            along = [row["usd_per_mtok"] for row in cost if (row["tier"], row["series"]) == (tier.name, series)]
            assert along == pytest.approx(sorted(along), rel=1e-12), "cost never falls with the prompt"
            assert along[0] < along[len(along) // 2] * (1 + 1e-9) < price * 1e6, "the middle prompt pays"


def test_prices_by_mode_are_those_that_are_offered() -> None:
    drawn = {
        (row["mode"], row["tier"], row["series"]): row["usd_per_mtok"] for row in rows(made.figure("prices by mode"))
    }
    sold = [tier for tier in made.offered().tiers if tier.way is not None]
    assert len(drawn) == 3 * len(sold)
    for tier in sold:
        mode, place = tier.name.split(" above")[0], "to 8.00k" if tier.until_len == 8e3 else "to 32.0k"
        assert drawn[mode, place, "output"] == tier.output_usd * 1e6
        assert drawn[mode, place, "cached input"] == tier.cached_input_usd * 1e6


def test_price_map_has_the_likely_middles() -> None:
    for row in rows(made.figure("price map")):
        reading = next(one for one in made.readings() if one.sheet == row["sheet"])
        active = reading.find("active_params")
        assert active is not None
        assert row["active_params"] == active.likely.middle
        assert row["active_params_low"] <= row["active_params"] <= row["active_params_high"]


def test_tails_are_shares_of_the_sorted_times() -> None:
    run = made.a_run()
    found = [row for row in rows(made.figure("tails")) if row["metric"] == "time to first token"]
    for row in found:
        assert row["share_above"] == pytest.approx(np.mean(run.ttft_s >= row["latency_s"] * (1 - 1e-12)))
    assert min(row["share_above"] for row in found) == pytest.approx(1 / len(run.requests))
    count = sum(row["series"].startswith("whole request, this") for row in rows(made.figure("timeline")))
    assert count == int(run.finished.sum())


def test_sizes_of_one_loss_reach_it() -> None:
    from rackline.scaling import loss

    found = made.a_budget()
    for row in rows(made.figure("quality")):
        assert loss(found.law, row["active_params"], row["tokens"]) == pytest.approx(found.loss, rel=1e-9)
        assert row["lifetime_flop"] >= float(found.optimum.lifetime_flop) * (1 - 1e-9)
    whole = {
        row["active_params"]: row["flop"] for row in rows(made.figure("lifetime")) if row["series"] == "whole life"
    }
    split = [row for row in rows(made.figure("lifetime")) if row["series"] != "whole life"]
    for size, flop in whole.items():
        assert sum(row["flop"] for row in split if row["active_params"] == size) == pytest.approx(flop)


def test_the_rule_of_thumb_is_20_tokens_per_parameter_across_the_map() -> None:
    rule = next(
        layer["data"]["values"]
        for layer in made.figure("quality").spec["layer"]
        if layer["mark"].get("style") == "reference"
    )
    assert [row["tokens"] for row in rule] == pytest.approx([20.0 * row["active_params"] for row in rule])
    assert rule[0]["active_params"] < min(row["active_params"] for row in rows(made.figure("quality")))


def test_pipeline_has_a_box_for_every_slot() -> None:
    line = made.timeline()
    found = rows(made.figure("pipeline"))
    assert len(found) == len(line.events)
    busy = [sum(row["end_s"] - row["start_s"] for row in found if row["stage"] == stage) for stage in range(4)]
    assert busy == pytest.approx(line.busy_s)


def test_a_long_step_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from rackline.report import train_report

    monkeypatch.setattr(train_report, "MOST_SLOTS", 10)
    figure = train_report.pipeline_figure(made.timeline(), title="t")
    assert len(rows(figure)) == 10
    assert "the first 10 of" in figure.subtitle


def test_parity_has_every_value_beside_the_diagonal() -> None:
    views = made.figure("parity").spec["hconcat"]
    found = [row for view in views for row in view["data"]["values"]]
    assert {(row["case_id"], row["measured"], row["predicted"]) for row in found} == {
        (score.case_id, score.measured, score.predicted) for score in made.board().scores
    }
    for view in views:
        band = view["layer"][0]["data"]["values"]
        assert [row["predicted"] for row in band] == [row["measured"] for row in band]
        assert [row["low"] / row["measured"] for row in band] == pytest.approx([0.8, 0.8])


def test_waterfall_adds_up_to_the_pass() -> None:
    time = made.explained().time
    found = rows(made.figure("waterfall"))
    assert sum(row["seconds"] for row in found) == pytest.approx(time.seconds)
    assert all(later["start_s"] == pytest.approx(row["end_s"]) for row, later in pairwise(found))
    named = {row.name: row.seconds for row in time.rows if row.used}
    for row in found:
        if row["operation"] in named:
            assert row["seconds"] == named[row["operation"]]
    overlapping = rows(made.figure("waterfall of streams"))
    ends = max(row["end_s"] for row in overlapping if "smaller" not in row["operation"])
    assert ends <= made.explained("overlap").time.seconds * (1 + 1e-9)
    assert sum(row["start_s"] == 0.0 for row in overlapping) > 1, "streams begin together"


def test_curves_are_the_passes_of_their_batches_and_end_with_the_memory() -> None:
    found = made.explained()
    figure = made.figure("batch")
    layout = found.deployment.layout
    ranks = layout.attention_dp * layout.pp
    by_context: dict[str, list[float]] = {}
    for row in rows(figure):
        by_context.setdefault(row["series"], []).append(row["batch_size"])
        speed = row["batch_size"] / row["seconds"] / found.deployment.layout.chips_per_replica
        assert row["output_tokens_per_s_per_chip"] == pytest.approx(speed)
    assert len(by_context) == 3
    for factor, sizes in zip((0.25, 1.0, 4.0), by_context.values(), strict=True):
        context = found.context_len * factor
        most = deployment_fits(found.deployment, context)
        assert sizes[-1] == min(most, 4096.0) * ranks
        batch = Batch(decode_sequences=sizes[-1] / ranks, context_len=context, group_tokens=sizes[-1] / layout.pp)
        drawn = [row for row in rows(figure) if row["series"] == f"{short_count(context)} tokens"]
        assert drawn[-1]["seconds"] == pytest.approx(found.table.time(batch).seconds, rel=1e-9)


def deployment_fits(deployment: Deployment, context: float) -> float:
    chip, layout = deployment.cluster.chip, deployment.layout
    return float(fitting_sequences(deployment.model, layout, deployment.precision, chip, SERVER, context).max())


def test_rejected_are_those_of_the_plan() -> None:
    plan = made.a_plan()
    assert plan.rejected
    found = [(row["what"], row["series"]) for row in rows(made.figure("rejected"))]
    assert found == [(one.what, f"{one.reason} ({one.what})") for one in plan.rejected]


def test_errors_of_a_fit_leave_out_what_was_not_tested() -> None:
    found = [(row["kind"], row["series"], row["median"], row["p90"]) for row in rows(made.figure("errors"))]
    assert found == [
        ("moe", "halves not fitted", 0.05, 0.2),
        ("moe", "ideal roofline", 0.4, 0.8),
        ("mla", "halves not fitted", 0.05, 0.2),
        ("mla", "families not fitted", 0.06, 0.3),
        ("mla", "ideal roofline", 0.4, 0.8),
    ]


def test_rows_lie_under_the_roof_and_keep_their_amounts() -> None:
    found = made.explained()
    chip = found.deployment.cluster.chip
    by_name = {row.name: row for row in found.time.rows if row.used}
    figure = made.figure("roofline")
    assert len(rows(figure)) > 5
    for row in rows(figure):
        one = by_name[row["operation"]]
        assert row["flop_per_byte"] == one.amounts["compute"] / one.amounts["hbm"]
        assert row["flop_per_s"] * row["seconds"] == pytest.approx(one.amounts["compute"])
        assert row["flop_per_s"] <= 1.02 * row["flop_per_byte"] * chip.hbm_bytes_per_s
    roofs = figure.spec["layer"][0]["data"]["values"]
    assert {row["flop_per_s"] for row in roofs if row["roof"] == "bf16"} >= {chip.flop_per_s("bf16")}


def test_memory_adds_up_to_what_is_usable() -> None:
    memory = made.explained().memory
    held = sum(row["held_bytes"] for row in rows(made.figure("memory")))
    assert held == pytest.approx(float(memory.used) + max(float(memory.free), 0.0))
    marks = [part["x"]["datum"] for part in parts(made.figure("memory").spec) if "x" in part and "datum" in part["x"]]
    assert {float(memory.usable), memory.total} <= set(marks)


def test_bars_of_what_fits_fill_the_chip() -> None:
    chip = cluster("dgx-h100").chip
    bars: dict[str, float] = {}
    for row in rows(made.figure("what fits")):
        bars[row["name"]] = bars.get(row["name"], 0.0) + row["held_bytes"]
    assert list(bars.values()) == pytest.approx([chip.hbm_bytes] * len(bars))
    first = made.fitting().fitting[0]
    assert next(iter(bars)) == f"{first.layout.label()}: {first.total_concurrency:,} requests"
    assert "Nothing fits" in made.figure("what does not fit").description


def test_bars_of_a_step_add_up_to_it() -> None:
    all_best = made.a_train_plan().best
    best, (name, *_) = all_best[0], differences([layout_text(one) for one in all_best])[0]
    found = [row for row in rows(made.figure("step")) if row["name"].startswith(f"{name}, MFU")]
    assert sum(row["seconds"] for row in found) == pytest.approx(best.step_s, rel=0.02)
    held = [row for row in rows(made.figure("memory of training")) if row["name"] == name]
    assert sum(row["held_bytes"] for row in held) == pytest.approx(best.memory["total_bytes"])


def test_losses_lead_from_the_peak_down_to_the_mfu_the_largest_first() -> None:
    best, figure = made.a_train_plan().best[0], made.figure("missing MFU")
    losses, (peak, reached) = rows(figure), figure.spec["layer"][1]["data"]["values"]
    assert (peak["to"], reached["to"]) == (1.0, pytest.approx(best.mfu_causal))
    assert [row["to"] for row in losses] == pytest.approx([1.0, *(row["from"] for row in losses[:-1])])
    assert losses[-1]["from"] == pytest.approx(reached["to"])
    sizes = [row["share"] for row in losses if row["part"] != "smaller parts"]
    assert len(sizes) > 2
    assert sizes == sorted(sizes, reverse=True)


def test_comparison_has_each_ratio_to_the_first() -> None:
    first, second, _ = made.sides()
    found = {row["number"]: row["ratio"] for row in rows(made.figure("compare")) if row["side"] == second.name}
    memory, memory_of_first = second.values["hbm_bytes"], first.values["hbm_bytes"]
    assert memory is not None
    assert memory_of_first is not None
    assert found["memory"] == memory / memory_of_first
    assert first.name not in {row["side"] for row in rows(made.figure("compare"))}


def test_verdicts_are_counted() -> None:
    found = rows(made.figure("verdicts"))
    assert sum(row["claims"] for row in found) == len(made.verdicts())
    held = sum(finding.verdict == "holds" for finding in made.verdicts())
    assert sum(row["claims"] for row in found if row["part"] == "holds") == held


# ---------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_is_read_back_from_its_specification(name: str) -> None:
    figure = made.figure(name)
    again = Figure.from_dict(json.loads(figure.json("dark")))
    assert again.to_dict() == json.loads(figure.json())


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_ending_is_written_whole(ending: str, tmp_path: Path) -> None:
    file = tmp_path / f"front{ending.upper()}"
    figure = made.figure("front")
    figure.save(file)
    data = file.read_bytes()
    starts = {
        ".svg": b"<svg",
        ".png": b"\x89PNG\r\n",
        ".pdf": b"%PDF-",
        ".html": b"<!doctype html>",
        ".json": b'{"$schema',
    }
    assert data.startswith(starts[ending])
    assert [path.name for path in tmp_path.iterdir()] == [file.name], "nothing is left beside it"
    if ending == ".json":
        assert json.loads(data) == json.loads(json.dumps(figure.to_dict()))
    if ending == ".png":
        width = int.from_bytes(data[16:20])
        assert width > 2 * figure.width


def test_page_needs_nothing_else(tmp_path: Path) -> None:
    figure = Figure(
        title="</script><b>",
        description='say "it"',
        spec={"data": {"values": [{"x": 1, "text": "</script>"}]}, "mark": "point", "encoding": {"x": {"field": "x"}}},
    )
    page = figure.html()
    assert "<b>" not in page
    assert page.count("</script>") == 3
    assert not re.search(r"""(src|href)\s*=\s*["']?https?:""", page)
    assert not re.search(r"@import|<link|fetch\(['\"]http", page)
    data = json.loads(re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[0])
    assert data["spec"]["data"] == figure.spec["data"]
    assert set(data["configs"]) == set(THEME_NAMES)
    assert data["look"] == "auto"


def test_notebooks_draw_it_themselves() -> None:
    bundle = made.figure("front")._repr_mimebundle_()
    assert bundle[NOTEBOOK_TYPE]["$schema"].endswith("vega-lite/v5.json")
    assert NOTEBOOK_TYPE == "application/vnd.vegalite.v5+json"
    assert made.figure("front").title in bundle["text/plain"]


def test_plot_path_must_be_a_known_format(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nearest: front\.svg"):
        check_plot_path("front.gif")
    folder = tmp_path / "folder.svg"
    folder.mkdir()
    with pytest.raises(InputError, match="folder"):
        check_plot_path(str(tmp_path / "none" / "front.svg"))
    with pytest.raises(InputError, match="folder"):
        check_plot_path(str(folder))
    assert check_plot_path(str(tmp_path / "front.SVG")) == tmp_path / "front.SVG"


def test_without_the_extra_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"pip install 'rackline\[plot\]'; in a clone: uv run --extra plot rackline"):
        check_plot_path(str(tmp_path / "front.png"))
    assert check_plot_path(str(tmp_path / "front.json"))
    figure = made.figure("pipeline")
    figure.save(tmp_path / "front.json")
    with pytest.raises(InputError, match="plot"):
        figure.svg()


def test_the_page_of_figures_is_the_one_that_its_script_writes() -> None:
    root = Path(__file__).resolve().parents[2]
    script = load_script("figures")
    assert (root / "docs" / "figures.md").read_text(encoding="utf-8") == script.page()
    drawn = {script.file_of(picture, look).name for picture in script.PICTURES for look in script.THEME_NAMES}
    others = ("sweep-", "lab-", "page-")  # of the pages on sweeps, on the lab and on the web page
    assert drawn == {file.name for file in (root / "docs" / "images").iterdir() if not file.name.startswith(others)}
    for name in drawn:
        file = root / "docs" / "images" / name
        assert file.stat().st_size < (400_000 if name.startswith("parity-served") else 80_000)  # a mark for each value
        assert ElementTree.parse(file).getroot().attrib["role"] == "img"


def test_an_image_names_the_font_that_its_texts_were_measured_with() -> None:
    """In a wider one, as system-ui is on some systems, long labels were cut off at the edge."""
    assert "system-ui" in made.figure("step").json()
    fonts = set(re.findall(r'font-family="([^"]+)"', made.figure("step").svg()))
    assert fonts == {STILL_FONT}


def test_images_leave_out_what_only_answers_a_pointer() -> None:
    figure = made.figure("tails")
    marks = [layer["mark"] for layer in figure.spec["layer"]]
    assert any(mark.get("opacity") == 0 for mark in marks)
    assert 'opacity="0"' not in figure.svg()
    assert len(figure.svg()) < 60_000


# ---------------------------------------------------------------------------------------------- axes


def written(kind: Kind, values: list[float]) -> list[str]:
    """Numbers as Vega writes them."""
    spec = {
        "data": {"values": [{"v": value, "i": index} for index, value in enumerate(values)]},
        "transform": [{"calculate": text_of(kind, "datum.v"), "as": "t"}],
        "mark": "text",
        "encoding": {"y": {"field": "i", "type": "ordinal", "axis": None}, "text": {"field": "t"}},
    }
    root = ElementTree.fromstring(vl_convert.vegalite_to_svg(spec))
    return [element.text or "" for element in root.iter() if element.tag.endswith("}text")]


@pytest.mark.parametrize(
    ("kind", "values", "texts"),
    [
        (
            "seconds",
            [0.0, 2e-6, 0.0304, 1.0, 60.0, 5400.0, 86400.0],
            ["0 s", "2 µs", "30.4 ms", "1 s", "1 min", "1.5 h", "1 d"],
        ),
        ("seconds", [365.25 * 86400.0], ["1 y"]),
        ("usd", [0.05, 2.5, 1200.0, 1.25e6, 3e9], ["$0.05", "$2.5", "$1,200", "$1.25M", "$3B"]),
        ("count", [8.0, 1500.0, 128_000.0, 70e9, 15e12, 3e15], ["8", "1.5k", "128k", "70B", "15T", "3,000T"]),
        ("bytes", [512.0, 1e9, 141e9], ["512 B", "1 GB", "141 GB"]),
        ("bytes_per_s", [3.35e12], ["3.35 TB/s"]),
        ("flop_per_s", [989e12], ["989 TFLOP/s"]),
        ("share", [0.0, 0.01, 0.125, 1.0], ["0 %", "1 %", "12.5 %", "100 %"]),
        ("power", [3e25, 1.5e21], ["3e25", "1.5e21"]),
        ("number", [1234.5, 0.25], ["1,235", "0.25"]),
    ],
)
def test_numbers_are_written_as_people_write_them(kind: Kind, values: list[float], texts: list[str]) -> None:
    assert [text.replace("−", "-") for text in written(kind, values)] == texts


@pytest.mark.parametrize("kind", ["seconds", "count", "usd"])
@pytest.mark.parametrize(("low", "high"), [(1.0, 1.1), (3e-3, 700.0), (1e-6, 3e9), (0.5, 5.0), (40.0, 50.0)])
def test_log_ticks_lie_inside_and_are_enough(kind: Kind, low: float, high: float) -> None:
    for most in (5, 9):
        ticks = log_ticks(kind, low, high, most)
        assert 2 <= len(ticks) <= max(most, 6)
        assert ticks == sorted(ticks)
        assert all(low * (1 - 1e-6) <= tick <= high * (1 + 1e-6) for tick in ticks)


def test_time_ticks_are_those_of_a_clock() -> None:
    assert log_ticks("seconds", 0.5, 100 * 86400.0)[-3:] == [86400.0, 10 * 86400.0, 100 * 86400.0]
    assert linear_ticks("seconds", 0.0, 7200.0) == [0.0, 1200.0, 2400.0, 3600.0, 4800.0, 6000.0, 7200.0]
    assert linear_ticks("count", 0.0, 1.0) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert linear_ticks("count", 2.0, 2.0) == [2.0]


def test_axes_span_what_is_finite() -> None:
    measure = Measure(field="x_s", title="x", kind="seconds")
    low, high = log_axis(measure, [1.0, 100.0, float("inf"), 0.0, float("nan")])["scale"]["domain"]
    assert 0.5 < low < 1.0
    assert 100.0 < high < 200.0
    assert linear_axis(measure, [])["scale"]["domain"][0] == 0.0
    assert linear_axis(measure, [3.0, 5.0], zero=False)["scale"]["domain"][0] == 3.0


# ---------------------------------------------------------------------------------------------- colours

_TO_LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_TO_OKLAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)
# Machado, Oliveira, Fernandes 2009: full loss of one kind of cone, in linear RGB
_VISION = {
    "full": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def linear(colour: str) -> np.ndarray:
    value = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255.0
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """WCAG 2: (brighter + 0.05) / (darker + 0.05)."""
    weights = np.array([0.2126, 0.7152, 0.0722])
    dark, bright = sorted(float(linear(colour) @ weights) for colour in (one, other))
    return (bright + 0.05) / (dark + 0.05)


def oklab(colour: str, vision: np.ndarray) -> np.ndarray:
    seen = np.clip(vision @ linear(colour), 0.0, 1.0)
    return _TO_OKLAB @ np.cbrt(_TO_LMS @ seen)


@pytest.mark.parametrize("look", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_are_seen_and_told_apart_whatever_the_vision(look: Theme) -> None:
    assert contrast(look.ink, look.background) >= 12.0
    assert contrast(look.muted, look.background) >= 4.5, "text in the muted colour is read"
    for shade in look.category:
        assert contrast(shade, look.background) >= 3.0, shade
    for vision, matrix in _VISION.items():
        for one, other in combinations(look.category, 2):
            distance = float(np.linalg.norm(oklab(one, matrix) - oklab(other, matrix)))
            assert distance >= 0.1, (vision, one, other)


def test_contrast_of_black_on_white_is_21() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_layouts_are_named_by_what_tells_them_apart() -> None:
    own, shared = differences(["tp=4,pp=2,dp=8 · 1f1b", "tp=4,pp=4,dp=4 · 1f1b", "tp=4,pp=2,cp=2,dp=4 · 1f1b"])
    assert own == ["pp=2,dp=8", "pp=4,dp=4", "pp=2,cp=2,dp=4"]
    assert shared == "tp=4,1f1b"
    assert differences(["tp=4,pp=2"]) == (["tp=4,pp=2"], "")

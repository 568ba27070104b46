"""The help's examples of all verbs on screens of 80, 100 and 140 columns: nothing is cut, numbers line up."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from rackline.api.answer import Answer, Verbatim, answer, find_verb
from rackline.api.verbs import entries
from rackline.cli import command, main
from rackline.display.column import SECTION, Column, Sheet, aligned, sheets_of
from rackline.display.terminal import band_bar
from rackline.display.wording import Box, Prose
from rackline.plain import plain

WIDTHS = (80, 100, 140)
_NUMBER = re.compile(r"[^\d,.]*\d[\d,]*(\.\d+)?\D*")
_WHOLE = re.compile(r"[^\d,.]*\d[\d,]*")
# what needs a server, a network, a result of another command, or more than a few seconds
_LEFT_OUT = ("observe", "lab", "measure", "web", "sweep", "sweep-show", "new", "rl")


# Pieces of large examples, and pieces in their place with which an answer has the same tables: of one layout or engine,
# or of fewer values.
_SMALLER = {
    "1k --set hbm_bytes_per_s=20TB/s": "1k --set hbm_bytes_per_s=20TB/s --layout tp=2 --calibration vllm",
    "--prefill-on h100-96": "--prefill-on h100-96 --layout tp=16",
    "--peak-over-mean 1.8 --launch": "--peak-over-mean 1.8 --launch --layout tp=8 --calibration sglang",
    "hbm_bandwidth=3TB/s:12TB/s:4": "hbm_bandwidth=3TB/s,6TB/s --layout tp=4",
    "llama-3.1-70b@dgx-b200": "llama-3.1-70b@dgx-b200 --layout tp=8",
    "deepseek-v3 --on dgx-h200 --contexts": "deepseek-v3 --on dgx-h200 --layout tp=8 --contexts",
    "--load day --rate 20": "--load day --rate 2",
    "--concurrency 4,8,16,32": "--concurrency 4,8",
}
# Examples that take 10 s or more and whose tables other answers of this file have.
_REPEATED = (
    "rackline plan deepseek-v3 --on gb200-nvl72 --input 4k --output 1k --tpot 30ms --ttft 2s",
    "rackline afford llama-3.1-70b qwen2.5-72b --on dgx-h100 --on dgx-h200",
    "rackline validate",
)


def smaller(line: str) -> str:
    """Return an example that asks less than the printed one. It is empty where other answers have its tables."""
    line = " ".join(line.split())
    if line.startswith(_REPEATED):
        return ""
    for piece, less in _SMALLER.items():
        line = line.replace(piece, less)
    return line


@cache
def answers(*, as_printed: bool = False) -> Mapping[str, Answer[Any, Any]]:
    """Answers of the help's examples that need no file.

    Args:
        as_printed: asks what the help prints; by default large questions are made smaller, see `smaller`.
    """
    found: dict[str, Answer[Any, Any]] = {}
    with pytest.MonkeyPatch.context() as patch:
        for verb, entry in entries().items():
            if not verb or verb in _LEFT_OUT:
                continue
            for line in entry.examples.replace("\\\n", " ").splitlines():
                line = line if as_printed else smaller(line)
                words = shlex.split(line.strip().partition(" --json")[0].partition(" --plot")[0])
                if words[:2] == ["rackline", verb] and not re.search(r"\.(toml|jsonl?|csv|json|html)\b|Qwen", line):
                    name = " ".join(words)
                    patch.setattr(command, "show", lambda one, *, json, name=name: found.update({name: one}))
                    patch.setattr("sys.argv", words)
                    assert main.run() == 0, name
    return found


@cache
def read(verb: str, folder: Path) -> Answer[Any, Any]:
    """The page's example of a verb that reads a file."""
    body = dict(entries()[verb].request)
    names = {}
    for name, text in body.pop("uploads").items():
        (folder / name).write_text(text)
        names[name] = str(folder / name)
    given = {
        key: [names.get(one, one) for one in value] if isinstance(value, list) else names.get(value, value)
        for key, value in body.items()
    }
    return answer(find_verb(verb).question(**given))


def screens(one: Answer[Any, Any]) -> Iterator[tuple[int, str, list[Any]]]:
    """Width, text and parts of an answer on each screen."""
    for width in WIDTHS:
        out, parts = io.StringIO(), [part for part in one.text(width) if not isinstance(part, Verbatim)]
        console = Console(file=out, width=width, color_system=None, legacy_windows=False)
        for part in parts:
            console.print(part)
        yield width, out.getvalue(), parts


def misaligned(sheet: Sheet[Any], width: int) -> list[str]:
    """Columns of numbers whose decimal points do not stand below each other."""
    found: list[str] = []
    for column in sheet.table(width).columns:
        cells = [cell.plain if isinstance(cell, Text) else "" for cell in column.cells]
        ends = {len(cell) - whole.end() for cell in cells if _NUMBER.fullmatch(cell) and (whole := _WHOLE.match(cell))}
        if column.justify == "right" and len(ends) > 1:
            found.append(f"{sheet.name}: {column.header}: {cells}")
    return found


def checked(name: str, one: Answer[Any, Any]) -> list[str]:
    """What is wrong with the screens of an answer."""
    wrong: list[str] = []
    for width, text, parts in screens(one):
        lines = text.splitlines()
        wrong += [f"{name} at {width}: too long: {line}" for line in lines if len(line) > width]
        wrong += [f"{name} at {width}: {line}" for line in lines if "e+0" in line or re.search(r"\de-0\d", line)]
        wrong += [f"{name} at {width}: cut: {line}" for line in lines if "…" in line]
        for sheet in sheets_of(parts):
            wrong += [f"{name} at {width}: not aligned: {text}" for text in misaligned(sheet, width)]
            least = [len(max(str(column.header).split("\n"), key=len)) for column in sheet.table(width).columns]
            if sum(least) + 2 * (len(least) - 1) > width:
                wrong.append(f"{name} at {width}: titles of {sheet.name} are wider than the screen")
    return wrong


def test_the_examples_are_of_all_verbs_that_need_no_file() -> None:
    verbs = {name.split()[1] for name in answers()}
    assert len(answers()) >= 40
    assert {
        "plan",
        "train",
        "simulate",
        "explain",
        "fit",
        "tiers",
        "price",
        "infer-prices",
        "budget",
        "compare",
    } < verbs
    assert {"chips", "clusters", "models", "memory", "lecture"} < verbs


@pytest.mark.parametrize("as_printed", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_screens_of_the_helps_examples(as_printed: bool) -> None:
    wrong = [text for name, one in answers(as_printed=as_printed).items() for text in checked(name, one)]
    assert not wrong, "\n".join(wrong)


def test_an_answer_says_in_short_what_was_found() -> None:
    empty = [name for name, one in answers().items() if not re.fullmatch(r"<[\w-]+: \S[\s\S]*>", repr(one))]
    assert not empty, empty


@pytest.mark.parametrize("verb", ["validate", "calibrate", "encode", "ask"])
def test_screens_of_examples_that_read_files(verb: str, tmp_path: Path) -> None:
    wrong = checked(verb, read(verb, tmp_path))
    assert not wrong, "\n".join(wrong)


def test_programs_get_the_tables_that_the_screen_shows() -> None:
    for name, one in answers().items():
        columns = one.tables()
        for sheet in sheets_of(one.text()):
            assert sheet.name in columns, f"{name}: {sheet.name}"
            assert {column.key for column in sheet.columns if column.key} <= set(columns[sheet.name]), name
        for table, values in columns.items():
            assert len({len(each) for each in values.values()}) <= 1, f"{name}: {table}"


def test_keys_of_columns_are_keys_of_json() -> None:
    """A column without a function of its own reads what JSON has under its key."""
    seen = 0
    for name, one in answers().items():
        for sheet in sheets_of(one.text()):
            rows = [row for row in sheet.rows if row is not SECTION and hasattr(type(row), "json_keys")]
            for row in rows[:1]:
                data = plain(row)
                for column in sheet.columns:
                    if column.getter is None and "." not in column.key:
                        assert column.key in data, f"{name}: {sheet.name}: {column.key}"
                        seen += 1
    assert seen > 20


def test_a_plan_as_a_frame_holds_its_answer() -> None:
    name = next(name for name in answers() if name.startswith("rackline plan llama-3.1-70b --on dgx-h100"))
    one = answers()[name]
    rows = one.to_frame().to_dicts()
    assert [row["chosen"] for row in rows] == [True, *([False] * (len(rows) - 1))]
    best = one.result.plan.best
    for key in ("requests_per_s", "tpot_s", "ttft_s", "usd_per_mtok_output_all_in", "num_chips"):
        assert rows[0][key] == pytest.approx(getattr(best, key)), key
    assert [limit["metric"] for limit in one.to_dict()["risk"]["limits"]] == ["tpot_s", "ttft_s"]  # drawn in the box
    assert one.to_frame("bands").to_dicts()[0]["quantity"].endswith("per M output, all-in")
    with pytest.raises(Exception, match=r"band.*nearest: bands"):
        one.to_frame("band")


def test_decimal_points_stand_below_each_other() -> None:
    cells = aligned(["1.55 TB/s", "600 GB/s", "-", "never", "$0.0389"])
    assert cells == ["1.55 TB/s", "600 GB/s   ", "-        ", "never", "$0.0389   "]


def test_a_narrow_screen_breaks_titles_then_leaves_out_what_counts_least() -> None:
    columns: list[Column[Any]] = [
        Column("name", "name"),
        Column("bytes", "bytes of all weights", "B"),
        Column("seconds", "time of a step", "s", priority=1),
        Column("text", "said", "words", priority=2),
    ]
    sheet = Sheet("t", columns, [("a", 2e9, 0.5, "several words that may break"), ("b", 3e12, None, "few")])
    shown = {width: [str(one.header) for one in sheet.table(width).columns] for width in (90, 50, 30, 16)}
    assert shown[90] == ["name", "bytes of all weights", "time of a step", "said"]
    assert shown[50] == ["name", "bytes\nof all\nweights", "time\nof a\nstep", "said"]
    assert shown[30] == ["name", "bytes\nof all\nweights", "time\nof a\nstep"]
    assert shown[16] == ["name", "bytes\nof all\nweights"]
    assert sheet.data()["seconds"] == [0.5, None], "what the screen leaves out is data"


def test_a_band_marks_prediction_and_limit() -> None:
    text = band_bar(8.0, 10.0, 14.0, 12.0, 15)
    assert text.plain == "        ━━●━┃━━"
    styles = {text.plain[span.start]: str(span.style) for span in text.spans if span.start == 13}
    assert styles == {"━": "red"}, "beyond the limit"
    assert band_bar(1.0, 1.0, 1.0, width=5).plain == "    ●"
    assert band_bar(0.0, 0.0, 0.0, width=3).plain == "●  "
    assert band_bar(2.0, 4.0, 3.0, width=5).plain == "  ━━●", "a prediction above its band is where it is"
    assert band_bar(1.0, None, 2.0, 4.0, width=5).plain == " ━━ ┃", "a part of a whole has no value inside"


def test_prose_parts_neither_a_number_from_its_unit_nor_a_layout_within_a_part() -> None:
    lines = [line.plain for line in Prose("takes 30.4 ms with tp=8,attention_dp=16 at once").lines(16)]
    assert lines == ["takes 30.4 ms", "with tp=8,", "attention_dp=16", "at once"]


def test_a_title_longer_than_the_frame_stands_inside_it() -> None:
    out = io.StringIO()
    Console(file=out, width=30, color_system=None).print(
        Box(Text("answer"), "a model on a cluster of many chips", "asked")
    )
    assert "a model on a cluster of" in out.getvalue()
    assert "many chips" in out.getvalue()
    assert out.getvalue().splitlines()[-1].startswith("╰─ asked")

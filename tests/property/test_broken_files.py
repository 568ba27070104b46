"""Every broken file ends in one clear line: each cell, key and line of small files is broken in turn.

A file with a fault either still means something (status 0 or 1), or is refused with status 2 and one line. Nothing
ends in a traceback, and no answer holds NaN or infinities.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers import complaint_of, run_command

TESTS = Path(__file__).resolve().parents[1]
PLACES = (TESTS / "golden" / "asked", TESTS / "fixtures" / "agents", TESTS.parent / "docs" / "how-to")
SERVE = "simulate llama-3.1-8b --on dgx-h100 --chips 1 --layout tp=1"
READ_BY = {
    "mix.csv": f"{SERVE} --rate 1 --requests 20 --mix mix.csv",
    "trace.csv": f"{SERVE} --trace trace.csv",
    "azure.csv": f"{SERVE} --trace azure.csv",
    "mooncake.jsonl": f"{SERVE} --trace mooncake.jsonl --prefix-caching",
    "benchmark.json": f"{SERVE} --trace benchmark.json",
    "load.csv": f"{SERVE} --input 100 --output 10 --load load.csv --load-time 2min",
    "classes.toml": f"{SERVE} --rate 2 --requests 40 --classes classes.toml",
    **{
        name: f"{SERVE} --agents {name} --concurrency 1 --requests 8"
        for name in (
            *("weka.json", "weka_relative.json", "otel.json", "agentic_mooncake_v1.jsonl"),
            *("agentic_mooncake_v2.jsonl", "aiperf_inputs.json", "aiperf_turns.jsonl", "sharegpt.json"),
        )
    },
    "config.json": "models config.json",
    "adapter_config.json": "explain llama-3.1-8b --on dgx-h100 --layout tp=1 --batch 1 --context 1k "
    "--adapter adapter_config.json",
    "losses.csv": "budget --loss 2.1 --law losses.csv --traffic 100k",
    "lengths.txt": "rl qwen3-8b --on dgx-h100 --chips 16 --trace lengths.txt --gen-layout tp=1 "
    "--train-layout tp=2,pp=1",
    "questions.toml": "ask questions.toml",
    "space.toml": "sweep space.toml --search --workers 1 --evaluations 10",
    "drawn.toml": "sweep drawn.toml --search --workers 1 --evaluations 10",
    "cases.jsonl": "validate cases.jsonl --strict",
    "products.csv": "validate products.csv --strict",
    "collectives.csv": "calibrate collectives.csv --processes 1",
    "steps.csv": "validate steps.csv --strict",
    "tuning.csv": "validate tuning.csv --strict",
    "adapters.csv": "validate adapters.csv --strict",
    "results.csv": "audit results.csv",
    "result.json": "validate --import vllm result.json --chip h100-sxm --num-chips 1 --layout tp=1",
    "genai-perf.json": "validate --import genai-perf genai-perf.json --model llama-3.1-8b --chip h100-sxm "
    "--num-chips 2 --layout tp=2 --precision fp8 --input-len 1000 --output-len 200 --concurrency 16",
    "inferencex.json": "validate --import inferencex inferencex.json",
    "guidellm.json": "validate --import guidellm guidellm.json --model llama-3.1-8b --chip h100-sxm "
    "--num-chips 1 --stack vllm",
    "aiperf.json": "validate --import aiperf aiperf.json --model llama-3.1-8b --chip h100-sxm --num-chips 2 "
    "--layout tp=2 --stack vllm",
    **{
        f"requests-{form}.json": f"validate --import {form} requests-{form}.json --model llama-3.1-8b --chip h100-sxm "
        "--num-chips 1 --stack vllm --input-len 80 --output-len 4"
        for form in ("vllm", "aiperf", "genai-perf", "inference-perf")
    },
    **{f"{name}.csv": f"validate {name}.csv --strict" for name in ("parts", "decodes", "prompts", "experts")},
    "served.jsonl": "validate served.jsonl --strict",
    "trained.jsonl": "validate trained.jsonl --strict",
    "chip.toml": "chips chip.toml",
    "cluster.toml": "clusters cluster.toml",
    "memory.toml": "memory memory.toml",
    "model.toml": "models model.toml",
    "own.toml": "explain llama-3.1-8b --on dgx-h100 --layout tp=1 --batch 8 --context 2k --calibration own.toml",
    "prices.toml": "infer-prices prices.toml",
}
MADE = {
    "chip.toml": "new chip chip --like h100-sxm",
    "cluster.toml": "new cluster cluster --like dgx-h100",
    "memory.toml": "new memory memory",
    "own.toml": "calibrate products.csv --processes 1 -o own.toml",
    "prices.toml": "new prices prices",
    "model.toml": "new model model --like qwen3-8b",
}
ROWS = 2  # of a table or a file of lines that stay
MOST_LINES = 45  # of a TOML file that are broken
EVERY = 12  # one fault in so many is tried in every run, all of them nightly
LONGEST_MESSAGE = 1000  # characters; an empty file lacks many keys
WRONG = ("x", "-1", "")
WRONG_JSON = ("x", -1, None, [])


def short_text(file: Path) -> str:
    """The file, or its first lines where each line is a row."""
    lines = file.read_text(encoding="utf-8").splitlines()
    if file.suffix == ".jsonl" or (file.suffix == ".csv" and file.name != "losses.csv"):
        lines = lines[: ROWS + 1]
    return "\n".join(lines) + "\n"


def broken(name: str, text: str) -> Iterator[tuple[str, str]]:
    """Each fault and the text with it."""
    yield "empty", ""
    yield "cut", text[: 2 * len(text) // 3]
    yield "binary", text[:20] + "\0\x01" + text[20:]
    if name.endswith(".csv"):
        yield from broken_table(text)
    elif name.endswith(".toml"):
        yield from broken_toml(text)
    elif name.endswith((".jsonl", "requests-aiperf.json")):  # an object a line
        first, *others = lines = text.splitlines()
        for at in range(min(len(lines), 2)):
            for fault, changed in broken_json(json.loads(lines[at])):
                yield f"line {at + 1}, {fault}", "\n".join([*lines[:at], json.dumps(changed), *lines[at + 1 :]])
        yield "line 2 is no JSON", "\n".join([first, "{", *others])
        yield "line 2 is a list", "\n".join([first, "[1]", *others])
    elif name.endswith(".json"):
        for fault, changed in broken_json(json.loads(text)):
            yield fault, json.dumps(changed)
    else:
        lines = text.splitlines()
        for wrong in WRONG:
            yield f"line 2 is {wrong!r}", "\n".join([lines[0], wrong, *lines[2:]])


def broken_table(text: str) -> Iterator[tuple[str, str]]:
    """A heading that lacks, repeats or renames a column; a cell that is no number; a row that is too long."""
    rows = list(csv.reader(text.splitlines()))
    head, row = rows[0], rows[2]

    def table(rows: list[list[str]]) -> str:
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows(rows)
        return out.getvalue()

    def put(number: int, changed: list[str]) -> str:
        return table([changed if at == number else one for at, one in enumerate(rows)])

    yield "a heading alone", table([head])
    yield "line 3 has a cell more", put(2, [*row, "1"])
    yield "line 3 has a cell less", put(2, row[:-1])
    for place, title in enumerate(head):
        yield f"without {title}", table([one[:place] + one[place + 1 :] for one in rows])
        yield f"{title} is renamed", put(0, [*head[:place], title + "q", *head[place + 1 :]])
        for wrong in WRONG:
            yield f"line 3, {title} is {wrong!r}", put(2, [*row[:place], wrong, *row[place + 1 :]])
    yield f"{head[0]} stands twice", put(0, [*head[:-1], head[0]])


def broken_toml(text: str) -> Iterator[tuple[str, str]]:
    """A key that is left out, renamed, or has a value of another kind."""
    lines = text.splitlines()
    places = [at for at, line in enumerate(lines) if re.match(r'[\w."-]+ = ', line)]
    for place in places[:MOST_LINES]:
        key, value = lines[place].split(" = ", 1)
        if value.endswith(("[", '"""')):
            continue

        def put(*changed: str, at: int = place) -> str:
            return "\n".join([*lines[:at], *changed, *lines[at + 1 :]]) + "\n"

        at = f"line {place + 1}, {key}"
        yield f"{at} is left out", put()
        yield f"{at} is renamed", put(f"{key.strip(chr(34))}q = {value}".replace(".", "_"))
        for wrong in ('"x"', "-1", "[]"):
            yield f"{at} is {wrong}", put(f"{key} = {wrong}")


def broken_json(data: Any, where: str = "", depth: int = 3) -> Iterator[tuple[str, Any]]:
    """A key that is left out or has a value of another kind, in objects within three levels; of lists the first."""
    if depth and isinstance(data, list) and data:
        for fault, changed in broken_json(data[0], f"{where}[0]", depth - 1):
            yield fault, [changed, *data[1:]]
    if not depth or not isinstance(data, dict):
        return
    for key, value in data.items():
        at = f"{where}.{key}".lstrip(".")
        yield f"{at} is left out", {name: one for name, one in data.items() if name != key}
        for wrong in WRONG_JSON:
            yield f"{at} is {wrong!r}", data | {key: wrong}
        for fault, changed in broken_json(value, at, depth - 1):
            yield fault, data | {key: changed}


def faults_of(name: str, every: int) -> dict[str, str]:
    """Return what is wrong with the way in which each fault of a file is told.

    Args:
        name: of the file.
        every: one fault in so many is tried, from all over the file.
    """
    wrong: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve() / "asked"
        shutil.copytree(PLACES[0], folder)
        if name in MADE:
            assert run_command(shlex.split(MADE[name]), folder).status == 0
            source = folder / name
        else:
            source = next(place / name for place in PLACES if (place / name).exists())
        text = short_text(source)
        words = [*shlex.split(READ_BY[name]), "--json"]
        (folder / name).write_text(text, encoding="utf-8")
        usual = run_command(words, folder)
        assert usual.status == 0, usual.err
        for fault, changed in list(broken(name, text))[::every]:
            (folder / name).write_text(changed, encoding="utf-8")
            told = complaint_of(run_command(words, folder), LONGEST_MESSAGE)
            if told:
                wrong[fault] = told
    return wrong


@pytest.mark.parametrize("name", READ_BY)
def test_faults_of_a_file_end_in_one_clear_line(name: str) -> None:
    assert faults_of(name, EVERY) == {}


@pytest.mark.nightly
@pytest.mark.parametrize("name", READ_BY)
def test_every_fault_of_a_file_ends_in_one_clear_line(name: str) -> None:
    assert faults_of(name, 1) == {}

"""Bad input: one line on standard error that says what is wrong and what is nearest, exit 2, nothing else."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rackline.cli.main import run

PLAN = ["plan", "deepseek-v3", "--on", "gb200-nvl72", "--input", "4k", "--output", "1k"]
EXPLAIN = ["explain", "llama-3.1-70b", "--on", "dgx-h100", "--batch", "8", "--context", "1k"]

# arguments, and parts of the line
CASES: list[tuple[list[str], tuple[str, ...]]] = [
    ([*PLAN, "--tpot", "0"], ("--tpot", "more than zero")),
    ([*PLAN, "--tpot", "-5ms"], ("--tpot", "'-5ms'", "nearest: 5ms")),
    ([*PLAN, "--tpot", "nan"], ("--tpot", "'nan'")),
    ([*PLAN, "--tpot", "30GB"], ("--tpot", "a time such as 30ms")),
    ([*PLAN, "--ttft", "inf"], ("--ttft",)),
    (["plan", "deepseek-v3", "--on", "gb200-nvl72", "--input", "0", "--output", "1k"], ("--input",)),
    (["plan", "deepseek-v3", "--on", "gb200-nvl72", "--input", "4k", "--output", "1"], ("--output", "nearest: 2")),
    (["plan", "deepseek-v3", "--on", "gb200-nvl72", "--input", "1e30", "--output", "1k"], ("--input", "1.00B")),
    (["plan", "deepseek-v3", "--on", "gb200-nvl72", "--for", "chatt"], ("--for", "nearest: chat")),
    ([*PLAN, "--requests", "50/s", "--users", "20"], ("--users", "only without --requests")),
    ([*PLAN, "--think-time", "5s"], ("--think-time", "together with --users")),
    ([*PLAN, "--users", "50", "--offline-share", "20%"], ("--offline-share", "--traffic or --requests")),
    ([*PLAN, "--requests", "50/minute"], ("--requests", "50/s, 3k/min or 1M/h")),
    (["plan", "deepsek-v3", *PLAN[2:]], ("model", "nearest: deepseek-v3")),
    (["plan", "deepseek-v3", "--on", "gb200-nvl73", *PLAN[4:]], ("cluster", "nearest: gb200-nvl72")),
    ([*PLAN, "extra"], ("extra",)),
    ([*PLAN, "--layout", "tp=7"], ("does not divide the 128 query heads", "nearest: tp=8")),
    ([*PLAN, "--layout", "tp=0"], ("--layout tp", "nearest: 1")),
    ([*PLAN, "--layout", "tq=8"], ("nearest: tp=8",)),
    ([*PLAN, "--layout", "dp=2"], ("--chips",)),
    ([*PLAN, "--layout", ""], ("--layout",)),
    ([*PLAN, "--precision", "fp7"], ("--precision", "nearest: fp8")),
    ([*PLAN, "--precision", "fp8,kv=foo"], ("data type", "foo")),
    ([*PLAN, "--mode", "chunkd"], ("--mode", "nearest: chunked")),
    ([*PLAN, "--mode", "chunked=0"], ("--mode tokens",)),
    ([*PLAN, "--mode", "chunked,overlap", "--layout", "attention_dp=1"], ("attention_dp of at least 2",)),
    ([*PLAN, "--chips", "0"], ("--chips",)),
    ([*PLAN, "--chips", "2.5"], ("a whole number", "nearest: 2")),
    ([*PLAN, "--chips", "1e6"], ("1 to 32768", "nearest: 32768")),
    ([*PLAN, "--price", "-1"], ("--price",)),
    ([*PLAN, "--price", "abc"], ("--price",)),
    ([*PLAN, "--memory-fraction", "0"], ("--memory-fraction",)),
    ([*PLAN, "--memory-fraction", "1.2"], ("--memory-fraction", "nearest: 100 %")),
    ([*PLAN, "--cache-hit", "200%"], ("--cache-hit",)),
    ([*PLAN, "--routing", "unifrm"], ("--routing", "nearest: uniform")),
    ([*PLAN, "--routing", "power-law=-1"], ("--routing exponent",)),
    ([*PLAN, "--calibration", "genric"], ("--calibration", "auto, atom, generic", "nearest: generic")),
    ([*PLAN, "--calibration", "atuo"], ("--calibration", "nearest: auto")),
    ([*PLAN, "--calibration", "assumed"], ("--calibration", "got 'assumed'")),
    ([*EXPLAIN, "--calibration", "vlm"], ("--calibration", "nearest: vllm")),
    ([*PLAN, "--calibration", "no/such.toml"], ("calibration file", "an existing file")),
    ([*PLAN, "--set", "hbm_bytes_per=1"], ("--set", "nearest: hbm_bytes_per_s=1")),
    ([*PLAN, "--set", "hbm_bytes_per_s"], ("KEY=VALUE",)),
    ([*PLAN, "--set", "hbm_bytes_per_s=-1"], ("hbm_bytes_per_s", "not negative")),
    ([*PLAN, "--set", "hbm_bytes_per_s=20GB"], ("bytes per second",)),
    ([*PLAN, "--tpto", "30ms"], ("'--tpto'", "nearest: --tpot")),
    ([*PLAN, "--plot", "x.gif"], (".html or .json", "nearest: x.svg")),
    ([*PLAN, "--plot", "x.json", "--plot-theme", "drak"], ("--plot-theme", "nearest: dark")),
    ([*PLAN, "--plot", "no/such/folder/x.svg"], ("a folder that exists",)),
    (["plan", "llama-3.1-8b", "--on", "dgx-h100", *PLAN[4:], "--mode", "chunked,overlap"], ("--mode", "no overlap")),
    (["pln"], ("'pln'", "nearest: plan")),
    (["--bogus"], ("--bogus",)),
    (["models", "nope/such-model"], ("model", "nope/such-model")),
    (["models", "no/such/config.json"], ("config.json", "No such file")),
    (["chips", "h1000"], ("chip", "nearest: h100-sxm")),
    (["chips", "h100", "--set", "hbm_byte=1"], ("nearest: hbm_bytes=1",)),
    (["chips", "--set", "a=1"], ("only together with the name",)),
    (["models", "llama-3.1-70b", "--set", "num_layers=0"], ("architecture.num_layers", "got 0")),
    ([*EXPLAIN, "--layout", "tp=16"], ("needs 16 chips, the cluster has 8", "nearest: tp=8")),
    ([*EXPLAIN, "--policy", "seriel"], ("--policy", "nearest: serial")),
    ([*EXPLAIN, "--trace", "no/such/folder/t.json"], ("--trace", "a folder that exists")),
    ([*EXPLAIN[:-4], "--batch", "0", "--context", "1k"], ("--batch", "--prefill")),
    ([*EXPLAIN[:-4], "--batch", "8.5", "--context", "1k"], ("--batch", "a whole number")),
    (["fit", "llama-3.1-70b", "--on", "dgx-h100", "--context", "-1"], ("--context",)),
    (["fit", "llama-3.1-70b", "--on", "dgx-h100", "--concurrency", "0"], ("--concurrency",)),
]


def refusal(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    status = run(arguments)
    out, err = capsys.readouterr()
    assert status == 2, out + err
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize(("arguments", "parts"), CASES, ids=[" ".join(c[0][-2:]) or "-" for c in CASES])
def test_refused_in_one_line(
    arguments: list[str],
    parts: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    line = refusal(capsys, arguments)
    for part in parts:
        assert part in line, line
    assert not list(tmp_path.iterdir()), "nothing is written"


BROKEN = {
    "syntax.toml": ("name = \n", "line 1"),
    "extra.toml": ('name = "x"\nfull_name = "x"\nnative_precsion = "bf16"\nsources = []\n', "native_precision"),
    "syntax.json": ('{"model_type":', "line 1"),
    "empty.json": ("{}", "model_type"),
    "list.json": ("[]", "list.json"),
    "negative.json": (json.dumps({"model_type": "llama", "num_hidden_layers": -2}), "negative.json"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_named(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, part = BROKEN[name]
    file = tmp_path / name
    file.write_text(content)
    line = refusal(capsys, ["models", str(file)])
    assert name in line
    assert part in line


def test_folder_in_place_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "model.toml"
    folder.mkdir()
    assert "model.toml" in refusal(capsys, ["models", str(folder)])
    other = tmp_path / "config.json"
    other.mkdir()
    assert "config.json" in refusal(capsys, ["models", str(other)])


def test_file_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "plot.svg"
    target.mkdir()
    base = ["plan", "llama-3.1-8b", "--on", "dgx-h100", "--input", "1k", "--output", "100"]
    assert "plot.svg" in refusal(capsys, [*base, "--plot", str(target)])


def test_image_without_its_extra_names_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)  # type: ignore[arg-type]
    line = refusal(capsys, [*PLAN, "--plot", "front.png"])
    assert "pip install 'rackline[plot]'" in line
    assert "nearest: front.json" in line


def test_the_installed_command_exits_2() -> None:
    command = Path(sys.executable).with_name("rackline")
    result = subprocess.run([command, *PLAN, "--tpot", "fast"], capture_output=True, text=True, timeout=1200)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: --tpot: got 'fast'")


def test_interrupt_exits_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import rackline.cli.command as command

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "print_json", interrupted)
    assert run(["chips", "--json"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def started(*words: str, redirect: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the program itself in a shell, with its output redirected."""
    line = shlex.join([sys.executable, "-m", "rackline", *words]) + redirect
    return subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, encoding="utf-8", env=os.environ | environment, timeout=1200
    )


@pytest.mark.parametrize(("redirect", "reason"), [(" >&-", "closed"), (" > /dev/full", "No space left")])
def test_output_that_cannot_be_written_is_said_in_one_line(redirect: str, reason: str) -> None:
    if "full" in redirect and not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    for words in (["models"], ["models", "--json"]):
        done = started(*words, redirect=redirect)
        assert done.returncode == 2
        assert reason in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_json_is_utf8_whatever_the_locale() -> None:
    words = ("explain", "llama-3.1-8b", "--on", "dgx-h100", "--batch", "8", "--context", "1k", "--json")
    plain = started(*words)
    ascii_only = started(*words, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert any(ord(letter) > 127 for letter in plain.stdout)
    assert ascii_only.stdout == plain.stdout


def test_a_terminal_without_columns_still_shows_a_table() -> None:
    assert "deepseek-v3" in started("models", COLUMNS="0").stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["plan"], "rackline plan: model: got nothing"),
        (["plan", "llama-3.1-8b"], "rackline plan: --on: got nothing"),
        (["plan", "llama-3.1-8b", "--on", "dgx-h100", "--input"], "--input: got nothing"),
        (["models", "a", "b"], "got 'b'"),
        (["plan", "x" * 100_000, *PLAN[2:]], "(100,000 characters)"),
        (["explain", "/dev/zero", *EXPLAIN[2:]], "this is a device"),
        ([*EXPLAIN, "--set", "num_layers=10000000"], "num_layers"),
    ],
)
def test_what_is_missing_or_endless_is_one_short_line(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    error = capsys.readouterr().err
    assert says in error
    assert len(error) < 600
    assert error.count("\n") == 1


def test_a_named_pipe_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("config.json", "model.toml", "trace.csv"):
        os.mkfifo(tmp_path / name)
    assert run(["explain", str(tmp_path / "config.json"), *EXPLAIN[2:]]) == 2
    assert run(["explain", str(tmp_path / "model.toml"), *EXPLAIN[2:]]) == 2
    assert run(["simulate", "llama-3.1-8b", "--on", "dgx-h100", "--trace", str(tmp_path / "trace.csv")]) == 2
    assert capsys.readouterr().err.count("this is a pipe") == 3


_PLAN = ["plan", "llama-3.1-8b", "--on", "dgx-h100", "--input", "1k", "--output", "200"]
_RUN = ["simulate", "llama-3.1-8b", "--on", "dgx-h100", "--input", "1k", "--output", "200", "--rate", "5"]


@pytest.mark.parametrize(
    ("command", "option", "text", "readings"),
    [
        (_PLAN, "--tpot", "50", "50 s or 50 ms?"),
        (_PLAN, "--ttft", "2@p99", "2 s or 2 ms?"),
        (["compare", "llama-3.1-8b@dgx-h100", "llama-3.1-8b@dgx-h200"], "--tpot", "50", "50 s or 50 ms?"),
        (_RUN, "--slo", "ttft=2,tpot=50ms", "2 s or 2 ms?"),
        (_RUN, "--capacity", "ttft=2s,tpot=50", "50 s or 50 ms?"),
        (_RUN, "--think-time", "10", "10 s or 10 ms?"),
        (_RUN, "--kv-link", "50", "50 B/s or 50 GB/s?"),
        (_RUN, "--swap-bandwidth", "50", "50 B/s or 50 GB/s?"),
        (_RUN, "--tier", "host=200@50GB/s", "200 B or 200 GB?"),
        (_RUN, "--tier", "host=200GB@50", "50 B/s or 50 GB/s?"),
        (["price", "llama-3.1-8b", "--on", "dgx-h100"], "--tpot", "50", "50 s or 50 ms?"),
        (["tiers", "llama-3.1-8b", "--on", "dgx-h100"], "--max-load-time", "100", "100 s or 100 ms?"),
        (["tiers", "llama-3.1-8b", "--on", "dgx-h100"], "--hold-time", "5", "5 s or 5 ms?"),
    ],
)
def test_a_number_needs_its_unit_in_every_option(
    command: list[str], option: str, text: str, readings: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, option, text]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert readings in err
    assert len(err.strip().splitlines()) == 1

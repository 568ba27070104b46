"""What is said of wrong values of options: each option of each question is given a word, a negative number and zero.

`options.json` has what is declared of each option (kind, unit, bounds, choices, how it is given), the messages, and
"accepted" where the value means something. After a change that is meant to move
messages:

    PYTHONPATH=tests uv run python tests/golden/test_wrong_options.py write
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from asking import asking
from helpers import run_command
from rackline.api.answer import find_verb
from rackline.api.question import options
from stored import assert_told_as_stored, laid_out, lines_of

HERE = Path(__file__).resolve().parent
STORED = HERE / "options.json"
SERVE = "llama-3.1-8b --on dgx-h100 --layout tp=1"
ASKED_SO = {
    "explain": f"explain {SERVE} --batch 4 --context 1k",
    "fit": "fit llama-3.1-8b --on dgx-h100 --context 8k",
    "encode": "encode config.json --on dgx-h100",
    "simulate": f"simulate {SERVE} --chips 1 --rate 5 --input 200 --output 20 --requests 20",
    "plan": f"plan {SERVE} --chips 1 --input 1k --output 100 --serving aggregated --calibration vllm",
    "train": "train llama-3.1-8b --on dgx-h100 --chips 8 --global-batch 256k --layout tp=2,pp=1",
    "rl": "rl qwen3-8b --on dgx-h100 --chips 16 --gen-layout tp=1 --train-layout tp=2,pp=1",
    "budget": "budget --quality-of 70b@15T --traffic 1M",
    "tiers": f"tiers {SERVE}",
    "price": f"price {SERVE} --contexts 8k --calibration vllm",
    "compare": "compare h100 b200",
    "infer-prices": "infer-prices claude-opus-4.6",
    "lecture": "lecture --claim C10",
    "models": "models",
    "chips": "chips",
    "clusters": "clusters",
    "memory": "memory",
    "validate": "validate cases.jsonl --strict",
    "calibrate": "calibrate products.csv --processes 1",
    "diagnose": "diagnose cases.jsonl",
    "audit": "audit cases.jsonl",
    "sweep": "sweep space.toml --search --workers 1 --evaluations 5",
    "observe": "observe http://127.0.0.1:9 --rate 2 --input 100 --output 10 --requests 2",
}
WRONG = ("x", "-1", "0")
LONGEST = 400  # characters of a message


def said(name: str) -> dict[str, Any]:
    """What is said of each wrong value of each option of a question."""
    found: dict[str, Any] = {
        "declared": {
            field: [option.kind, option.unit, option.minimum, option.maximum, option.zero, list(option.choices),
                    option.several, option.repeated, option.positional, option.hidden, option.output, option.group]
            for field, option in options(find_verb(name).question).items()
        }
    }  # fmt: skip
    with asking() as here:
        for field, option in options(find_verb(name).question).items():
            if option.positional or option.output or option.hidden or option.kind == "switch":
                continue
            flag = option.flag or f"--{field.replace('_', '-')}"
            for wrong in WRONG:
                ran = run_command([*shlex.split(ASKED_SO[name]), flag, wrong], here.folder)
                lines = [line for line in lines_of(ran.err, here.folder) if line]
                assert "Traceback" not in ran.err, (name, flag, wrong)
                assert ran.status in (0, 1, 2), (name, flag, wrong)
                found[f"{flag} {wrong}"] = "accepted" if not ran.status else [ran.status, *lines[-1:]]
    return found


@pytest.mark.parametrize("name", ASKED_SO)
def test_each_wrong_value_of_an_option_is_told_as_stored(name: str) -> None:
    stored = json.loads(STORED.read_text(encoding="utf-8"))[name]
    assert_told_as_stored(stored, said(name))


def test_a_message_is_one_line_of_a_length_that_is_read() -> None:
    stored: dict[str, dict[str, Any]] = json.loads(STORED.read_text(encoding="utf-8"))
    told = {
        f"{name} {wrong}": one
        for name, each in stored.items()
        for wrong, one in each.items()
        if wrong != "declared" and one != "accepted"
    }
    assert {key: one for key, one in told.items() if len(one) != 2} == {}
    assert {key: one for key, one in told.items() if len(one[1]) > LONGEST} == {}


def main() -> int:
    """Write what is said today."""
    if sys.argv[1:] != ["write"]:
        print(__doc__)
        return 2
    STORED.write_text(laid_out({name: said(name) for name in ASKED_SO}) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

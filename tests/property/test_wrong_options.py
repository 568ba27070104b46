"""Wrong values of options: each option of each question is given a word, a negative number and zero.

Each is answered, or refused with status 2 and one line; nothing ends in a traceback.
"""

from __future__ import annotations

import shlex

import pytest

from asking import asking
from helpers import complaint_of, run_command
from rackline.api.answer import find_verb
from rackline.api.question import flag_of, options

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
# a zero is often a value that means something, and then costs an answer
WRONG = ("x", pytest.param("-1", marks=pytest.mark.nightly), pytest.param("0", marks=pytest.mark.nightly))


@pytest.mark.parametrize("value", WRONG)
@pytest.mark.parametrize("name", ASKED_SO)
def test_a_wrong_value_is_answered_or_refused_in_one_line(name: str, value: str) -> None:
    wrong: dict[str, str] = {}
    with asking() as here:
        for field, option in options(find_verb(name).question).items():
            if option.positional or option.output or option.hidden or option.kind == "switch":
                continue
            flag = flag_of(field, option)
            complaint = complaint_of(run_command([*shlex.split(ASKED_SO[name]), flag, value], here.folder))
            if complaint:
                wrong[flag] = complaint
    assert wrong == {}

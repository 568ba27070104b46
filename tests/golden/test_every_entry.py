"""A question about every entry of the catalogue: models, chips, clusters, memories, prices, laws, engines, uses.

`every_entry.json` holds, for each command, some values of its answer and a digest of all, or why there is none. After a
change that is meant to move answers, or a new entry:

    PYTHONPATH=tests uv run python tests/golden/test_every_entry.py write
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from test_right_options import answered, in_short

from asking import asking
from rackline.catalog import names
from stored import assert_told_as_stored, write_anew

STORED = Path(__file__).with_name("every_entry.json")
SHOWN = 3  # values of an answer
TRAINED = "train {} --on dgx-h100 --chips 64 --global-batch 1M --layout {},micro_batch=1 --stack"
ASKED: dict[str, tuple[str, ...]] = {
    "models": (
        "models {}",
        "explain {} --on gb200-nvl72 --batch 64 --context 16k",
        "fit {} --on dgx-h200 --context 8k",
    ),
    "chips": ("chips {}",),
    "clusters": (
        "clusters {}",
        "explain qwen3-30b-a3b --on {} --batch 16 --context 4k",
        "explain llama-3.1-8b --on {} --layout tp=2 --batch 4 --context 1k --prefill 2k",
        "train llama-3.1-8b --on {} --chips 8 --global-batch 256k --layout tp=2,micro_batch=1",
    ),
    "memory": ("memory {}",),
    "prices": ("infer-prices {}",),
    "laws": (
        "budget --law {} --traffic 1M --loss 2.2",
        "budget --law {} --quality-of 8b@2T --traffic 100k",
        "budget --moe 32 --law {} --loss 2.2 --unique-tokens 5T",
    ),
    "calibrations": (
        "explain llama-3.1-70b --on dgx-h200 --layout tp=4 --batch 32 --context 4k --calibration {}",
        "explain deepseek-v3 --on dgx-h200 --layout attention_dp=8,ep=8 --batch 64 --context 4k --calibration {}",
        "explain qwen3-32b --on mi355x-8 --layout tp=4 --batch 8 --context 4k --prefill 1k --calibration {}",
    ),
    "training_stacks": (
        f"{TRAINED.format('llama-3.1-8b', 'tp=2,pp=2')} {{}}",
        f"{TRAINED.format('llama-3.1-8b', 'fsdp=8')} {{}} --recompute full",
        f"{TRAINED.format('mixtral-8x7b', 'tp=2,ep=8')} {{}} --precision fp8",
        f"{TRAINED.format('gpt-3-175b', 'tp=8,pp=4').replace('dgx-h100', 'dgx-a100')} {{}} --recompute selective",
    ),
    "uses": (
        "plan llama-3.1-8b --on dgx-h100 --chips 1 --layout tp=1 --calibration vllm --for {}",
        "simulate llama-3.1-8b --on dgx-h100 --chips 1 --layout tp=1 --calibration vllm --rate 2 --requests 100 "
        "--for {}",
    ),
}
COMMANDS = {
    f"{kind}-{at}": [words.format(name) for name in names(kind)]
    for kind, every in ASKED.items()
    for at, words in enumerate(every, 1)
}


def told(kind: str) -> dict[str, Any]:
    """What comes of the commands of a kind."""
    with asking() as here:
        found = {one: answered(shlex.split(one), here) for one in COMMANDS[kind]}
    return {one: in_short(answer, list(answer[2].items()), SHOWN) for one, answer in found.items()}


@pytest.mark.parametrize("kind", COMMANDS)
def test_an_entry_gives_what_is_stored(kind: str) -> None:
    assert_told_as_stored(json.loads(STORED.read_text(encoding="utf-8"))[kind], told(kind))


if __name__ == "__main__":
    sys.exit(write_anew(STORED, COMMANDS, told, __doc__))

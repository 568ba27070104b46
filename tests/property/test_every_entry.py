"""Every command answers or refuses every entry of the catalogue that it takes.

Entries are models, chips, clusters, memories, price sheets, laws, calibrations, training stacks and uses. A refusal is
one line and ends with status 2. "Nothing fits" is an answer with status 1.
"""

from __future__ import annotations

import shlex

import pytest

from asking import asking
from helpers import run_command
from rackline.catalog import names
from rackline.catalog.index import Kind

TRAIN = "train {} --on dgx-h100 --chips 64 --global-batch 1M"
ASKED: dict[Kind, tuple[str, ...]] = {
    "models": (
        "models {}",
        "explain {} --on gb200-nvl72 --batch 64 --context 16k --layout tp=8",
        "fit {} --on dgx-h200 --context 8k",
        "train {} --on dgx-h200 --chips 512 --global-batch 4M --layout tp=8,pp=1,micro_batch=1 --recompute full",
    ),
    "chips": ("chips {}", "compare {} h100-sxm"),
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
        f"{TRAIN.format('llama-3.1-8b')} --layout tp=2,pp=2,micro_batch=1 --stack {{}}",
        f"{TRAIN.format('llama-3.1-8b')} --layout fsdp=8,micro_batch=1 --recompute full --stack {{}}",
        f"{TRAIN.format('mixtral-8x7b')} --layout tp=2,ep=8,micro_batch=1 --precision fp8 --stack {{}}",
    ),
    "uses": (
        "plan llama-3.1-8b --on dgx-h100 --chips 1 --layout tp=1 --calibration vllm --for {}",
        "simulate llama-3.1-8b --on dgx-h100 --chips 1 --layout tp=1 --calibration vllm --rate 2 --requests 100 "
        "--for {}",
    ),
}
# One plan, simulation, price, tier table or reinforcement step takes a second or more, so all models are asked nightly.
ASKED_NIGHTLY: dict[Kind, tuple[str, ...]] = {
    "models": (
        "train {} --on dgx-h200 --chips 512 --global-batch 4M --layout fsdp=64 --recompute selective-op",
        "compare {} llama-3.1-8b",
        "plan {} --on gb300-nvl72 --chips 8 --layout tp=8 --calibration vllm --input 1k --output 100",
        "simulate {} --on gb300-nvl72 --chips 8 --layout tp=8 --rate 1 --input 500 --output 50 --requests 40",
        "price {} --on gb300-nvl72 --layout tp=8 --contexts 4k --calibration vllm",
        "tiers {} --on gb300-nvl72 --layout tp=8",
        "rl {} --on gb300-nvl72 --chips 576 --output 2k --gen-layout tp=8",
        "afford {} --on gb300-nvl72 --layout tp=8 --users 100 --for chat --calibration vllm --serving aggregated",
    ),
    "clusters": (
        "plan llama-3.1-8b --on {} --chips 2 --layout tp=2 --input 1k --output 100 --serving aggregated",
        "simulate llama-3.1-8b --on {} --chips 2 --layout tp=2 --rate 1 --input 500 --output 50 --requests 40",
        "tiers llama-3.1-8b --on {} --layout tp=1",
    ),
}


IN_EVERY_RUN = 3  # one entry in so many is asked in every run, all of them nightly


def commands(asked: dict[Kind, tuple[str, ...]], *, every: int, nightly: bool) -> list[object]:
    """Return the commands about each kind of entry, one parameter for each pattern of a command.

    Args:
        every: one entry in so many is asked.
        nightly: whether the commands run nightly.
    """
    marks = [pytest.mark.nightly] if nightly else []
    return [
        pytest.param(
            [pattern.format(name) for name in list(names(kind))[place % every :: every]],
            marks=marks,
            id=f"{kind}: {pattern.split()[0]}{' of all' if nightly else ''}",
        )
        for kind, patterns in asked.items()
        for place, pattern in enumerate(patterns)
    ]


@pytest.mark.parametrize(
    "asked",
    [
        *commands(ASKED, every=IN_EVERY_RUN, nightly=False),
        *commands(ASKED, every=1, nightly=True),
        *commands(ASKED_NIGHTLY, every=1, nightly=True),
    ],
)
def test_every_entry_is_answered_or_refused_in_one_line(asked: list[str]) -> None:
    faults: dict[str, str] = {}
    with asking() as here:
        for command in asked:
            here.answers.clear()
            ran = run_command(shlex.split(command), here.folder)
            refused = ran.status == 2 and len(ran.err.strip().splitlines()) == 1
            if not refused and not (ran.status in (0, 1) and here.answers):
                faults[command] = ran.err[-300:]
    assert faults == {}

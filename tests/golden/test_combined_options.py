"""Options together: questions with several options at once, on all kinds of models and chips, drawn at random.

Each question of `right_options.toml` was asked with two to four of its options, in one of the ways that stand there,
and mostly with another model, other chips and another engine, as a seeded random generator drew them.
`combined_options.json` holds the commands, and of each answer its values in short and a digest, or why there is none.
After a change that is meant to move answers, and to draw further ones with a random seed:

    PYTHONPATH=tests uv run python tests/golden/test_combined_options.py write
    PYTHONPATH=tests uv run python tests/golden/test_combined_options.py draw 30 --seconds 4 --seed 3
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from test_right_options import BASES, answered, in_short, merged, option_names, ways

from asking import Asking, asking
from rackline.api.answer import find_verb
from rackline.api.question import flag_of, options
from stored import assert_told_as_stored, laid_out

STORED = Path(__file__).with_name("combined_options.json")
SHOWN = 4  # values of an answer
SLOWEST_S = 1.0  # of a question that is drawn
MODELS = (
    "llama-3.1-8b", "llama-3.1-405b", "qwen3-30b-a3b", "qwen3-32b", "deepseek-v3", "deepseek-v3.2", "gpt-oss-120b",
    "gemma-3-27b", "nemotron-nano-9b-v2", "qwen3-next-80b-a3b", "minimax-m2.5", "minimax-text-01", "llama-4-scout",
    "mimo-7b", "mimo-v2-flash", "mixtral-8x7b", "falcon-180b", "kimi-k2", "deepseek-v4-flash", "gpt-3-175b",
)  # fmt: skip
CLUSTERS = (
    "dgx-h100", "dgx-h200", "dgx-b200", "dgx-a100", "gb200-nvl72", "mi300x-8", "mi355x-8", "tpu-v5p-64", "tpu-v6e-256",
    "trn2-ultra-64", "l40s-8", "rtx-5090-8", "gaudi3-8", "cloudmatrix-384", "groq-576",
)  # fmt: skip
# layouts with as many chips as they need
SERVED = {
    "tp=1": "1", "tp=2": "2", "tp=8": "8", "tp=4,pp=2": "8", "attention_dp=8,ep=8": "8",
    "attention_dp=2,tp=4,ep=8": "8", "tp=2,dp=4": "8", "attention_dp=32,ep=32": "32",
}  # fmt: skip
TRAINED = {
    "tp=2": "8", "tp=8,pp=2": "16", "pp=4,micro_batch=1": "8", "ep=8": "8", "tp=2,cp=2": "16", "fsdp=8": "8",
    "tp=4,ep=8,pp=2,micro_batch=1": "64", "tp=8,pp=8,micro_batch=1": "128",
}  # fmt: skip
ENGINES = ("vllm", "sglang", "trtllm", "unit", "generic")


def drawn(base: str, draw: random.Random) -> list[str]:
    """Words of a question with some of its options, mostly of another model on other chips."""
    words = shlex.split(BASES[base])
    known = options(find_verb(words[0]).question)
    names = [name for name in option_names(base) if name not in ("on", "layout", "calibration", "chips")]
    if "--on" in words and draw.random() < 0.8:
        if not words[1].startswith("--") and not words[1].endswith(".json"):
            words[1] = draw.choice(MODELS)
        layout, chips = draw.choice(list((TRAINED if words[0] == "train" else SERVED).items()))
        around = {"on": draw.choice(CLUSTERS), "calibration": draw.choice(ENGINES), "layout": layout, "chips": chips}
        for name, value in around.items():
            if name in known and (name == "chips" or draw.random() < 0.8):
                words = merged(words, [f"--{name}", value])
    for name in draw.sample(names, min(draw.randint(2, 4), len(names))):
        way = draw.choice(ways(base, name, known[name]))
        words = merged(words, [flag_of(name, known[name]), *shlex.split(way)])
    return words


def told(command: str, here: Asking) -> list[Any]:
    """Status, the answer in short, how many values it has, some of them, and a digest; or the status and why."""
    answer = answered(shlex.split(command), here)
    return in_short(answer, list(answer[2].items()), SHOWN)


@cache
def stored() -> dict[str, dict[str, list[Any]]]:
    """What the file holds, by question and command."""
    return json.loads(STORED.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("base", "place"), [(base, place) for base in stored() for place in range(4)])
def test_options_together_answer_what_is_stored(base: str, place: int) -> None:
    """Every fourth of the commands of a question, so that several processes share them."""
    found = dict(list(stored()[base].items())[place::4])
    with asking() as here:
        assert_told_as_stored(found, {command: told(command, here) for command in found})


def draw_more(base: str, count: int, seconds: float, seed: str) -> dict[str, list[Any]]:
    """Further commands of a question, within a time; at most a quarter is refused, each for a reason of its own."""
    draw = random.Random(f"{seed} {base}")
    found = dict(stored().get(base, {}))
    asked = [sorted(shlex.split(command)) for command in found]
    refused = {answer[-1] for answer in found.values() if len(answer) < 5}
    wanted = len(found) + count
    with asking() as here:
        for _ in range(5 * count):
            words = drawn(base, draw)
            if sorted(words) in asked:
                continue
            asked.append(sorted(words))
            command = shlex.join(words)
            start = time.process_time()
            answer = told(command, here)
            took = time.process_time() - start
            if took > SLOWEST_S:
                continue
            if len(answer) < 5:
                if answer[-1] in refused or 4 * (len(refused) + 1) > wanted:
                    continue
                refused.add(answer[-1])
            found[command] = answer
            seconds -= took
            if len(found) == wanted or seconds <= 0.0:
                break
    return found


def main() -> int:
    """Write what is said today, or draw further questions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["write", "draw"])
    parser.add_argument("count", type=int, nargs="?", default=30, help="at most so many of each question")
    parser.add_argument("--seconds", type=float, default=4.0, help="processor time of those of a question together")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--of", action="append", choices=list(BASES), help="only these questions")
    given = parser.parse_args()
    found = dict(stored())
    for base in given.of or BASES if given.what == "draw" else found:
        start = time.process_time()
        if given.what == "draw":
            found[base] = draw_more(base, given.count, given.seconds, given.seed)
        else:
            with asking() as here:
                found[base] = {command: told(command, here) for command in found[base]}
        print(f"{base}: {len(found[base])} commands in {time.process_time() - start:.1f} s", flush=True)
        STORED.write_text(laid_out({base: found[base] for base in BASES if found.get(base)}) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

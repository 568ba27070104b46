"""Command lines: valid ones with words replaced, dropped or added, any option with any value."""

from __future__ import annotations

import shlex
from pathlib import Path
from random import Random

from mutate import ODD_TEXTS

from rackline.api.answer import find_verb
from rackline.api.question import Option, flag_of, options

_BASES = [
    shlex.split(line)
    for line in (
        "explain llama-3.1-8b --on dgx-h100 --batch 8 --context 1k --layout tp=8",
        "explain llama-3.1-8b --on dgx-h100 --prefill 1k --layout tp=1",
        "fit llama-3.1-8b --on l40s-8 --context 8k",
        "models llama-3.1-8b",
        "chips h100-sxm",
        "clusters dgx-h100",
        "memory nvme-gen5",
        "compare llama-3.1-8b qwen3-8b",
        "tiers llama-3.1-8b --on dgx-h100 --layout tp=1",
        "price llama-3.1-8b --on dgx-h100 --precision fp8 --layout tp=1",
        "infer-prices deepseek-v3",
        "budget --quality-of 70b@15T --traffic 50M --months 2",
        "simulate llama-3.1-8b --on dgx-h100 --chips 1 --rate 5 --requests 5 --input 100 --output 5",
        "train llama-3.1-8b --on dgx-h100 --chips 8 --tokens 1B --global-batch 64 --layout tp=8",
        "plan llama-3.1-8b --on l40s-8 --chips 1 --input 1k --output 10 --layout tp=1",
        "schema",
        "lecture",
        "validate no-such.jsonl",
        "calibrate no-such.csv",
        "ask no-such.toml",
    )
]
_FIT: dict[str, tuple[str, ...]] = {
    "seconds": ("1ms", "50ms", "0.3", "2s", "1h", "30d"),
    "limit": ("20ms", "1s@p99", "50ms@p90", "0.1ms"),
    "count": ("1", "2.5", "100", "3k", "1M"),
    "whole": ("1", "2", "7", "64", "1000"),
    "fraction": ("0", "10%", "0.5", "99%", "1"),
    "rate": ("1GB/s", "3.35TB/s", "10MB/s"),
    "per_second": ("0.1", "5", "2/s", "60/min"),
    "bytes": ("1kB", "16GB", "0.5TiB"),
    "usd_per_hour": ("0.01", "$2", "98"),
    "usd_per_month": ("40k", "100"),
    "watts": ("300W", "1kW", "50"),
}
"""Values that an option of a kind takes, so that most commands get past their door."""
_COSTLY = ("plan", "train", "tiers", "budget", "price", "lecture", "infer-prices")


def command_line(rng: Random, folder: Path) -> list[str]:
    """A command with one to three words changed."""
    base = rng.choice(_BASES)
    if base[0] in _COSTLY and rng.random() < 0.6:
        base = rng.choice(_BASES)
    words = list(base)
    known = options(find_verb(words[0]).question)
    flags = {flag_of(name, one): one for name, one in known.items() if not one.positional}
    for _ in range(rng.randint(1, 2)):
        place = rng.randrange(1, len(words) + 1)
        match rng.randrange(8):
            case 0 if place < len(words):
                words[place] = rng.choice(ODD_TEXTS)
            case 1 if place < len(words):
                del words[place]
            case 2:
                words.insert(place, rng.choice(ODD_TEXTS))
            case _:
                _set(rng, words, rng.choice(list(flags) or ["--json"]), flags)
    return words


def _set(rng: Random, words: list[str], flag: str, flags: dict[str, Option]) -> None:
    """Give an option a value, in place of the one that it has."""
    one = flags.get(flag)
    usual = (one.choices or _FIT.get(one.kind, ())) if one else ()
    value = rng.choice(usual if usual and rng.random() < 0.75 else ODD_TEXTS)
    if one is None or one.kind == "switch":
        if flag not in words:
            words.append(flag)
    elif flag in words[:-1]:
        words[words.index(flag) + 1] = value
    else:
        words += [flag, value]

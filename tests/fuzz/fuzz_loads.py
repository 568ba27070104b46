"""Loads over time and mixtures of lengths, for `simulate`: tables of rates, shares in CSV and TOML."""

from __future__ import annotations

from pathlib import Path
from random import Random

from mutate import changed_cell, changed_line, write

_RATES = (
    "time,rate\n0,1\n2,3\n4,0\n",
    "time_s,rate_per_s\n08:00,1\n08:00:02,2/s\n",
    "time,rate\n0,60/min\n1s,1\n2s,0\n",
)
_SHARES = "share,input,output\n0.5,100,3\n50%,200,2\n"
_TOML = '[[requests]]\nshare = 0.5\ninput = "100"\noutput = 3\n\n[[requests]]\nshare = 2\ninput = "1k"\noutput = 2\n'
_SERVED = ["llama-3.1-8b", "--on", "dgx-h100", "--chips", "1", "--layout", "tp=1"]


def load(rng: Random, folder: Path) -> list[str]:
    """A command that reads a load or the lengths of requests."""
    kind = rng.randrange(3)
    if kind == 0:
        file = write(rng, folder / "load.csv", changed_cell(rng, rng.choice(_RATES)), share=0.3)
        policy = rng.choice([["--autoscale", "fixed"], ["--autoscale", "hpa", "--load-time", "3s"], []])
        return ["simulate", *_SERVED, "--input", "100", "--output", "3", "--load", file, *policy]
    if kind == 1:
        file = write(rng, folder / "mix.csv", changed_cell(rng, _SHARES), share=0.3)
    else:
        file = write(rng, folder / "mix.toml", changed_line(rng, _TOML), share=0.3)
    return ["simulate", *_SERVED, "--rate", "5", "--requests", "5", "--mix", file]

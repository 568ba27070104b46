"""What steps of published pre-training runs took over the steps predicted for a framework's tuned configuration."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from rackline.training.system import TrainingSystem

FILE = Path(__file__).with_name("practice.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Practice:
    """How published pre-training runs went.

    A predicted step is as fast as those that makers of frameworks publish as benchmarks: the layout tuned, nothing else
    on the machines. Teams that pre-train a model reach less, for reasons that their reports rarely state: layouts that
    were not searched, loading of data, slow hosts and links, evaluation and saving within the hours that are billed.

    Args:
        slowdown: step of a published run over that tuned step, median; failures are counted apart [1].
        low, high: ends of the interval in which 90 % of these runs lay [1].
        num_runs: runs that it was measured on [count].
        since, until: months in which the first and the last of them were published.
        generations: of chips that they ran on.
        is_measured: whether some of them ran on chips of the generation asked for.
    """

    json_keys: ClassVar = ("slowdown", "low", "high", "num_runs", "since", "until", "is_measured")

    slowdown: float
    low: float
    high: float
    num_runs: int
    since: str
    until: str
    generations: tuple[str, ...]
    is_measured: bool = True

    @property
    def words(self) -> str:
        """Which runs, in a few words."""
        beside = "" if self.is_measured else ", none on chips of this generation"
        return f"pre-training runs published {self.since} to {self.until}{beside}"


@cache
def published_practice() -> Practice:
    """The numbers that `bench/train_practice.py` measured on the table of published runs."""
    found: dict[str, Any] = tomllib.loads(FILE.read_text("utf-8"))
    found["generations"] = tuple(found["generations"])
    return Practice(**found)


def practice_of(system: TrainingSystem) -> Practice | None:
    """How runs of this kind went; None where tuned steps stand: ideal kernels, fine-tuning, TPUs, stacks of one team.

    Of TPUs step rates and layouts are public beside hours that include other work; the stack of one team (Llama 3,
    DeepSeek-V3) describes its run already.
    """
    generation = system.cluster.chip.generation.split("-")[0]
    if (
        system.calibration.is_unit
        or system.stack.as_run
        or system.lora_rank
        or system.packed_len
        or generation == "tpu"
    ):
        return None
    found = published_practice()
    return replace(found, is_measured=generation in found.generations)

"""What steps of published pre-training runs took over the steps predicted for a framework's tuned configuration."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

from rackline.catalog.base import Positive, Record, Text
from rackline.training.system import TrainingSystem

FILE = Path(__file__).with_name("practice.toml")


class PracticeRecord(Record):
    """The file of numbers, written by `bench/train_practice.py`."""

    slowdown: Positive
    low: Positive
    high: Positive
    num_runs: int
    since: Text
    until: Text
    generations: tuple[Text, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Practice:
    """How published pre-training runs went.

    A predicted step is as fast as those that makers of frameworks publish as benchmarks: the layout tuned, nothing else
    on the machines. Teams that pre-train a model reach less, for reasons that their reports rarely state: layouts that
    were not searched, loading of data, slow hosts and links, evaluation and saving within the hours that are billed.

    Args:
        slowdown: step of a published run over that tuned step, median; failures are counted apart [1].
        low, high: ends of the interval in which 80 % of these runs lay [1].
        num_runs: runs that it was measured on [count].
        since, until: months in which the first and the last of them were published.
        is_measured: whether some of them ran on chips of the generation asked for.
    """

    json_keys: ClassVar = ("slowdown", "low", "high", "num_runs", "since", "until", "is_measured")

    slowdown: float
    low: float
    high: float
    num_runs: int
    since: str
    until: str
    is_measured: bool = True


@cache
def _record() -> PracticeRecord:
    return PracticeRecord.model_validate(tomllib.loads(FILE.read_text("utf-8")))


def practice_of(system: TrainingSystem) -> Practice | None:
    """How runs of this kind went; None for ideal kernels, fine-tuning, and chips no public run is comparable with.

    Of TPUs only step rates and layouts of pre-training runs are public beside hours that include other work.
    """
    generation = system.cluster.chip.generation.split("-")[0]
    if system.calibration.is_unit or system.lora_rank or system.packed_len or generation == "tpu":
        return None
    one = _record()
    return Practice(
        slowdown=one.slowdown,
        low=one.low,
        high=one.high,
        num_runs=one.num_runs,
        since=one.since,
        until=one.until,
        is_measured=generation in one.generations,
    )

"""What steps of published pre-training runs took over the steps predicted for a framework's tuned configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from rackline.files import parse_toml
from rackline.training.system import TrainingSystem

FILE = Path(__file__).with_name("practice.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Practice:
    """How published pre-training runs of a family of stacks went.

    A predicted step is as fast as those that makers of frameworks publish as benchmarks: the layout tuned, nothing else
    on the machines. Teams that pre-train a model reach less, for reasons that their reports rarely state: layouts that
    were not searched, loading of data, slow hosts and links, evaluation and saving within the hours that are billed.

    Args:
        family: of the stack, see `TrainingEvidence.family`.
        slowdown: step of a published run over that tuned step: the median of the family's runs, drawn to the median of
            all runs where the family has few; failures are counted apart [1].
        low, high: ends of the interval in which 90 % of all runs lay around the number of their family [1].
        num_runs, of_family: that were measured, and how many of them are the family's own [count].
        since, until: months in which the first and the last of them were published.
        generations: of chips that they ran on.
        is_measured: whether some of them ran on chips of the generation asked for.
    """

    json_keys: ClassVar = (
        "family",
        "slowdown",
        "low",
        "high",
        "num_runs",
        "of_family",
        "since",
        "until",
        "is_measured",
    )

    family: str
    slowdown: float
    low: float
    high: float
    num_runs: int
    of_family: int
    since: str
    until: str
    generations: tuple[str, ...]
    is_measured: bool = True

    @property
    def words(self) -> str:
        """Which runs, in a few words."""
        beside = "" if self.is_measured else ", none on chips of this generation"
        return f"pre-training runs published {self.since} to {self.until}, {self.of_family} of this framework{beside}"


@cache
def published_practice() -> dict[str, Practice]:
    """Family → the numbers that `bench/train_practice.py` measured on the table of published runs."""
    found: dict[str, Any] = parse_toml(FILE.read_text("utf-8"))
    families = found.pop("families")
    found["generations"] = tuple(found["generations"])
    return {one["family"]: Practice(**found, **one) for one in families}


def practice_of(system: TrainingSystem) -> Practice | None:
    """How runs of this kind went; None where tuned steps stand: ideal kernels, fine-tuning, TPUs, stacks of one team.

    Of TPUs step rates and layouts are public beside hours that include other work; the stack of one team (Llama 3,
    DeepSeek-V3) describes its run already.
    """
    generation = system.cluster.chip.generation.split("-")[0]
    if system.calibration.is_unit or system.lora_rank or system.packed_len or generation == "tpu":
        return None
    found = published_practice().get(system.stack.evidence.family)
    return found and replace(found, is_measured=generation in found.generations)

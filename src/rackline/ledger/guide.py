"""The guided lecture: its steps, what is guessed at each, and what the library's closed forms say to it."""

from __future__ import annotations

import functools
import importlib.resources
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rackline.ledger.work import FRONTIER, RACK, World
from rackline.serving import blackboard as bb

CHIPS = 64  # of the rack, over which experts divide (claim C40)
MICRO_BATCHES = 32
Kind = Literal["seconds", "times", "count", "tokens", "share", "number"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step: a question beside a figure, and the number that answers it.

    Args:
        id: in addresses, unique in its chapter.
        claim: claim of the lecture that it shows.
        title: in a few words.
        ask: the question.
        figure: name of the figure that is drawn: step, cost, context, slots, bubble, memory.
        at: what the figure shows, by keys of the page.
        quantity: what is read from the figure.
        kind: unit of the number.
        value: the number by closed form [SI].
        after: text that follows the guess, with {value}.
        low: lowest guess; NaN where one chooses.
        high: highest guess; NaN where one chooses.
        choices: answers to choose from; empty where a number is guessed.
        right: place of the right one.
    """

    id: str
    claim: str
    title: str
    ask: str
    figure: str
    at: Mapping[str, float | str]
    quantity: str
    kind: Kind
    value: float
    after: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    right: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """A chapter of the guided lecture.

    Args:
        id: in addresses.
        title: of the lecture's segment.
        segment: its number.
        intro: what is assumed throughout.
        steps: in order.
    """

    id: str
    title: str
    segment: int
    intro: str
    steps: tuple[Step, ...]


def _batch(world: World) -> dict[str, float]:
    model, chip = world.model(FRONTIER), world.cluster(RACK).chip
    flop, hbm = CHIPS * chip.flop_per_s("fp8"), CHIPS * chip.hbm_bytes_per_s
    total, active, kv = model.total_params, model.active_params, model.kv_bytes_per_token()
    ratio = bb.dimensionless_ridge(flop, hbm, 1.0)
    crossover = bb.crossover_context(active, kv, flop, hbm)

    def pass_s(batch: float, context: float = 0.0) -> float:
        return bb.pass_s(batch, total, active, 1.0, context, kv, flop, hbm)

    balance = bb.balance_batch(ratio, total / active)
    found = {
        "floor": bb.latency_floor_s(total, 1.0, hbm),
        "crowd": pass_s(100.0) / pass_s(1.0),
        "knee": balance,
        "alone": bb.batch_cost_ratio(1.0, balance),
        "slow": pass_s(4.0 * balance) / (4.0 * pass_s(balance)),
        "cache": bb.balance_batch_with_kv(ratio, total, active, 1.0, 0.5 * crossover, kv),
        "crossover": crossover,
    }
    return {name: float(value) for name, value in found.items()}


def _pipeline(_: World) -> dict[str, float]:
    stages = 4
    flushed = bb.flush_bubble_share(stages, MICRO_BATCHES)
    # ZB-H1 leaves (P - 1)(F + B - W) idle, a third of (P - 1)(F + B + W) where all three are equal (Qi et al., 2023)
    filled = (stages - 1) / (3 * MICRO_BATCHES + stages - 1)
    found = {
        "ring": bb.ring_step(1.0, stages, 1.0, 1.0).idle_share,
        "bubble": bb.flush_bubble_share(stages, 4.0),
        "many": flushed,
        "held": stages,
        "zero": filled / flushed,
    }
    return {name: float(value) for name, value in found.items()}


_VALUES: Mapping[str, Callable[[World], dict[str, float]]] = {"batch": _batch, "pipeline": _pipeline}


@functools.cache
def chapters() -> tuple[Chapter, ...]:
    """The chapters of the guided lecture, in order.

    >>> [len(chapter.steps) for chapter in chapters()]
    [7, 5]
    >>> chapters()[0].steps[2].value
    2500.0
    """
    text = importlib.resources.files("rackline.ledger").joinpath("guide.toml").read_text("utf-8")
    world = World()
    return tuple(_chapter(row, _VALUES[row["id"]](world)) for row in tomllib.loads(text)["chapter"])


def _chapter(row: dict[str, Any], values: Mapping[str, float]) -> Chapter:
    steps: list[Step] = []
    for step in row.pop("step"):
        given: dict[str, Any] = {**step, "choices": tuple(step.get("choices", ())), "value": values[step["id"]]}
        steps.append(Step(**given))
    return Chapter(**row, steps=tuple(steps))

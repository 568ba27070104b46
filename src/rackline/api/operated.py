"""Options of a long run: its checkpoints, failures, spare hosts and slow ranks."""

from __future__ import annotations

from typing import Literal, get_args

from rackline.api.question import (
    MOST_SECONDS,
    MaybeNumber,
    MaybeWhole,
    Number,
    Question,
    option,
    question,
    whole,
)
from rackline.late import late

with late:
    from rackline.training import reliability

OPERATION = "Operation of a long run"
Checkpoint = Literal["sync", "async"]


@question
class Operated(Question):
    """A question of a run that fails, is saved, and goes on."""

    checkpoint: Checkpoint = option(
        "text",
        "checkpoints: sync, which stop work until they are in the store, or async, which stop it until they are in the "
        "memory of the hosts and are written from there",
        default="sync",
        choices=get_args(Checkpoint),
        group=OPERATION,
    )
    store: MaybeNumber = option(
        "count",
        "bandwidth of the store of the checkpoints in bytes/s, all chips together, such as 2T; 0.25G a chip by default",
        default=None,
        unit="B/s",
        minimum=1.0,
        group=OPERATION,
    )
    failure_hours: MaybeNumber = option(
        "count",
        "chip-hours between failures that stop the run; 50,630 by default, as Llama 3 405B had on H100",
        default=None,
        unit="h",
        minimum=1.0,
        group=OPERATION,
    )
    restart: Number = option(
        "seconds",
        "time to detect a failure, replace the host and load the last checkpoint",
        default="10min",
        unit="s",
        maximum=MOST_SECONDS,
        group=OPERATION,
    )
    spares: MaybeWhole = whole(
        "spare hosts; a run that finds none waits for a repair of 2.2 h; enough by default",
        default=None,
        minimum=0,
        group=OPERATION,
    )
    jitter: MaybeNumber = option(
        "count",
        "slow ranks: standard deviation of the step of a rank over its mean, such as 0.01; all wait for the slowest",
        default=None,
        unit="1",
        maximum=0.2,
        group=OPERATION,
    )
    slow_node: Number = option(
        "count",
        "one slow host: its step over that of the others, such as 1.1",
        default="1",
        unit="1",
        minimum=1.0,
        maximum=100.0,
        group=OPERATION,
    )


def operations_of(asked: Operated) -> reliability.Operations:
    """How the run is operated."""
    hours = reliability.CHIP_HOURS_BETWEEN_FAILURES if asked.failure_hours is None else asked.failure_hours
    return reliability.Operations(
        chip_hours=hours,
        restart_s=asked.restart,
        checkpoint=asked.checkpoint,
        store_bytes_per_s=asked.store or 0.0,
        spares=asked.spares,
        jitter=asked.jitter or 0.0,
        slow_node=asked.slow_node,
    )

"""Decoding in a ring of stages: groups of sequences follow each other, and each returns for its next token.

With as many groups as stages no stage waits; with fewer, a stage waits for the ring (lecture C70).
"""

from __future__ import annotations

from collections.abc import Sequence

from rackline.errors import require
from rackline.training.schedules.schedule import Event, Slot, Timeline


def ring(stage_s: Sequence[float], groups: int, passes: int, hop_s: float = 0.0) -> Timeline:
    """The timeline of some decode steps.

    Args:
        stage_s: time of each stage for one group [s].
        groups: groups of sequences in flight [count].
        passes: tokens that each group decodes [count].
        hop_s: from stage to stage, and from the last back to the first [s].

    Raises:
        InputError: no stage, group or pass.
    """
    require(
        stage_s and groups >= 1 and passes >= 1,
        what="ring",
        given=f"{len(stage_s)} stages, {groups} groups, {passes} passes",
        allowed="1 or more of each",
    )
    hop = hop_s if len(stage_s) > 1 else 0.0
    free = [0.0] * len(stage_s)
    arrives = [0.0] * groups
    devices: list[list[Event]] = [[] for _ in stage_s]
    events: list[Event] = []
    for number in range(passes * groups):
        group = number % groups
        for stage, seconds in enumerate(stage_s):
            start = max(free[stage], arrives[group])
            free[stage] = start + seconds
            arrives[group] = free[stage] + hop
            event = Event(device=stage, slot=Slot("F", number, 0), start=start, end=free[stage])
            events.append(event)
            devices[stage].append(event)
    return Timeline(events=tuple(events), num_devices=len(stage_s), of_device=tuple(tuple(one) for one in devices))


def token_s(stage_s: Sequence[float], groups: int, hop_s: float = 0.0) -> float:
    """Time between two tokens of a group once the ring is full: max(groups · slowest stage, one round) [s].

    >>> token_s([1.0, 1.0, 1.0, 1.0], 4), token_s([1.0, 1.0, 1.0, 1.0], 2)
    (4.0, 4.0)
    """
    around = sum(stage_s) + (hop_s * len(stage_s) if len(stage_s) > 1 else 0.0)
    return max(groups * max(stage_s), around)

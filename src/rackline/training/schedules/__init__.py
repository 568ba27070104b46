"""Pipeline schedules: one published schedule per file, its table as data, and one executor for all of them."""

from rackline.errors import unknown_name
from rackline.training.schedules.dualpipe import DUALPIPE
from rackline.training.schedules.gpipe import GPIPE
from rackline.training.schedules.inference_ring import ring, token_s
from rackline.training.schedules.interleaved import INTERLEAVED
from rackline.training.schedules.one_f_one_b import ONE_F_ONE_B
from rackline.training.schedules.schedule import Durations, Event, Schedule, Slot, Timeline, equal_stages, execute
from rackline.training.schedules.zb_v import ZB_V
from rackline.training.schedules.zero_bubble import ZB_H1, ZB_H2

SCHEDULE_OF = {one.name: one for one in (ONE_F_ONE_B, INTERLEAVED, GPIPE, ZB_H1, ZB_H2, ZB_V, DUALPIPE)}


def schedule(name: str) -> Schedule:
    """A schedule by name. Raises InputError for an unknown one."""
    if name not in SCHEDULE_OF:
        raise unknown_name("schedule", name, SCHEDULE_OF)
    return SCHEDULE_OF[name]


__all__ = [
    "SCHEDULE_OF",
    "Durations",
    "Event",
    "Schedule",
    "Slot",
    "Timeline",
    "equal_stages",
    "execute",
    "ring",
    "schedule",
    "token_s",
]

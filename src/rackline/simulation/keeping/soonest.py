"""Evict first what is needed last: finished sessions, then those whose tool takes longest.

The time of each tool is known, which a server can only predict: a bound for policies that predict it.
"""

from rackline.simulation.keeping import Keeping


def worth(back_s: float) -> float:
    """Sooner is worth more."""
    return -back_s


KEEPING = Keeping(
    name="soonest",
    place="hbm",
    key=worth,
    source="steps to execution of KVFlow (arXiv:2507.07400); Belady 1966 (IBM Systems Journal 5, 78)",
)

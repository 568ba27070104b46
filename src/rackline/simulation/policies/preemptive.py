"""Priority tiers whose running requests leave for more urgent ones that wait, where that makes room for them."""

from dataclasses import replace

from rackline.simulation.policies import priority

POLICY = replace(
    priority.POLICY,
    name="preemptive",
    preempts_for_urgent=True,
    source="SGLang --enable-priority-scheduling, managers/schedule_policy.py, PrefillAdder.preempt_to_schedule "
    "(accessed 2026-11-25): running requests of a lower tier are released, the least urgent first, if their tokens are "
    "enough for the one that waits. Its --priority-scheduling-preemption-threshold (10) is a distance of tiers: here "
    "every tier counts",
)

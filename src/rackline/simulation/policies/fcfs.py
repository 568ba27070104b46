"""First come, first served, at iteration level: whole prompts join the running batch."""

from rackline.simulation.policies import Policy

POLICY = Policy(name="fcfs", chunked=False, reserve="final", source="Orca, Yu et al. 2022 (OSDI)")

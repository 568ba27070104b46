"""Chunked prefill with tiers: a lower number is more urgent (a fast mode), and the least urgent is preempted first."""

from rackline.simulation.policies.base import Policy

POLICY = Policy(name="priority", order="priority", source="vLLM --scheduling-policy priority")

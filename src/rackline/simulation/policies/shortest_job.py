"""Chunked prefill in which the shortest prompt of the waiting queue is next."""

from rackline.simulation.policies.base import Policy

POLICY = Policy(
    name="shortest_job",
    order="prompt_len",
    source="shortest job first, Conway, Maxwell and Miller 1967, on prompt tokens",
)

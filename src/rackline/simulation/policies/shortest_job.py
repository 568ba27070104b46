"""Chunked prefill that admits the shortest waiting prompt first."""

from rackline.simulation.policies import Policy
from rackline.simulation.requests import RequestLog


def prompt_len(requests: RequestLog, request: int) -> float:
    """Tokens of the prompt [tokens]."""
    return float(requests.input_len[request])


POLICY = Policy(
    name="shortest_job",
    order=prompt_len,
    source="shortest job first, Conway, Maxwell and Miller 1967, on prompt tokens",
)

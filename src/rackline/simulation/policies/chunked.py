"""Chunked prefill: decoding sequences come first; the rest of the token budget goes to chunks of prompts."""

from rackline.simulation.policies import Policy

POLICY = Policy(
    name="chunked", source="Sarathi-Serve, Agrawal et al. 2024 (arXiv:2403.02310); the scheduler of vLLM from 0.8 on"
)

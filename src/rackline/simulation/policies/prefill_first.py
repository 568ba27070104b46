"""Prefill runs in separate passes with priority; decoding waits."""

from rackline.simulation.policies import Policy

POLICY = Policy(
    name="prefill_first",
    passes="prompts_first",
    reserve="prompt",
    source="Kwon et al. 2023 (arXiv:2309.06180), vLLM before 0.8; SGLang",
)

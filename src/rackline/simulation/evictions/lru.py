"""Least recently used first."""

from rackline.simulation.evictions import Eviction

EVICTION = Eviction(name="lru", source="vLLM (arXiv:2309.06180), SGLang (arXiv:2312.07104)")

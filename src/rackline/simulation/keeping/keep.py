"""Stay in HBM until memory is needed, least recently used first; tiers behind it, if any, take what is evicted."""

from rackline.simulation.keeping import Keeping

KEEPING = Keeping(
    name="keep", place="hbm", source="vLLM's automatic prefix caching (arXiv:2309.06180), SGLang (arXiv:2312.07104)"
)

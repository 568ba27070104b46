"""The Horizontal Pod Autoscaler of Kubernetes on the share of KV blocks in use, as vLLM's gpu_cache_usage_perc.

Source: as `hpa`; the usual target is the share that a replica uses at 70 % of its highest rate within the limits.
"""

from rackline.simulation.autoscalers import Setting
from rackline.simulation.autoscalers.hpa import Hpa


def on_kv_use(setting: Setting) -> Hpa:
    """The rule on the share of KV blocks in use."""
    return Hpa(lambda seen: seen.kv_use, setting.target or setting.kv_use)


AUTOSCALER = on_kv_use

"""Options that several questions share, written once: their help, units and bounds."""

from __future__ import annotations

from rackline.api.option import MOST_CHIPS, MOST_USD, option, tokens, whole

MODEL = option("object", "catalogue name, Hugging Face id, TOML file or config.json", positional=True)
ON = option("object", "cluster: catalogue name or TOML file")
CHIPS = whole("chips to use; the cluster's own number by default", maximum=MOST_CHIPS)
PRECISION = option("text", "native, bf16, fp8, fp4, mxfp4, int8, int4, or in parts such as fp8,kv=bf16")
CALIBRATION = option(
    "object",
    "how far kernels fall short of the peaks: auto (the stack measured most on the chip), trtllm, vllm, sglang, "
    "generic (all stacks), unit (ideal roofline) or a TOML file",
)
ROUTING = option(
    "text",
    "how tokens spread over experts: uniform, balanced or power-law=EXPONENT; by default as fitted to servers of the "
    "stack",
)
FREE_LAYOUT = option("text", "parts that are fixed, such as tp=8; the others stay free")
MEMORY_FRACTION = option("fraction", "share of HBM that the server may use", unit="1")
PRICE = option("usd_per_hour", "price of a chip, in USD an hour", unit="USD/h", maximum=MOST_USD)
SET = option(
    "settings",
    "KEY=VALUE replaces a number of the model, cluster or chip, such as hbm_bytes_per_s=20TB/s; may be repeated",
)
INPUT = tokens("prompt tokens of a request, such as 4k")
OUTPUT = tokens("generated tokens of a request, at least 2", minimum=2.0)

"""All questions, and the module that answers each; modules are imported on demand."""

from __future__ import annotations

# name on the command line -> module of rackline.api that holds the question and the function of that name
MODULES = {
    "plan": "plan",
    "train": "train",
    "simulate": "simulate",
    "explain": "explain",
    "fit": "fit",
    "tiers": "tiers",
    "price": "price",
    "infer-prices": "infer_prices",
    "budget": "budget",
    "validate": "validate",
    "calibrate": "calibrate",
    "lecture": "lecture",
    "lab": "lab",
    "chips": "chips",
    "clusters": "clusters",
    "models": "models",
    "memory": "memory",
    "compare": "compare",
    "encode": "encode",
    "new": "new",
    "ask": "ask",
    "schema": "schema",
}


# a question whose name is that of a package: `rl.lab` is the package
_OTHER_NAMES = {"lab": "experiment"}


def function_name(name: str) -> str:
    """The Python name of a question: "infer-prices" is `infer_prices`."""
    return _OTHER_NAMES.get(name, name.replace("-", "_"))

"""All questions, and the module that answers each; modules are imported on demand."""

from __future__ import annotations

# name on the command line -> module of rackline that holds the question and the function of that name
MODULES = {
    "plan": "api.plan",
    "train": "api.train",
    "rl": "api.rl",
    "simulate": "api.simulate",
    "explain": "api.explain",
    "fit": "api.fit",
    "tiers": "api.tiers",
    "price": "api.price",
    "infer-prices": "api.infer_prices",
    "budget": "api.budget",
    "validate": "api.validate",
    "calibrate": "api.calibrate",
    "observe": "api.observe",
    "lecture": "api.lecture",
    "lab": "api.lab",
    "measure": "api.measure",
    "chips": "api.catalogue",
    "clusters": "api.catalogue",
    "models": "api.models",
    "memory": "api.catalogue",
    "compare": "api.compare",
    "encode": "api.encode",
    "new": "api.new",
    "ask": "api.ask",
    "schema": "api.schema",
    "sweep": "sweeps.sweep",
    "sweep-show": "sweeps.show",
}


# a question whose name is that of a package: `rl.lab` is the package
_OTHER_NAMES = {"lab": "experiment"}


def function_name(name: str) -> str:
    """The Python name of a question: "infer-prices" is `infer_prices`."""
    return _OTHER_NAMES.get(name, name.replace("-", "_"))

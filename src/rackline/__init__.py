"""rackline predicts what it takes to train and serve a large language model, from first principles.

    import rackline as rl
    rl.plan("llama-3.1-70b", on="dgx-h100", input="2k", output=500, tpot="50ms")
    rl.explain("llama-3.1-70b", on="dgx-h100", batch=64, context="8k", layout="tp=8").to_frame()

Each question of the command line is a function here: its options are keywords, its quantities SI numbers or texts with
a unit, names may be objects. Answers print in a line, show tables in notebooks, and have `to_frame`, `to_dict` and
`plot`. Names are loaded when they are first used, so that importing the package costs nothing; `__init__.pyi`, which
`bench/public_names.py` writes, tells type checkers where they are.
"""

from __future__ import annotations

import os
from typing import Any

import rackline.late  # noqa: F401  # pyright: ignore[reportUnusedImport]  # packages below run when first used

_OTHERS = {
    "rackline.api.answer": ("Answer", "answer"),
    "rackline.arch": ("model",),
    "rackline.errors": ("RacklineError",),
    "rackline.hardware": ("chip", "cluster", "memory_tier"),
    "rackline.parallel": ("Deployment", "Layout", "Routing", "parse_layout", "precision"),
    "rackline.passes": ("Batch", "calibration"),
    "rackline.pricing": ("offer_prices", "price_sheet", "read_prices"),
    "rackline.serving": ("Mode", "Workload", "capacity"),
    "rackline.system": ("Constraints", "Demand", "System"),
}
"""What is handed out beside the questions, by the module that has it."""


def _where() -> dict[str, str]:
    from rackline.api.verbs import functions

    others = {name: module for module, names in _OTHERS.items() for name in names}
    return others | {name: one.module for name, one in functions().items()}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(_where())
    is_package = os.path.isdir(os.path.join(__path__[0], name))  # which the import system looks for itself
    module = None if is_package or name.startswith("__") else _where().get(name)
    if module is None:
        raise AttributeError(f"module 'rackline' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted(_where())

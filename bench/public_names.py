"""Writes `src/rackline/__init__.pyi`: where type checkers find what `import rackline` hands out when it is used."""

from __future__ import annotations

from pathlib import Path

import rackline

STUB = Path(rackline.__file__).with_suffix(".pyi")


def stub() -> str:
    """The text of the stub: one import of each name that the package hands out."""
    where: dict[str, str] = vars(rackline)["_where"]()  # the stub that is written does not have it
    lines = sorted(f"from {module} import {name} as {name}" for name, module in where.items())
    return "\n".join(["# Written by bench/public_names.py; do not edit.", *lines, ""])


if __name__ == "__main__":
    STUB.write_text(stub())

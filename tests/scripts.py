"""Loads scripts that stand beside the package, for the tests of what they write."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]


def load_script(path: Path | str) -> ModuleType:
    """A script as a module of its own.

    Args:
        path: of the file, as a name of bench/ without its ending ("figures") or whole.
    """
    file = ROOT / "bench" / f"{path}.py" if isinstance(path, str) else path
    spec = importlib.util.spec_from_file_location(f"script_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = script  # dataclasses look their module up
    sys.path.append(str(file.parent))  # scripts import their neighbours
    try:
        spec.loader.exec_module(script)
    finally:
        sys.path.remove(str(file.parent))
    return script

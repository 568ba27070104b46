"""Late imports: a module runs once, whatever is imported first."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
from rackline.late import late

with late:
    from rackline import search

from rackline.search.plan import Plan  # runs the package, which imports this module and a function of its name

assert search.Plan is Plan
assert callable(search.plan)
assert search.plan.__globals__ is __import__("sys").modules["rackline.search.plan"].__dict__
"""


def test_a_module_of_a_late_package_runs_once_and_names_of_the_package_stay() -> None:
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=300)


LOADED_FIRST = """
import sys
from types import ModuleType
from rackline.late import late

with late:
    from rackline import serving

import rackline.serving.capacity  # loads the module while its package has not run

assert isinstance(sys.modules["rackline.serving.capacity"], ModuleType)
assert callable(serving.capacity)
from rackline.serving.capacity import LONGEST_CONTEXT
"""


def test_a_function_is_handed_out_though_the_module_of_its_name_was_loaded_before_the_package_ran() -> None:
    """`chips --ridge` and then `fit` in one process ended in "'module' object is not callable"."""
    subprocess.run([sys.executable, "-c", LOADED_FIRST], check=True, timeout=300)

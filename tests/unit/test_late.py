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

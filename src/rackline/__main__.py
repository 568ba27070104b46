"""The program, `rackline` or `python -m rackline`: checks before any import."""

from __future__ import annotations

import os
import sys


def run() -> int:
    """Run the command line and return its exit status; an interruption while modules load ends quietly.

    Returns:
        As `rackline.cli.main.run`; 2 when standard output is closed.
    """
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison] - `rackline ... >&-`
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison]
            print("error: standard output: got a closed one, allowed: a terminal, a file or a pipe", file=sys.stderr)
        return 2
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    try:
        from rackline.cli.main import run as run_command

        return run_command()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(run())

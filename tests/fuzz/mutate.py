"""Valid inputs made wrong: values that stand where they should not, keys that are gone, bytes that are broken."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ODD: tuple[Any, ...] = (
    0, -1, 1, 3, 7, 2**31, 2**63, 10**30, -0.0, 1.5, 1e-300, 1e300, float("nan"), float("inf"), "", " ", "64", "1k",
    "nan", "llama-3.1-8b", "é\u2028·", "a\0b", "\ud800", "x" * 5000, True, False, None, [], [1], [[]], {}, {"a": 1},
    "../..", "/dev/zero", "[bold]", "%s", "-1", "1e999", "٣", "\x1b[31mred\x07\x9b2J",
)  # fmt: skip
ODD_TEXTS = (
    "", " ", "0", "-1", "1.5", "7", "1e30", "1e999", "nan", "inf", "-inf", "9" * 400, "64", "1k", "30ms", "30", "50%",
    "200%", "2TB/s", "1k,2k", "1:2", "1:1000000000:2", "a=b", "=", "a=", "tp=8", "tp=3,pp=5", "tp=x", ",",
    "llama-3.1-8b", "dgx-h100", "no-such", "é\u2028", "٣", "\ud800", "a\0b", "x" * 3000, "/dev/null", "/dev/zero", ".",
    "no/such/file", "auto", "all", "-", "--", "--json", "[bold]", "{}", "null", "true", "5min", "bf16", "fp8,kv=fp8",
    "uniform", "\x1b]0;a\x07", "$5", "7.5", "tp=1", "gpt-oss-120b", "h100-sxm", "512", "2M", "0.1", "1k=2", "1M=3",
    "serial", "8,16",
)  # fmt: skip
RAW = (
    "[" * 100_000, "[" * 900 + "]" * 900, '{"a":' * 400 + "1" + "}" * 400,
    "9" * 5000, '"' + "x" * 200_000 + '"', "NaN", "-Infinity", "\x00", "{", "]", '{"a":1,"a":[]}', "",
)  # fmt: skip


def changed(rng: Random, data: Any, most: int = 2) -> Any:
    """Plain data with one to `most` places replaced, dropped, doubled or exchanged."""
    data = copy.deepcopy(data)
    for _ in range(rng.randint(1, most)):
        _change(rng, data)
    return data


def _change(rng: Random, data: Any) -> None:
    holder, key = rng.choice(_places(data))
    match rng.randrange(6):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[f"{key}x"] = holder.pop(key)
        case 2:
            other, place = rng.choice(_places(data))
            holder[key] = copy.deepcopy(other[place])
        case 3 if isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
            holder[key] = holder[key] * rng.choice([-1, 0.5, 1e3, 1e9, 1e-9]) + rng.choice([0, 1])
        case _:
            holder[key] = rng.choice(ODD)


def _places(data: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    for key in list(data) if isinstance(data, dict) else range(len(data)):
        found.append((data, key))
        if isinstance(data[key], dict | list):
            found += _places(data[key])
    return found or [({"": None}, "")]


def broken(rng: Random, text: str) -> bytes:
    """A text with a piece cut, doubled, overwritten or put in; sometimes not UTF-8 any more."""
    place = rng.randrange(len(text) + 1)
    until = min(len(text), place + rng.choice([0, 1, 5, 50]))
    match rng.randrange(7):
        case 0:
            return text[:place].encode(errors="surrogatepass")
        case 1:
            return (text[:place] + text[until:]).encode(errors="surrogatepass")
        case 2:
            return (text[:until] + text[place:]).encode(errors="surrogatepass")
        case 3:
            return text[:place].encode(errors="surrogatepass") + b"\xff\xfe" + text[place:].encode(errors="replace")
        case 4:
            return text.replace("\n", rng.choice(["\r\n", "\r", "\n\n", " "])).encode(errors="surrogatepass")
        case _:
            put = rng.choice([*RAW, *map(str, ODD), *ODD_TEXTS])
            return (text[:place] + put + text[until:]).encode(errors="surrogatepass")


def json_text(data: Any) -> str:
    """JSON as Python writes it, NaN and lone surrogates included."""
    return json.dumps(data)


def write(rng: Random, path: Path, text: str, *, share: float = 0.4) -> str:
    """Write a text, in a share of cases broken; its name."""
    path.write_bytes(broken(rng, text) if rng.random() < share else text.encode(errors="surrogatepass"))
    return str(path)


def changed_cell(rng: Random, text: str) -> str:
    """A table in CSV with a cell replaced, in half of the cases."""
    if rng.random() < 0.5:
        return text
    lines = [line.split(",") for line in text.splitlines()]
    line = rng.choice(lines)
    line[rng.randrange(len(line))] = rng.choice([*ODD_TEXTS, "x" * 140_000])
    return "\n".join(",".join(line) for line in lines)


def changed_line(rng: Random, text: str) -> str:
    """TOML with a value or key replaced, a key doubled or a line dropped, in most cases."""
    if rng.random() < 0.3:
        return text
    lines = text.splitlines()
    places = [place for place, line in enumerate(lines) if " = " in line]
    place = rng.choice(places)
    key, _, value = lines[place].partition(" = ")
    odd = ["0", "-1", "1e400", "nan", "inf", '""', "[]", "{}", "true", '"x"', "9" * 30, "2000-01-01", *RAW, *ODD_TEXTS]
    lines[place] = rng.choice(
        [f"{key} = {rng.choice(odd)}", f"{key}x = {value}", f"{key} = {value}\n{key} = {value}", ""]
    )
    return "\n".join(lines) + "\n"

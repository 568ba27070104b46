"""Read case files: one JSON object per line, operation tables, recorded server runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rackline.errors import InputError
from rackline.files import parse_json, read_text
from rackline.validation.adapters_table import is_adapters_table, read_adapters_table
from rackline.validation.cases import Case, CaseSet, Unsupported, read_line
from rackline.validation.op_table import read_op_table
from rackline.validation.rl_parts_table import is_rl_parts_table, read_rl_parts_table
from rackline.validation.rl_table import is_rl_table, read_rl_table
from rackline.validation.tuning_table import is_tuning_table, read_tuning_table

_TABLES = (
    (is_tuning_table, read_tuning_table),
    (is_rl_table, read_rl_table),
    (is_rl_parts_table, read_rl_parts_table),
    (is_adapters_table, read_adapters_table),
)


def read_cases(paths: Iterable[str | Path]) -> CaseSet:
    """Read case files.

    Args:
        paths: files with one JSON object per line, operation tables (.csv), or a `runs.json` of server runs.

    Returns:
        Every line, as a case or as an unsupported one with the reason.

    Raises:
        InputError: a file cannot be read, or no file has a case.
    """
    cases: list[Case] = []
    unsupported: list[Unsupported] = []
    unknown: dict[str, int] = {}
    for path in map(Path, paths):
        text = read_text(path, what="case file", allowed="a readable file, one JSON object per line")
        if path.suffix == ".json" and _looks_like_runs(text):
            from rackline.validation.requests import read_runs

            runs = read_runs(path, text)
            cases += [case for case in runs if isinstance(case, Case)]
            unsupported += [case for case in runs if isinstance(case, Unsupported)]
            continue
        if path.suffix == ".csv":
            read = next((reader for is_one, reader in _TABLES if is_one(text)), read_op_table)
            found = read(path, text, unknown)
        else:
            lines = enumerate(text.split("\n"), start=1)
            found = [read_line(line, f"{path.name}, line {n}", unknown) for n, line in lines if line.strip()]
        cases += [case for case in found if isinstance(case, Case)]
        unsupported += [case for case in found if isinstance(case, Unsupported)]
    if not cases and not unsupported:
        raise InputError(what="case files", given="no case", allowed="at least one JSON object on a line")
    return CaseSet(cases=tuple(cases), unsupported=tuple(unsupported), unknown_keys=unknown)


def _looks_like_runs(text: str) -> bool:
    try:
        data = parse_json(text)
    except ValueError:
        return False
    return isinstance(data, dict) and "runs" in data

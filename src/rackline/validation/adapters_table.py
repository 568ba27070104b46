"""A table (CSV) of published runs with many low-rank adapters as cases of kind adapters, one row a run."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from rackline.errors import InputError
from rackline.validation.cases import Case, Unsupported, case_from
from rackline.validation.tables import TableRow, has_columns, number, read_rows, table_rows, whole

_COLUMNS = ("system", "setting", "lora_ranks", "num_adapters", "alpha", "req_rate", "cv", "throughput_req_s")
_MODELS = {"llama-7b": "llama-2-7b", "llama-13b": "llama-2-13b"}
"""LLaMA's first models have the shapes of the second."""
_CHIPS = {"a10g": "a10g", "a100-40": "a100-sxm-40gb", "a100-80": "a100-sxm-80gb"}
_POOL_TOKENS = {
    ("S1", "a10g"): 14500,
    ("S2", "a10g"): 14500,
    ("S4", "a100-40"): 14000,
    ("S1", "a100-80"): 125000,
    ("S2", "a100-80"): 125000,
    ("S4", "a100-80"): 65000,
}
"""Tokens of the pool that caches and adapters share: --num-token of the commands beside the published results
(github.com/S-LoRA/S-LoRA, benchmarks/paper/*/exp_cmds*.sh)."""
_OTHERS = {
    "abort": "drops requests that would be late",
    "bmm": "pads adapters to one rank and multiplies them in batches, an ablation",
    "lifo": "serves the newest requests first",
    "no_mem": "keeps adapters outside of the pool, an ablation",
    "peft": "serves one adapter at a time",
    "pets": "batches by another scheduler",
    "vllm": "runs a server for each adapter",
    "ablation_cluster": "batches requests of the same adapters, and the chip is not stated",
    "ablation_merge": "merges adapters into the weights",
}


def is_adapters_table(text: str) -> bool:
    """Whether a CSV file has the columns of published runs with many adapters."""
    return has_columns(text, _COLUMNS)


def read_adapters_table(path: Path, text: str, unknown_keys: dict[str, int]) -> list[Case | Unsupported]:
    """Read a table; runs of other systems, and those that do not say what was run, are named with the reason.

    The throughput over that of the run with the fewest adapters (at least one) of the same setting, chip, rate and
    burstiness is a measurement of its own.

    Args:
        text: the content of the file.
        unknown_keys: ignored keys → number of cases that have them.
    """
    rows = table_rows(text)
    fewest: dict[tuple[str, ...], TableRow] = {}
    for row in rows:
        with suppress(InputError):  # told with its row below
            if not _doubt(row) and whole(row, "num_adapters") >= 1:
                best = fewest.get(_group(row))
                if best is None or whole(row, "num_adapters") < whole(best, "num_adapters"):
                    fewest[_group(row)] = row

    def read(row: TableRow, case_id: str, where: str) -> Case | Unsupported:
        doubt, first = _doubt(row), fewest.get(_group(row))
        case = case_from(_data(row, case_id, None if doubt or first is row else first), where, unknown_keys)
        return Unsupported.of(case, doubt) if doubt and isinstance(case, Case) else case

    return read_rows(path, rows, "adapters", read)


def _group(row: TableRow) -> tuple[str, ...]:
    return tuple(row[name] for name in ("setting", "chip", "req_rate", "cv"))


def _doubt(row: TableRow) -> str:
    """Why a row cannot be scored; empty if it can."""
    system = row["system"]
    if system in _OTHERS:
        return _OTHERS[system]
    if system == "ablation_mem" and not row["variant"].endswith("_dm.jsonl"):
        return _OTHERS["no_mem"]
    if row["used_in_paper"] != "yes":
        return "a run that the paper does not use"
    if (row["setting"], row["chip"]) not in _POOL_TOKENS:
        return "requests are those of a service that is not published"
    return "requests choose adapters by another law" if number(row, "alpha") != 1.0 else ""


def _ranks(row: TableRow) -> float:
    """Mean rank: the ranks of a setting in turn, from the first."""
    ranks = [int(rank) for rank in row["lora_ranks"].split(",") if rank.strip().isdigit()]
    number = whole(row, "num_adapters", 0)
    return sum(ranks[index % len(ranks)] for index in range(number)) / number if ranks and number else 0.0


def _data(row: TableRow, case_id: str, fewest: TableRow | None) -> dict[str, object]:
    measured = {"requests_per_s": number(row, "throughput_req_s")}
    data: dict[str, object] = {
        "id": case_id,
        "kind": "adapters",
        "model": _MODELS.get(row["model"], row["model"]),
        "chip": _CHIPS.get(row["chip"], row["chip"] or "-"),
        "num_chips": 1,
        "stack": row["system"],
        "precision": "bf16",
        "request_rate": number(row, "req_rate", 1.0),
        "arrival_cv": number(row, "cv", 1.0),
        "duration_s": number(row, "duration_s", 1.0),
        "shortest": 8,
        "longest": 512,
        "kv_tokens": _POOL_TOKENS.get((row["setting"], row["chip"]), 1),
        "source": row["source"],
        "measured": measured,
    }
    if whole(row, "num_adapters", 0):
        data |= {"adapters": whole(row, "num_adapters"), "rank": _ranks(row)}
    if fewest is not None and whole(row, "num_adapters", 0) > 1:
        data["fewest"] = {
            "adapters": whole(fewest, "num_adapters"),
            "rank": round(_ranks(fewest)),
            "duration_s": int(number(fewest, "duration_s")),
        }
        measured["over_fewest_adapters"] = measured["requests_per_s"] / number(fewest, "throughput_req_s")
    return data

"""Tables (CSV) of published runs as cases: fine-tuning steps, servers with adapters; `rl` has those of its steps.

A table is recognised by its columns; a row whose cells cannot be read, or that does not say what was run, is kept as
unsupported with the reason.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rackline.errors import InputError
from rackline.validation.cases import Case, Unsupported, case_from


class TableRow(dict[str, str]):
    """The cells of a row by their columns; a column that the table lacks is refused where it is needed."""

    def __missing__(self, column: str) -> str:
        raise InputError(what=f"column {column}", given="a table without it", allowed="a table that names it in line 1")


Data = dict[str, object]
Reader = Callable[[TableRow, str], tuple[Data, str]]
Doubts = tuple[tuple[Callable[[TableRow], bool], str], ...]
"""(Whether a row cannot be scored, why), in the order in which they are asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTable:
    """A kind of table.

    Args:
        columns: that its head names.
        kind: of its cases.
        cases: all rows → (row, id of the case) → the case as plain data, and why it cannot be scored, empty if it
            can; of a row that does not even say what was run, only what was measured.
    """

    columns: frozenset[str]
    kind: str
    cases: Callable[[Sequence[TableRow]], Reader]

    def lacks(self, columns: Set[str]) -> list[str]:
        """The columns of this table that are not among those of a file."""
        return sorted(self.columns - columns)

    def read(self, path: Path, text: str, unknown_keys: dict[str, int]) -> list[Case | Unsupported]:
        """Each row as a case; one whose cells cannot be read is kept with the reason, and the file goes on.

        Args:
            path: of the table, for places.
            text: the content of the file; a cell that a short row lacks is empty.
            unknown_keys: ignored keys → number of cases that have them.
        """
        rows = [TableRow(row) for row in csv.DictReader(text.splitlines(), restval="")]
        case_of, found = self.cases(rows), list[Case | Unsupported]()
        for line, row in enumerate(rows, start=2):
            case_id, where = f"{path.stem}:{line}", f"{path.name}, line {line}"
            lost = Unsupported(case_id=case_id, kind=self.kind, where=where, cause="", bad_input=True)
            try:
                data, doubt = case_of(row, case_id)
                case = case_from(data, where, unknown_keys) if "id" in data else None
            except InputError as error:
                found.append(replace(lost, cause=str(error), **{key: row.get(key, "") for key in ("model", "chip")}))
                continue
            if case is None:
                found.append(replace(lost, cause=doubt, bad_input=False, metrics=tuple(data)))
            else:
                found.append(Unsupported.of(case, doubt) if doubt and isinstance(case, Case) else case)
        return found


def table_of(tables: Iterable[PublishedTable], text: str, where: str) -> PublishedTable | None:
    """The table whose columns the head of a CSV file names; None of operations, whose rows have seconds.

    Raises:
        InputError: the head lacks a third of the columns of one of them, or less.
    """
    columns = set(text.partition("\n")[0].strip().split(","))
    nearest = min(tables, key=lambda one: len(one.lacks(columns)) / len(one.columns))
    lacks = nearest.lacks(columns)
    if not lacks:
        return nearest
    if "seconds" not in columns and len(lacks) <= len(nearest.columns) // 3:
        given = f"columns of {nearest.kind} without {', '.join(lacks)}"
        raise InputError(what="table", given=given, allowed="all of them", where=where)
    return None


def doubt_of(row: TableRow, doubts: Doubts) -> str:
    """Why a row cannot be scored; empty if it can."""
    return next((reason for holds, reason in doubts if holds(row)), "")


def number(row: TableRow, name: str, otherwise: float | None = None) -> float:
    """The number in a cell.

    Args:
        otherwise: what an empty cell stands for; without it, an empty cell is refused.

    Raises:
        InputError: the cell is empty, or not a number.

    >>> row = TableRow(step_s="2.5", gen_s="")
    >>> number(row, "step_s"), number(row, "gen_s", 1.0)
    (2.5, 1.0)
    """
    cell = row.get(name, "").strip()
    if not cell and otherwise is not None:
        return float(otherwise)
    try:
        return float(cell)
    except ValueError:
        raise InputError(what=name, given=cell or "an empty cell", allowed="a number") from None


def whole(row: TableRow, name: str, otherwise: int | None = None) -> int:
    """The whole number in a cell; as `number`."""
    found = number(row, name, otherwise)
    if not found.is_integer():
        raise InputError(what=name, given=row.get(name, ""), allowed="a whole number")
    return int(found)


_TUNING_COLUMNS = {"framework", "model", "task", "lora_rank", "chip", "num_chips", "precision", "seq_len", "step_s"}
APART = 0.1
"""How far the two published rates of a row may differ before it is not clear which of them the step had."""
_STACKS = {"megatron-bridge nemo": "megatron-bridge", "nemo automodel": "automodel", "prime-rl": "prime-rl"}
_NAMES = (
    (r"\(.*?\)|2-node", ""),
    (r"[ _]+", "-"),
    (r"^llama2", "llama-2"),
    (r"^llama3", "llama-3.1"),
    (r"^nemotron-v3", "nemotron-3"),
    (r"^(nemotron-3-super-120b)$", r"\1-a12b"),
    (r"^(nemotron-3-nano-30b)$", r"\1-a3b"),
    (r"^qwen3-moe-30b$", "qwen3-30b-a3b"),
    (r"^(deepseek-v3)-671b$", r"\1"),
)
"""How frameworks write names of models, as (pattern, what rackline writes)."""
SQUAD_LEN = 200.0
"""Tokens of a question of SQuAD with its context, weighted by tokens: about 120 words and a question of 11 (Rajpurkar
et al. 2016, arXiv:1606.05250) (assumed)."""
BRIDGE_LORA = (16, "qkv")
"""Rank and targets of the performance recipes of Megatron-Bridge and NeMo: dim 16, target_modules linear_qkv."""
DEFAULT_RANK = 8
"""Rank where a table does not state it: that of the LoRA recipes of torchtune and NeMo AutoModel."""


_TUNING_DOUBTS: Doubts = (
    (
        lambda row: "per GPU or total" in row["note"] and whole(row, "num_chips") > 1,
        "the source does not say whether its rate is that of one chip or of all",
    ),
    (
        lambda row: "offload" in row["note"].lower() and not _is_lora(row),
        "weights or states are offloaded to the host, which training does not know",
    ),
    (
        lambda row: "DeepEP" in row["note"] and not row["ep"].strip("-"),
        "experts are exchanged by DeepEP, over a number of chips that is not stated",
    ),
    (lambda row: _rates_disagree(row), "the published rate and the published step disagree by more than a tenth"),
)


def _rates_disagree(row: TableRow) -> bool:
    given = re.search(r"check seq\*mb\*gpus/step = (\d+)", row["note"])
    if given is None or not row["tok_per_s_total"]:
        return False
    return abs(number(row, "tok_per_s_total") / float(given.group(1)) - 1.0) > APART


def _is_lora(row: TableRow) -> bool:
    return "lora" in row["task"].lower()


def _tuning_data(row: TableRow, case_id: str) -> dict[str, object]:
    label = row["framework"].lower()
    stack = next((name for start, name in _STACKS.items() if label.startswith(start)), label.partition(" ")[0])
    version = re.search(r"\d+\.\d+", row["framework"])
    if label.startswith("nemo2"):
        stack = "nemo"
    chips, micro = whole(row, "num_chips"), whole(row, "micro_batch", 1)
    parts = {key: int(row[name]) for key, name in _LAYOUT.items() if row[name].isdigit()}
    model_chips = parts.get("tp", 1) * parts.get("pp", 1) * parts.get("cp", 1)
    batch = whole(row, "global_batch", 0) or micro * whole(row, "micro_batches", 1) * chips // model_chips
    on_one_chip = "FSDP2" in row["note"]  # steps of our own, sharded by it on one chip as well
    fsdp = on_one_chip or stack in ("prime-rl", "automodel", "torchtune")
    sharding = _sharding(row, stack) if chips > 1 or on_one_chip else "none"
    data: dict[str, object] = {
        "id": case_id,
        "kind": "train",
        "task": row["task"],
        "model": _tuned_model(row["model"]),
        "chip": row["chip"],
        "num_chips": chips,
        "stack": "torch-fsdp-2" if row["attention"] == "flash_attention_2" else stack,
        "stack_version": version.group() if version else "",
        "precision": row["precision"].lower(),
        "layout": {**parts, **({"sharding": sharding} if fsdp else {})},
        "global_batch": batch,
        "micro_batch": micro,
        "seq_len": whole(row, "seq_len"),
        "recompute": _recompute(row, stack),
        "source": row["source"],
        "measured": _tuning_measured(row),
    }
    if "pack" in (row["data"] + row["note"] + row["task"]).lower() or stack == "torchtune":
        data["packed_len"] = SQUAD_LEN
    if _is_lora(row):
        rank, targets = BRIDGE_LORA if stack in ("megatron-bridge", "nemo") else (DEFAULT_RANK, "all")
        data["lora_rank"] = int(row["lora_rank"]) if row["lora_rank"].isdigit() else rank
        data["lora_targets"] = targets
    if "qlora" in row["task"].lower():
        data["frozen"] = "nf4"
    return data


_LAYOUT = {"tp": "tp", "pp": "pp", "cp": "cp", "virtual_pp": "vp", "ep": "ep"}


def _tuned_model(name: str) -> str:
    found = name.lower()
    for pattern, written in _NAMES:
        found = re.sub(pattern, written, found.strip(" -"))
    return found


_KEPT = ("gpt-oss", "moonlight", "glm 4.5 air", "glm-4.5-air", "llama3 8b", "qwen2.5 7b")
_RESHARDED = ("nemotron", "kimi", "glm-4.7 ", "glm 4.7 ")
"""NeMo AutoModel's benchmark recipes: models that keep their activations (`activation_checkpointing` false or absent),
and models that gather weights anew in each pass (`reshard_after_forward` true or absent); the others gather them once
a step (github.com/NVIDIA-NeMo/Automodel @ 36044ad3d1, examples, *_te_deepep.yaml and *peft_benchmark*.yaml, read
2026-11-26)."""


def _sharding(row: TableRow, stack: str) -> str:
    """How the weights of an FSDP framework are spread."""
    once = stack == "automodel" and not _is_lora(row) and not row["model"].lower().startswith(_RESHARDED)
    return "shard-grad-op" if once else "full-shard"


def _recompute(row: TableRow, stack: str) -> str:
    if stack == "automodel":
        return "none" if row["model"].lower().startswith(_KEPT) else "full"
    if row["act_ckpt"] in ("Recompute", "Offload"):
        return "full"
    if stack == "torchtune":
        return "none" if row["task"] == "+ packed" else "full"
    return "unknown"


def _tuning_measured(row: TableRow) -> dict[str, float]:
    # a table that tells what the allocator reserved states the peak of what is allocated beside it; others do not say
    peak = {"peak_bytes": number(row, "peak_mem_gib") * 2.0**30} if row.get("reserved_bytes") else {}
    if row["step_s"]:
        return {"step_s": number(row, "step_s"), **peak}
    return {
        "tokens_per_s_per_chip": number(row, "tok_per_s_per_gpu" if row["tok_per_s_per_gpu"] else "tok_per_s_total")
    }


_ADAPTER_COLUMNS = ("system", "setting", "lora_ranks", "num_adapters", "alpha", "req_rate", "cv", "throughput_req_s")
_ADAPTER_MODELS = {"llama-7b": "llama-2-7b", "llama-13b": "llama-2-13b"}
"""LLaMA's first models have the shapes of the second."""
_ADAPTER_CHIPS = {"a10g": "a10g", "a100-40": "a100-sxm-40gb", "a100-80": "a100-sxm-80gb"}
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


def _adapter_cases(rows: Sequence[TableRow]) -> Reader:
    """Runs of other systems, and those that do not say what was run, are named with the reason.

    The throughput over that of the run with the fewest adapters (at least one) of the same setting, chip, rate and
    burstiness is a measurement of its own.
    """
    fewest: dict[tuple[str, ...], TableRow] = {}
    for row in rows:
        with suppress(InputError):  # told with its row
            if not doubt_of(row, _ADAPTER_DOUBTS) and whole(row, "num_adapters") >= 1:
                first = fewest.get(_group(row), row)
                fewest[_group(row)] = min(first, row, key=lambda one: whole(one, "num_adapters"))

    def case(row: TableRow, case_id: str) -> tuple[Data, str]:
        doubt, first = doubt_of(row, _ADAPTER_DOUBTS), fewest.get(_group(row))
        return _adapter_data(row, case_id, None if doubt or first is row else first), doubt

    return case


def _group(row: TableRow) -> tuple[str, ...]:
    return tuple(row[name] for name in ("setting", "chip", "req_rate", "cv"))


_ADAPTER_DOUBTS: Doubts = (
    *((lambda row, system=system: row["system"] == system, reason) for system, reason in _OTHERS.items()),
    (
        lambda row: row["system"] == "ablation_mem" and not row["variant"].endswith("_dm.jsonl"),
        _OTHERS["no_mem"],
    ),
    (lambda row: row["used_in_paper"] != "yes", "a run that the paper does not use"),
    (
        lambda row: (row["setting"], row["chip"]) not in _POOL_TOKENS,
        "requests are those of a service that is not published",
    ),
    (lambda row: number(row, "alpha") != 1.0, "requests choose adapters by another law"),
)


def _ranks(row: TableRow) -> float:
    """Mean rank: the ranks of a setting in turn, from the first."""
    ranks = [int(rank) for rank in row["lora_ranks"].split(",") if rank.strip().isdigit()]
    number = whole(row, "num_adapters", 0)
    return sum(ranks[index % len(ranks)] for index in range(number)) / number if ranks and number else 0.0


def _adapter_data(row: TableRow, case_id: str, fewest: TableRow | None) -> dict[str, object]:
    measured = {"requests_per_s": number(row, "throughput_req_s")}
    data: dict[str, object] = {
        "id": case_id,
        "kind": "adapters",
        "model": _ADAPTER_MODELS.get(row["model"], row["model"]),
        "chip": _ADAPTER_CHIPS.get(row["chip"], row["chip"] or "-"),
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


TUNING = PublishedTable(
    columns=frozenset(_TUNING_COLUMNS),
    kind="train",
    cases=lambda rows: lambda row, case_id: (_tuning_data(row, case_id), doubt_of(row, _TUNING_DOUBTS)),
)
ADAPTERS = PublishedTable(columns=frozenset(_ADAPTER_COLUMNS), kind="adapters", cases=_adapter_cases)
TABLES = (TUNING, ADAPTERS)

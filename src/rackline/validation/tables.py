"""Tables (CSV) of measurements: which kind a file is, its rows and cells; fine-tuning steps as cases."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from rackline.errors import InputError
from rackline.validation.cases import Case, Unsupported, case_from

TableRow = dict[str, str]


def has_columns(text: str, columns: Iterable[str]) -> bool:
    """Whether the head of a CSV file names all of some columns."""
    return set(text.partition("\n")[0].strip().split(",")) >= set(columns)


def table_rows(text: str) -> list[TableRow]:
    """The rows of a CSV file; a cell that a short row lacks is empty."""
    return list(csv.DictReader(text.splitlines(), restval=""))


def read_rows(
    path: Path, rows: Iterable[TableRow], kind: str, read: Callable[[TableRow, str, str], Case | Unsupported]
) -> list[Case | Unsupported]:
    """Each row as a case; one whose cells cannot be read is kept with the reason, and the file goes on.

    Args:
        path: of the table, for places.
        kind: of the cases.
        read: (row, id of the case, file and line) → case.
    """
    found: list[Case | Unsupported] = []
    for line, row in enumerate(rows, start=2):
        case_id, where = f"{path.stem}:{line}", f"{path.name}, line {line}"
        try:
            found.append(read(row, case_id, where))
        except InputError as error:
            found.append(
                Unsupported(
                    case_id=case_id,
                    kind=kind,
                    where=where,
                    cause=str(error),
                    bad_input=True,
                    model=row.get("model", ""),
                    chip=row.get("chip", ""),
                )
            )
    return found


def number(row: TableRow, name: str, otherwise: float | None = None) -> float:
    """The number in a cell.

    Args:
        otherwise: what an empty cell stands for; without it, an empty cell is refused.

    Raises:
        InputError: the cell is empty, or not a number.

    >>> number({"step_s": "2.5"}, "step_s"), number({"step_s": ""}, "step_s", 1.0)
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


_COLUMNS = {"framework", "model", "task", "lora_rank", "chip", "num_chips", "precision", "seq_len", "step_s"}
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


def is_tuning_table(text: str) -> bool:
    """Whether a CSV file has the columns of published fine-tuning steps."""
    return has_columns(text, _COLUMNS)


def read_tuning_table(path: Path, text: str, unknown_keys: dict[str, int]) -> list[Case | Unsupported]:
    """Read a table; rows that do not say what was measured are kept as unsupported, with the reason.

    Args:
        text: the content of the file.
        unknown_keys: ignored keys → number of cases that have them.
    """

    def read(row: TableRow, case_id: str, where: str) -> Case | Unsupported:
        case, doubt = case_from(_data(row, case_id), where, unknown_keys), _doubt(row)
        return Unsupported.of(case, doubt) if doubt and isinstance(case, Case) else case

    return read_rows(path, table_rows(text), "train", read)


def _doubt(row: TableRow) -> str:
    """Why a row cannot be scored; empty if it can."""
    if "per GPU or total" in row["note"] and whole(row, "num_chips") > 1:
        return "the source does not say whether its rate is that of one chip or of all"
    if "offload" in row["note"].lower() and not _is_lora(row):
        return "weights or states are offloaded to the host, which training does not know"
    if "DeepEP" in row["note"] and not row["ep"].strip("-"):
        return "experts are exchanged by DeepEP, over a number of chips that is not stated"
    given = re.search(r"check seq\*mb\*gpus/step = (\d+)", row["note"])
    if given and row["tok_per_s_total"]:
        ratio = number(row, "tok_per_s_total") / float(given.group(1))
        if abs(ratio - 1.0) > APART:
            return "the published rate and the published step disagree by more than a tenth"
    return ""


def _is_lora(row: TableRow) -> bool:
    return "lora" in row["task"].lower()


def _data(row: TableRow, case_id: str) -> dict[str, object]:
    label = row["framework"].lower()
    stack = next((name for start, name in _STACKS.items() if label.startswith(start)), label.partition(" ")[0])
    version = re.search(r"\d+\.\d+", row["framework"])
    if label.startswith("nemo2"):
        stack = "nemo"
    chips, micro = whole(row, "num_chips"), whole(row, "micro_batch", 1)
    parts = {key: int(row[name]) for key, name in _LAYOUT.items() if row[name].isdigit()}
    model_chips = parts.get("tp", 1) * parts.get("pp", 1) * parts.get("cp", 1)
    batch = whole(row, "global_batch", 0) or micro * whole(row, "micro_batches", 1) * chips // model_chips
    fsdp = stack in ("prime-rl", "automodel", "torchtune")
    data: dict[str, object] = {
        "id": case_id,
        "kind": "train",
        "task": row["task"],
        "model": _model(row["model"]),
        "chip": row["chip"],
        "num_chips": chips,
        "stack": "torch-fsdp-2" if row["attention"] == "flash_attention_2" else stack,
        "stack_version": version.group() if version else "",
        "precision": row["precision"].lower(),
        "layout": {**parts, **({"sharding": "full-shard" if chips > 1 else "none"} if fsdp else {})},
        "global_batch": batch,
        "micro_batch": micro,
        "seq_len": whole(row, "seq_len"),
        "recompute": _recompute(row, stack),
        "source": row["source"],
        "measured": _measured(row),
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


def _model(name: str) -> str:
    found = name.lower()
    for pattern, written in _NAMES:
        found = re.sub(pattern, written, found.strip(" -"))
    return found


def _recompute(row: TableRow, stack: str) -> str:
    if row["act_ckpt"] in ("Recompute", "Offload"):
        return "full"
    if stack == "torchtune":
        return "none" if row["task"] == "+ packed" else "full"
    return "unknown"


def _measured(row: TableRow) -> dict[str, float]:
    if row["step_s"]:
        return {"step_s": number(row, "step_s")}
    return {
        "tokens_per_s_per_chip": number(row, "tok_per_s_per_gpu" if row["tok_per_s_per_gpu"] else "tok_per_s_total")
    }

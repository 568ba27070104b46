"""A table (CSV) of published fine-tuning steps as cases of kind train: full, LoRA and QLoRA, one row a step."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from rackline.validation.cases import Case, Unsupported, case_from
from rackline.validation.tables import has_columns

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
    found: list[Case | Unsupported] = []
    for number, row in enumerate(csv.DictReader(text.splitlines()), start=2):
        where = f"{path.name}, line {number}"
        case = case_from(_data(row, f"{path.stem}:{number}"), where, unknown_keys)
        doubt = _doubt(row)
        found.append(Unsupported.of(case, doubt) if doubt and isinstance(case, Case) else case)
    return found


def _doubt(row: dict[str, str]) -> str:
    """Why a row cannot be scored; empty if it can."""
    if "per GPU or total" in row["note"] and int(row["num_chips"]) > 1:
        return "the source does not say whether its rate is that of one chip or of all"
    if "offload" in row["note"].lower() and not _is_lora(row):
        return "weights or states are offloaded to the host, which training does not know"
    if "DeepEP" in row["note"] and not row["ep"].strip("-"):
        return "experts are exchanged by DeepEP, over a number of chips that is not stated"
    given = re.search(r"check seq\*mb\*gpus/step = (\d+)", row["note"])
    if given and row["tok_per_s_total"]:
        ratio = float(row["tok_per_s_total"]) / float(given.group(1))
        if abs(ratio - 1.0) > APART:
            return "the published rate and the published step disagree by more than a tenth"
    return ""


def _is_lora(row: dict[str, str]) -> bool:
    return "lora" in row["task"].lower()


def _data(row: dict[str, str], case_id: str) -> dict[str, object]:
    label = row["framework"].lower()
    stack = next((name for start, name in _STACKS.items() if label.startswith(start)), label.split()[0])
    version = re.search(r"\d+\.\d+", row["framework"])
    if label.startswith("nemo2"):
        stack = "nemo"
    chips, micro = int(row["num_chips"]), int(row["micro_batch"] or 1)
    parts = {key: int(row[name]) for key, name in _LAYOUT.items() if row[name].isdigit()}
    model_chips = parts.get("tp", 1) * parts.get("pp", 1) * parts.get("cp", 1)
    batch = int(row["global_batch"] or 0) or micro * int(row["micro_batches"] or 1) * chips // model_chips
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
        "seq_len": int(row["seq_len"]),
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


def _recompute(row: dict[str, str], stack: str) -> str:
    if row["act_ckpt"] in ("Recompute", "Offload"):
        return "full"
    if stack == "torchtune":
        return "none" if row["task"] == "+ packed" else "full"
    return "unknown"


def _measured(row: dict[str, str]) -> dict[str, float]:
    if row["step_s"]:
        return {"step_s": float(row["step_s"])}
    return {"tokens_per_s_per_chip": float(row["tok_per_s_per_gpu"] or row["tok_per_s_total"])}

"""Options of launch commands for low-rank adapters, drafts, and prompts that wait for those of other ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from rackline.arch import AppliedAdapter
from rackline.catalog import launch_rules_record
from rackline.serving.prompt_passes import Alignment
from rackline.serving.stack import stack

_LIST = "{modules}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MoreWords:
    """What an engine is told besides its layout.

    Args:
        words: options of the command.
        file: lines of its options file.
        notes: what else to do.
        lacks: what the engine cannot take.
    """

    words: tuple[str, ...] = ()
    file: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()


def adapter_words(engine: str, adapter: AppliedAdapter) -> MoreWords:
    """Options for adapters of one shape.

    Args:
        engine: with launch rules.
        adapter: their shape and how many there are.
    """
    options = launch_rules_record(engine).adapters
    if options is None:
        return MoreWords(lacks=("options for adapters are not known",))
    rank = max(module.rank for module in adapter.modules)
    wider = [one for one in options.ranks or (rank,) if one >= rank]
    lacks: list[str] = []
    if not wider:
        lacks.append(f"adapters of rank {rank}: {max(options.ranks or (rank,))} is the most")
    if adapter.whole_params:
        lacks.append("modules that are stored whole beside the adapter are not loaded with it")
    names = list(dict.fromkeys(module.name.rpartition(".")[2] for module in adapter.modules))
    known = options.modules
    unknown = [] if known is None else [name for name in names if name not in known]
    if unknown:
        lacks.append(f"adapters on {', '.join(unknown)} have no name in its options")
    modules = names if known is None else [known[name] for name in names if name in known]
    values = {
        "name": adapter.name.rstrip("/").rpartition("/")[2],
        "path": _path(adapter),
        "rank": str(min(wider, default=rank)),
        "resident": str(adapter.resident),
        "number": str(adapter.number),
        "modules": ", ".join(modules),
    }
    waiting = options.waiting if adapter.resident < adapter.number else ()
    return MoreWords(
        words=tuple(_filled((*options.words, *waiting), values, modules)),
        file=tuple(line.format(**values) for line in options.file),
        notes=(f"{adapter.number:,} adapters: {options.later}",) if adapter.number > 1 else (),
        lacks=tuple(lacks),
    )


def _path(adapter: AppliedAdapter) -> str:
    """Folder or repository from which an engine loads it, which knows no revision."""
    if not adapter.where:
        return adapter.name
    folder = PurePath(adapter.where)
    return str(folder.parent) if folder.suffix == ".json" else adapter.where.partition("@")[0]


def _filled(words: Sequence[str], values: dict[str, str], modules: Sequence[str]) -> list[str]:
    """Words with their values; the modules are words of their own."""
    found: list[str] = []
    for word in words:
        found += modules if word == _LIST else [word.format(**values)]
    return found


def alignment_words(engine: str, version: str, alignment: Alignment) -> MoreWords:
    """Options by which attention-dp ranks wait for each other's prompts."""
    if alignment.name not in stack(engine, version=version).alignments:
        return MoreWords(
            lacks=(f"prompts of all attention-dp ranks at once ({alignment.label()}) cannot be asked for",)
        )
    words = tuple(alignment.words)
    return MoreWords(words=words) if words[0].startswith("-") else MoreWords(file=words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """Speculative decoding of a replica.

    Args:
        tokens: drafts of a step [tokens].
        model_id: Hugging Face id or path of the draft model; empty for the model's own layer.
        is_head: whether the draft model is a head of one layer (EAGLE), not a model of its own.
    """

    tokens: int
    model_id: str = ""
    is_head: bool = False


def drafts_refusal(stack: str, stages: int) -> str:
    """Why an engine does not draft in a layout; empty where it does.

    Args:
        stages: of the replica with the most [count].
    """
    return "SGLang has no pipeline stages with them" if stack == "sglang" and stages > 1 else ""


def vllm_drafts(drafts: Drafts) -> Mapping[str, Any]:
    """The value of --speculative-config (vllm/config/speculative.py)."""
    count = {"num_speculative_tokens": drafts.tokens}
    if not drafts.model_id:
        return {"method": "mtp", **count}
    return {"method": _eagle(drafts) if drafts.is_head else "draft_model", "model": drafts.model_id, **count}


def _eagle(drafts: Drafts) -> str:
    """Which EAGLE a head is, by its name, as vLLM tells them apart."""
    return "eagle3" if "eagle3" in drafts.model_id.lower().replace("-", "") else "eagle"


def sglang_drafts(drafts: Drafts) -> list[str]:
    """Options of speculative decoding: one draft after another, without a tree (SGLang, speculative decoding)."""
    chain = ["--speculative-num-steps", str(drafts.tokens), "--speculative-eagle-topk", "1"]
    chain += ["--speculative-num-draft-tokens", str(drafts.tokens + 1)]
    if not drafts.model_id:
        return ["--speculative-algorithm", "EAGLE", *chain]  # the model's own layer, which NEXTN is another name of
    kind = _eagle(drafts).upper() if drafts.is_head else "STANDALONE"
    return ["--speculative-algorithm", kind, "--speculative-draft-model-path", drafts.model_id, *chain]


def trtllm_drafts(drafts: Drafts) -> list[str]:
    """Lines of speculative decoding (tensorrt_llm/llmapi/llm_args.py)."""
    if not drafts.model_id:
        return ["speculative_config:", "  decoding_type: MTP", f"  num_nextn_predict_layers: {drafts.tokens}"]
    kind = "Eagle" if drafts.is_head else "DraftTarget"
    where = f"  speculative_model_dir: {json.dumps(drafts.model_id)}"
    return ["speculative_config:", f"  decoding_type: {kind}", f"  max_draft_len: {drafts.tokens}", where]

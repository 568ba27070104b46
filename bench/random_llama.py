"""Write the random-weight Llama that `rackline measure` gives to engines, for servers of the same engines.

    llama/bin/python bench/random_llama.py FOLDER [fp32|bf16]

FOLDER holds config.json and tokenizer.json (vLLM with `--load-format dummy`) and model.gguf (llama.cpp). The Python is
that of an environment with gguf.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

WORKERS = Path(__file__).resolve().parents[1] / "src" / "rackline" / "lab" / "workers"
SHAPE = {
    "num_layers": 10, "d_model": 768, "num_q_heads": 12, "num_kv_heads": 4, "head_dim": 64, "d_ff": 2048,
    "vocab_size": 16384,
}  # fmt: skip
CONTEXT_LEN = 1024


def write_tokenizer(folder: Path) -> None:
    """A word for each id, split at spaces."""
    words = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"w{number}": number for number in range(3, SHAPE["vocab_size"])}
    data = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(kind), encoding="utf-8")


def main(folder: Path, dtype: str) -> None:
    """Write the three."""
    sys.path.insert(0, str(WORKERS))
    from run_llama_cpp import write_model
    from run_vllm import write_config

    folder.mkdir(parents=True, exist_ok=True)
    write_config(folder, SHAPE, CONTEXT_LEN, dtype)
    write_tokenizer(folder)
    write_model(folder / "model.gguf", SHAPE, dtype, CONTEXT_LEN, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "fp32")

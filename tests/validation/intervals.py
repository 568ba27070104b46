"""The shipped intervals on measured cases that they were not made from: `uv run python tests/validation/intervals.py`
writes the table of docs/accuracy/intervals.md."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from rackline.validation import validate
from rackline.validation.coverage import SHIPPED, Coverage, shipped_coverage, shipped_markdown
from rackline.validation.page import fill_block

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT.parent / "shared" / "measured"
PAGE = ROOT / "docs" / "accuracy" / "intervals.md"
FILES = [
    MEASURED / name
    for name in (
        "fresh/gpustack_serving.jsonl",
        "fresh/qwen_speed_static.jsonl",
        "fresh/tpu_training.jsonl",
        "other_chips/serving_atom_mi355x_mi300x.jsonl",
        "other_chips/serving_inferencex_dsr1_amd.jsonl",
        "other_chips/serving_vllm_docker_mi300x.jsonl",
    )
]


@cache
def found() -> tuple[Coverage, ...]:
    """Coverage by file and group."""
    return tuple(shipped_coverage(validate(FILES).scores))


if __name__ == "__main__":
    text = shipped_markdown(found())
    print(text)
    fill_block(PAGE, *SHIPPED, text)

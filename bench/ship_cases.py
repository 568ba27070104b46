"""Write the measured cases that may be passed on to `cases/`: `uv run python bench/ship_cases.py [MEASURED]`.

MEASURED is the folder of the collection, `../shared/measured` by default. Each case ships if its source is one of
SHIPPED. A source of LEFT_OUT does not ship, for the reason given there. Any other source is an error, so that nothing
ships whose licence nobody has looked at. Keys that `rackline validate` does not read are dropped. The tables of
`cases/README.md` are written as well.
"""

from __future__ import annotations

import gzip
import io
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rackline.validation.cases import NOT_SCORED, UNKNOWN_SPECULATION
from rackline.validation.forms import known_keys
from rackline.validation.page import fill_block, marks

ROOT = Path(__file__).resolve().parents[1]
CASES = ROOT / "cases"
FILES = (
    "serving.jsonl",
    "serving_qwen3_235b.jsonl",
    "serving_unknown_speculation.jsonl",
    "serving_disaggregated.jsonl",
    "serving_power.jsonl",
    "max_throughput.jsonl",
    "static_batch.jsonl",
    "training.jsonl",
    "fresh/gpustack_serving.jsonl",
    "fresh/public_2026_11.jsonl",
    "fresh/qwen_speed_static.jsonl",
    "fresh/tpu_training.jsonl",
    "other_chips/serving_atom_mi355x_mi300x.jsonl",
    "other_chips/serving_gaudi.jsonl",
    "other_chips/serving_inferencex_dsr1_amd.jsonl",
    "other_chips/serving_llamacpp_consumer.jsonl",
    "other_chips/serving_tpu.jsonl",
    "other_chips/serving_vllm_docker_mi300x.jsonl",
)
"""Files of the collection that hold cases, in the order in which cases are written."""
NAMES = {
    "serve": "serving",
    "serve-disaggregated": "pools",
    "max-throughput": "max_throughput",
    "static-batch": "static_batch",
    "train": "training",
}
"""Kind of a case and the file that it ships in."""
NO_LICENCE = "the repository states no licence"
UNKNOWN_LENGTHS = "ROCm/ATOM, `-aw-` scenarios"


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where measured cases were published, and under which licence.

    Args:
        prefix: start of the `source` of its cases.
        title: the repository, paper or thread.
        licence: SPDX name, or "facts": single figures of a paper or a thread, quoted with their source.
        checked: date on which the licence was read.
    """

    prefix: str
    title: str
    licence: str
    checked: str = "2026-11-28"


SHIPPED = (
    Origin(prefix="aic:systems/silicon_sample.csv", title="ai-dynamo/aiconfigurator (NVIDIA)", licence="Apache-2.0"),
    Origin(prefix="NVIDIA/TensorRT-LLM@", title="NVIDIA/TensorRT-LLM", licence="Apache-2.0"),
    Origin(
        prefix="arthurrasmusson/TensorRT-LLM@",
        title="NVIDIA/TensorRT-LLM, version 0.14 in a fork",
        licence="Apache-2.0",
    ),
    Origin(prefix="NVIDIA/FasterTransformer@", title="NVIDIA/FasterTransformer", licence="Apache-2.0"),
    Origin(prefix="Mutinifni/splitwise-sim@", title="Mutinifni/splitwise-sim", licence="MIT"),
    Origin(prefix="arXiv:2211.05102", title="Pope et al. 2022, arXiv:2211.05102, tables 2, 3 and D.3", licence="facts"),
    Origin(prefix="github.com/NVIDIA-NeMo/Megatron-Bridge", title="NVIDIA-NeMo/Megatron-Bridge", licence="Apache-2.0"),
    Origin(prefix="github.com/NVIDIA/dgxc-benchmarking", title="NVIDIA/dgxc-benchmarking", licence="Apache-2.0"),
    Origin(prefix="github.com/NVIDIA/Megatron-LM", title="NVIDIA/Megatron-LM", licence="BSD-3-Clause"),
    Origin(prefix="github.com/mosaicml/llm-foundry", title="mosaicml/llm-foundry", licence="Apache-2.0"),
    Origin(prefix="gpustack/gpustack@", title="gpustack/gpustack", licence="Apache-2.0"),
    Origin(prefix="AI-Hypercomputer/maxtext@", title="AI-Hypercomputer/maxtext", licence="Apache-2.0"),
    Origin(prefix="AI-Hypercomputer/tpu-recipes@", title="AI-Hypercomputer/tpu-recipes", licence="Apache-2.0"),
    Origin(prefix="ROCm/ATOM@", title="ROCm/ATOM, benchmark dashboard", licence="MIT"),
    Origin(prefix="ROCm/vllm@", title="ROCm/vllm, docs/dev-docker", licence="Apache-2.0"),
    Origin(
        prefix="https://github.com/KempnerInstitute/KempnerForge/", title="KempnerInstitute/KempnerForge", licence="MIT"
    ),
    Origin(
        prefix="https://github.com/tenstorrent/tt-inference-server/issues/",
        title="tenstorrent/tt-inference-server, issues 143 and 340",
        licence="facts",
    ),
    Origin(
        prefix="https://github.com/sgl-project/sglang/",
        title="sgl-project/sglang, pull requests 10404 and 10467, issue 28224",
        licence="facts",
    ),
    Origin(
        prefix="https://github.com/NVIDIA/Megatron-LM/issues/756",
        title="NVIDIA/Megatron-LM, issue 756",
        licence="facts",
    ),
    Origin(
        prefix="https://github.com/vllm-project/vllm/pull/16458",
        title="vllm-project/vllm, pull request 16458",
        licence="facts",
    ),
)
"""Where the cases that ship were published."""
LEFT_OUT = {
    "ml-energy/leaderboard@": NO_LICENCE,
    "QwenLM/Qwen3@": NO_LICENCE,
    "XiongjieDai/GPU-Benchmarks-on-LLM-Inference@": NO_LICENCE,
    "https://github.com/anyscale/ray-serve-llm-perf-examples/": NO_LICENCE,
    "https://github.com/dennislee22/vLLM-benchmarking/": NO_LICENCE,
    "vngcloud/InferenceX-app@": "the repository is under GPL-3.0",
    "RuixiangMa/InferenceX-app@": "the repository is under GPL-3.0",
    "SemiAnalysisAI/InferenceX-app@": "the repository is under GPL-3.0",
    "https://intel.com/": "a vendor's page, all rights reserved",
    "https://www.amd.com/": "a vendor's page, all rights reserved",
}
"""Start of the sources of cases that do not ship, and why."""


def origin_of(source: str) -> Origin | None:
    """Return where a case was published, or None if its source is none of SHIPPED."""
    return next((origin for origin in SHIPPED if source.startswith(origin.prefix)), None)


def why_left_out(case: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the source and the reason why a case does not ship, or None if it ships.

    Raises:
        SystemExit: nobody has looked at the licence of its source yet.
    """
    source = case["source"]
    for prefix, reason in LEFT_OUT.items():
        if source.startswith(prefix):
            return prefix.rstrip("@/"), reason
    if origin_of(source) is None:
        raise SystemExit(f"{source}: look up its licence, then add it to SHIPPED or LEFT_OUT")
    if str(case.get("length_distribution", "")).startswith("unknown"):
        return UNKNOWN_LENGTHS, "the source does not say how prompts and answers share the tokens"
    return None


def shipped_form(case: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a case that `rackline validate` reads, in the order of the source."""
    known = known_keys(case["kind"])
    return {key: value for key, value in case.items() if key in known or key == "measured"}


def name_of(case: Mapping[str, Any]) -> str:
    """Return the file that a case ships in, relative to `cases/`."""
    is_unknown = case["kind"] == "serve" and case["speculative"] == UNKNOWN_SPECULATION
    folder = f"{NOT_SCORED}/" if is_unknown else ""
    return f"{folder}{NAMES[case['kind']]}.jsonl.gz"


def read_collection(measured: Path) -> Iterator[dict[str, Any]]:
    """Yield all cases of the collection."""
    for name in FILES:
        for line in (measured / name).read_text(encoding="utf-8").splitlines():
            if line.strip():
                yield json.loads(line)


def compress(text: str) -> bytes:
    """Return text in gzip's form, with no date and no name in it, so that equal texts give equal files."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=buffer, mtime=0) as stream:
        stream.write(text.encode("utf-8"))
    return buffer.getvalue()


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> None:
    """Write all files of `cases/`."""
    measured = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT.parent / "shared" / "measured"
    files: dict[str, list[str]] = {}
    counts: Counter[tuple[str, Origin]] = Counter()
    left_out: Counter[tuple[str, str]] = Counter()
    for case in read_collection(measured):
        reason = why_left_out(case)
        if reason is not None:
            left_out[reason] += 1
            continue
        origin = origin_of(case["source"])
        assert origin is not None
        counts[name_of(case), origin] += 1
        line = json.dumps(shipped_form(case), ensure_ascii=False, separators=(",", ":"))
        files.setdefault(name_of(case), []).append(line)
    for old in CASES.rglob("*.gz"):
        old.unlink()
    for name, lines in files.items():
        target = CASES / name
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(compress("\n".join(lines) + "\n"))
        print(f"{name}: {len(lines):,} cases, {target.stat().st_size / 1e3:.0f} kB")
    shipped = [
        (name, origin.title, origin.licence, f"{number:,}", origin.checked) for (name, origin), number in counts.items()
    ]
    heads = ("file", "source", "licence", "cases", "licence read on")
    fill_block(CASES / "README.md", *marks("shipped"), table(heads, shipped))
    rows = [(source, f"{number:,}", reason) for (source, reason), number in left_out.items()]
    fill_block(CASES / "README.md", *marks("left out"), table(("source", "cases", "reason"), rows))


if __name__ == "__main__":
    main()

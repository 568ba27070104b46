"""rackline and AISimulate on the same measured servings: errors by source, stack and model, as a page of the docs.

    uv venv /tmp/peer && uv pip install --python /tmp/peer/bin/python aisimulate==0.13.0.dev202610270000000085
    uv run python bench/head_to_head.py ../shared/measured/serving_qwen3_235b.jsonl \\
        --fitted ../shared/measured/serving.jsonl ../shared/measured/serving_power.jsonl --peer /tmp/peer/bin/python
    uv run python bench/head_to_head.py  # writes the page from what is stored

The wheel (1.6 GB with what it requires) stays in an environment of its own and is not part of CI. Rows are drawn from
the files, each combination of model, stack and chip in turn, by a fixed seed. AISimulate replays each as its `predict`
does: its default version of the stack's tables, the layout of the row, as many requests a user as the benchmarks send.
rackline predicts the rows that its numbers are fitted to (`--fitted`) with and without their model in the fit.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rackline.validation.cases import Case

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "accuracy" / "head-to-head.md"
STORED = ROOT / "docs" / "measured" / "head-to-head.json"
BEGIN, END = "<!-- head to head: begin -->", "<!-- head to head: end -->"
SEED = 35
REQUESTS_A_USER = 10
MOST_TOKENS = 20e6
"""Output tokens of one replay; beyond, users send fewer requests, three at least."""
SECONDS_A_ROW = 240
CHECKPOINTS = {
    ("DeepSeek-V3.1", "fp8"): ("deepseek-ai/DeepSeek-V3", {}),
    ("Kimi-K2.5", "fp4"): ("nvidia/Kimi-K2.5-NVFP4", {}),
    ("Llama-3.1-8B", "bf16"): ("meta-llama/Meta-Llama-3.1-8B", {}),
    ("Llama-3.1-8B", "fp8"): ("meta-llama/Meta-Llama-3.1-8B", {"gemm_quant_mode": "fp8"}),
    ("Llama-3.1-70B", "bf16"): ("meta-llama/Meta-Llama-3.1-70B", {}),
    ("Llama-3.1-70B", "fp8"): ("nvidia/Llama-3.1-70B-Instruct-FP8", {}),
    ("Llama-3.1-70B", "fp4"): ("meta-llama/Meta-Llama-3.1-70B", {"gemm_quant_mode": "nvfp4"}),
    ("Llama-3.3-70B", "bf16"): ("meta-llama/Meta-Llama-3.1-70B", {}),
    ("Llama-3.1-405B", "bf16"): ("meta-llama/Meta-Llama-3.1-405B", {}),
    ("Qwen3-8B", "bf16"): ("Qwen/Qwen3-8B", {}),
    ("Qwen3-32B", "bf16"): ("Qwen/Qwen3-32B", {}),
    ("Qwen3-32B", "fp8"): ("Qwen/Qwen3-32B", {"gemm_quant_mode": "fp8"}),
    ("Qwen3-32B", "fp4"): ("Qwen/Qwen3-32B", {"gemm_quant_mode": "nvfp4"}),
    ("Qwen3-30B-A3B", "bf16"): ("Qwen/Qwen3-30B-A3B", {}),
    ("Qwen3-235B-A22B", "bf16"): ("Qwen/Qwen3-235B-A22B", {}),
    ("Qwen3-235B-A22B", "fp8"): ("Qwen/Qwen3-235B-A22B-FP8", {}),
    ("Qwen3.5-397B-A17B", "bf16"): ("Qwen/Qwen3.5-397B-A17B", {}),
    ("Qwen3.5-397B-A17B", "fp8"): (
        "Qwen/Qwen3.5-397B-A17B",
        {"gemm_quant_mode": "fp8", "moe_quant_mode": "fp8_block"},
    ),
    ("gpt-oss-120b", "fp4"): ("openai/gpt-oss-120b", {}),
    ("gpt-oss-120b", "mxfp4"): ("openai/gpt-oss-120b", {}),
}
"""(start of the model's name, label of its precision) → checkpoint that the wheel knows and the data types that differ
from it; the longest start counts. Other models have no configuration in the wheel."""


def answer_all(lines: Iterator[str]) -> None:
    """What the environment of AISimulate runs: configurations in, times per output token and to the first out."""
    import signal
    from importlib import import_module

    prediction = import_module("aisimulate.predict")
    config = import_module("aisimulate.config")
    factory = import_module("aisimulate.stack").resolve_runner_factory("engine")
    answers = sys.stdout
    sys.stdout = sys.stderr
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError(f"more than {SECONDS_A_ROW} s")))
    for line in lines:
        signal.alarm(SECONDS_A_ROW)
        try:
            question = config.CorePredictionConfig.model_validate(json.loads(line))
            found = prediction.run_prediction(question, stack="engine", runner_factory=factory).summary
            answer = {
                "tpot_s": found["mean_tpot_ms"] / 1e3,
                "median_tpot_s": found["median_itl_ms"] / 1e3,
                "ttft_s": found["mean_ttft_ms"] / 1e3,
            }
        except Exception as error:  # any of the wheel's refusals is an answer: none
            answer = {"refused": f"{type(error).__name__}: {error}"[:300]}
        signal.alarm(0)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def configuration(case: Case) -> dict[str, Any] | None:
    """A measured serving as AISimulate takes it; None where the wheel has no configuration of the model."""
    name = case.model.rpartition("/")[2]
    starts = [start for start, label in CHECKPOINTS if name.startswith(start) and label == case.precision]
    if not starts or not isinstance(case.values.get("concurrency"), int):
        return None
    checkpoint, types = CHECKPOINTS[max(starts, key=len), case.precision]
    parts = {key: int(value) for key, value in case.layout.items() if isinstance(value, int)}
    users, output_len = int(case.number("concurrency")), int(case.number("output_len"))
    tensor, expert = parts.get("tp", 1), parts.get("ep", 1)
    ranks = max(parts.get("attention_dp", 1), parts.get("moe_tp", 1) * expert // tensor)
    mixture = {"moe_tensor": parts.get("moe_tp", tensor * ranks // expert), "moe_expert": expert}
    most = int(case.values.get("max_num_seqs") or max(256, -(-users // ranks)))  # type: ignore[call-overload]
    chunk = int(case.values.get("max_num_batched_tokens") or 8192)  # type: ignore[call-overload]
    requests = min(REQUESTS_A_USER * users, max(3 * users, int(MOST_TOKENS / output_len)))
    return {
        "traffic": {
            "source": {"type": "synthetic", "input_tokens": int(case.number("input_len")), "output_tokens": output_len},
            "load": {"type": "concurrency", "concurrency": users},
            "stop": {"requests": requests},
        },
        "engine": {
            "mode": "aggregated",
            "model": checkpoint,
            "hardware": case.chip.replace("-", "_"),
            "backend": case.stack,
            "workers": {
                "aggregated": {
                    "parallelism": {
                        "tensor": tensor,
                        "pipeline": parts.get("pp", 1),
                        "attention_data": ranks,
                        **mixture,
                    },
                    "scheduler": {"max_batched_tokens": chunk, "max_sequences": most},
                    "timing": types,
                }
            },
        },
    }


def drawn(cases: Sequence[Case], count: int) -> list[Case]:
    """Rows by model × stack × chip in turn, in an order drawn by a fixed seed, until there are enough."""
    groups: dict[tuple[str, str, str], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.model, case.stack, case.chip), []).append(case)
    chance = random.Random(SEED)
    queues = [chance.sample(members, len(members)) for _, members in sorted(groups.items())]
    found = [queue[place] for place in range(max(map(len, queues))) for queue in queues if place < len(queue)]
    return found[:count]


def answers(python: str, questions: Sequence[Mapping[str, Any]], kept: Path) -> list[dict[str, Any]]:
    """What AISimulate says to each question; what a run that was cut off has said already is not asked again."""
    known: dict[str, dict[str, Any]] = {}
    if kept.exists():
        known = {item["asked"]: item["answer"] for item in map(json.loads, kept.read_text().splitlines())}
    asked = [json.dumps(question, sort_keys=True) for question in questions]
    left = [line for line in dict.fromkeys(asked) if line not in known]
    if left:
        command = [python, __file__, "--answer"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
            if peer.stdin is None or peer.stdout is None:
                raise RuntimeError("the pipe to AISimulate has no ends")
            with kept.open("a") as file:
                for line in left:
                    peer.stdin.write(line + "\n")
                    peer.stdin.flush()
                    known[line] = json.loads(peer.stdout.readline())
                    file.write(json.dumps({"asked": line, "answer": known[line]}) + "\n")
                    file.flush()
            peer.stdin.close()
    return [known[line] for line in asked]


def asked_both(
    files: Sequence[str], fitted: Sequence[str], python: str, count: int, kept: Path
) -> list[dict[str, Any]]:
    """Rows with what was measured and what each says; those that one of them does not answer have a reason.

    Args:
        files: cases that no number is fitted to.
        fitted: cases that the shipped numbers are fitted to; each of their models is left out in turn as well.
        python: of the environment of AISimulate.
        count: of rows to draw [count].
        kept: file of answers that a run which was cut off goes on from.
    """
    from dataclasses import replace

    from rackline.validation import read_cases
    from rackline.validation.cases import source_of
    from rackline.validation.refit import refit
    from rackline.validation.run import score_cases

    found = read_cases([*files, *fitted])
    cases = drawn([case for case in found.cases if configuration(case)], count)
    said = answers(python, [question for case in cases if (question := configuration(case))], kept)
    board = score_cases(replace(found, cases=tuple(cases), unsupported=()), num_worst=0)
    own = {(score.case_id, score.metric): score.predicted for score in board.scores}
    refits = refit(read_cases(fitted), "model", processes=1) if fitted else None
    left_out = {(one.case_id, one.metric): one.predicted for one in refits.board.scores} if refits else {}
    return [
        {
            "id": case.case_id,
            "source": Path(case.where.split(", line")[0]).stem,
            "model": case.model.rpartition("/")[2],
            "stack": case.stack,
            "chip": case.chip,
            "fitted": (case.case_id, "tpot_s") in left_out,
            "refused": answer.get("refused", "" if (case.case_id, "tpot_s") in own else "rackline"),
            **{
                metric: {
                    "measured": case.measured[metric],
                    "aisimulate": answer.get(
                        "median_tpot_s" if metric == "tpot_s" and source_of(case).tpot == "median" else metric
                    ),
                    "rackline": own.get((case.case_id, metric)),
                    "left_out": left_out.get((case.case_id, metric), own.get((case.case_id, metric))),
                }
                for metric in METRICS
                if metric in case.measured
            },
        }
        for case, answer in zip(cases, said, strict=True)
    ]


METRICS = {"tpot_s": "Time per output token", "ttft_s": "Time to first token"}
TOOLS = {"aisimulate": "AISimulate", "left_out": "rackline, model left out", "rackline": "rackline as it ships"}
SOURCES = {
    "serving": "servings that rackline's numbers are fitted to",
    "serving_power": "the second laboratory (ML.ENERGY), the same",
    "serving_qwen3_235b": "Qwen3-235B, to which nothing is fitted",
}
FEWEST = 6


def errors_of(rows: Sequence[Mapping[str, Any]], metric: str, tool: str) -> tuple[float, float, float]:
    """Median and 90th percentile of |predicted / measured - 1|, and median(predicted / measured) - 1."""
    from numpy import array, median, quantile

    ratios = array([row[metric][tool] / row[metric]["measured"] for row in rows])
    return float(median(abs(ratios - 1))), float(quantile(abs(ratios - 1), 0.9)), float(median(ratios) - 1)


def markdown(stored: Mapping[str, Any]) -> str:
    """The tables of the page."""
    rows = [row for row in stored["rows"] if not row["refused"]]
    refused = [row for row in stored["rows"] if row["refused"]]
    lines = [
        f"{stored['date']}, AISimulate {stored['version']}, {len(stored['rows'])} servings drawn of "
        f"{stored['of']:,}; both answer {len(rows)}. Median / 90th percentile of the error, bias.",
    ]
    ahead: list[str] = []
    for metric, title in METRICS.items():
        lines += ["", f"### {title}", "", f"| servings | cases | {' | '.join(TOOLS.values())} |"]
        lines.append(f"|---|---:|{'---:|' * len(TOOLS)}")
        for by in ("", "source", "stack", "model"):
            groups: dict[str, list[Mapping[str, Any]]] = {}
            for row in rows:
                if metric in row:
                    groups.setdefault(row[by] if by else "all", []).append(row)
            for group, members in sorted(groups.items(), key=lambda item: -len(item[1])):
                if len(members) < FEWEST:
                    continue
                errors = {tool: errors_of(members, metric, tool) for tool in TOOLS}
                label = SOURCES.get(group, group)
                cells = [f"{100 * a:.1f} / {100 * b:.0f} %, {100 * c:+.0f}" for a, b, c in errors.values()]
                lines.append(f"| {label} | {len(members)} | {' | '.join(cells)} |")
                if errors["aisimulate"][0] < errors["left_out"][0]:
                    ahead.append(
                        f"{title.lower()} of {label} ({100 * errors['aisimulate'][0]:.1f} against "
                        f"{100 * errors['left_out'][0]:.1f} %)"
                    )
    lines += [
        "",
        f"AISimulate is ahead by the median, models left out of rackline's fits: {'; '.join(ahead) or 'nowhere'}.",
    ]
    if refused:
        reasons = sorted({f"{row['model']} on {row['chip']} under {row['stack']}" for row in refused})
        lines += ["", f"Not answered by AISimulate: {len(refused)} ({'; '.join(reasons)})."]
    return "\n".join(lines)


def main() -> None:
    """Draw rows, ask both, store the answers and write the page's tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="cases that no number is fitted to")
    parser.add_argument("--fitted", nargs="*", default=[], help="cases that the shipped numbers are fitted to")
    parser.add_argument("--peer", help="Python of the environment that AISimulate is installed in")
    parser.add_argument("--rows", type=int, default=220)
    parser.add_argument("--kept", type=Path, default=ROOT / "build" / "head-to-head.jsonl")
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.answer:
        answer_all(iter(sys.stdin))
        return
    from rackline.files import rounded
    from rackline.validation.page import fill_block

    if asked.peer:
        from rackline.validation import read_cases

        version = "import importlib.metadata as m; print(m.version('aisimulate'))"
        told = subprocess.run([asked.peer, "-c", version], capture_output=True, text=True, check=True)
        asked.kept.parent.mkdir(parents=True, exist_ok=True)
        stored = {
            "date": datetime.now(UTC).date().isoformat(),
            "version": told.stdout.strip(),
            "seed": SEED,
            "of": sum(configuration(case) is not None for case in read_cases([*asked.files, *asked.fitted]).cases),
            "rows": asked_both(asked.files, asked.fitted, asked.peer, asked.rows, asked.kept),
        }
        STORED.write_text(json.dumps(rounded(stored), indent=1) + "\n", encoding="utf-8")
    fill_block(PAGE, BEGIN, END, markdown(json.loads(STORED.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()

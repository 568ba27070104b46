"""What commands take, each a process of its own, against the bars that they must clear.

    uv run python bench/speed.py [--write] [--tree FOLDER --as before] [NAME...]

`--write` stores the measurements in docs/measured/speed.json and the table of docs/speed.md; `--tree` measures another
checkout with the packages of this environment, to compare with. Each command runs once for what is kept (compiled
files, the cache folder), then up to three times, of which the least counts. Seconds are those of the processor, user
and system: on a machine that is busy with other work the wall clock tells nothing, and on two quiet cores a command
takes at most as long.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STORED = ROOT / "docs" / "measured" / "speed.json"
PAGE = ROOT / "docs" / "speed.md"
MARK = "<!-- measured -->"
ENOUGH_S = 10.0  # of repeats
LLAMA = "llama-3.1-70b"
SERVERS = ("dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200", "mi300x-8", "mi355x-8", "gb200-nvl72")
README = "plan deepseek-v3 --on gb200-nvl72 --input 4k --output 1k --tpot 30ms --ttft 2s"
PLAIN = "simulate llama-3.1-8b --on dgx-h100 --layout tp=1 --chips 1 --input 2048 --output 256 --rate 10 --requests"
CONFIG = {  # 355 billion parameters, 32 active
    "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "attention_bias": True, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 12288, "max_position_embeddings": 131072,
    "moe_intermediate_size": 1536, "num_attention_heads": 96, "n_group": 1, "topk_group": 1, "n_routed_experts": 160,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "num_hidden_layers": 92,
    "num_key_value_heads": 8, "num_nextn_predict_layers": 1, "torch_dtype": "bfloat16", "use_qk_norm": True,
    "tie_word_embeddings": False, "vocab_size": 151552, "partial_rotary_factor": 0.5,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command and its bar.

    Args:
        what: as the table says it.
        words: of the command, as in a shell.
        bar_s: seconds that it may take; None where it has no bar [s].
        status: exit status that it has.
    """

    what: str
    words: str
    bar_s: float | None = None
    status: int = 0


COMMANDS = {
    "readme": Command(what="README's plan", words=README, bar_s=6.0),
    "llama": Command(
        what="a plan of Llama 70B", words=f"plan {LLAMA} --on dgx-h100 --input 6k --output 400", bar_s=3.0
    ),
    "what-if": Command(
        what="a what-if of three values",
        words=f"plan {LLAMA} --on dgx-h200 --input 2k --output 500 --tpot 30ms --what-if hbm_bandwidth=3TB/s:12TB/s:3",
        bar_s=5.0,
    ),
    "domains": Command(what="README's plan at three domains", words=f"{README} --what-if scale_up_size=18,36,72"),
    "compare": Command(
        what="`compare` of seven",
        words=f"compare {' '.join(f'{LLAMA}@{on}' for on in SERVERS)} --input 4k --output 1k",
        bar_s=10.0,
    ),
    "price": Command(what="`price` of DeepSeek V3", words="price deepseek-v3 --on dgx-h200", bar_s=4.0),
    "budget": Command(what="`budget`", words="budget --quality-of 70b@15T --traffic 50M --months 2", bar_s=2.0),
    "kv": Command(what="`models --kv`", words="models --kv", bar_s=2.0),
    "chips": Command(what="a plan of 32,768 chips", words=f"{README} --chips 32768", bar_s=12.0),
    "config": Command(
        what="a plan of a 355B mixture from a config.json",
        words="plan config.json --on dgx-h200 --input 4k --output 1k --tpot 30ms",
    ),
    "capacity": Command(
        what="`simulate --capacity`",
        words=f"simulate {LLAMA} --on dgx-h100 --layout tp=4 --input 2k --output 256 --rate 4 "
        "--capacity ttft=2s,tpot=50ms@p99",
    ),
    "200k": Command(what="200,000 requests on one rank", words=f"{PLAIN} 200000", bar_s=2.9),
    "1M": Command(what="a million requests on one rank", words=f"{PLAIN} 1000000", bar_s=5.0),
    "explain": Command(
        what="`explain`", words=f"explain {LLAMA} --on dgx-h100 --batch 64 --context 8k --layout tp=8", bar_s=1.0
    ),
    "fit": Command(what="`fit`", words="fit qwen3-235b-a22b --on dgx-h200 --context 32k", bar_s=1.0),
    "models": Command(what="`models`", words="models", bar_s=1.0),
    "refused": Command(what="a refused name", words="plan lama-3.1-70b --on dgx-h100", bar_s=0.6, status=2),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Least seconds of the processor, and most memory, of the runs of a command."""

    cpu_s: float
    peak_bytes: float


def once(command: Command, tree: Path) -> Taken:
    """Run a command of a checkout in a folder of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
        process = subprocess.Popen(
            [sys.executable, "-m", "rackline", *command.words.split()],
            cwd=folder,
            env=environment | {"PYTHONPATH": str(tree / "src")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != command.status:
        raise RuntimeError(f"{command.words}: exit status {process.returncode}")
    scale = 1 if sys.platform == "darwin" else 1024  # macOS reports bytes, Linux KiB
    return Taken(cpu_s=used.ru_utime + used.ru_stime, peak_bytes=float(used.ru_maxrss * scale))


def measured(command: Command, tree: Path) -> Taken:
    """Best of up to three runs, after one that is not counted where it is short."""
    first = once(command, tree)
    runs = [first] if first.cpu_s > ENOUGH_S else [once(command, tree) for _ in range(3 if first.cpu_s < 3.0 else 2)]
    return Taken(cpu_s=min(run.cpu_s for run in runs), peak_bytes=max(run.peak_bytes for run in runs))


def table(stored: dict[str, dict[str, dict[str, float]]]) -> str:
    """The table of the page."""
    lines = ["| | before | now | bar | memory now |", "|---|---:|---:|---:|---:|"]
    for name, command in COMMANDS.items():
        before, now = stored["before"].get(name), stored["now"].get(name)
        if now is None:
            continue
        bar = "" if command.bar_s is None else f"{command.bar_s:g} s"
        then = "" if before is None else f"{before['cpu_s']:.1f} s"
        lines.append(f"| {command.what} | {then} | {now['cpu_s']:.1f} s | {bar} | {now['peak_bytes'] / 1e6:.0f} MB |")
    return "\n".join(lines)


def filled(page: str, stored: dict[str, dict[str, dict[str, float]]]) -> str:
    """The page with its table."""
    head, _, rest = page.partition(MARK)
    behind = rest.partition("\n\n")[2].partition("\n\n")[2]
    return f"{head}{MARK}\n\n{table(stored)}\n\n{behind}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure commands against their bars.")
    parser.add_argument("names", nargs="*", choices=[*COMMANDS, []], metavar="NAME")
    parser.add_argument("--write", action="store_true", help="store the measurements and the table of the page")
    parser.add_argument("--tree", type=Path, default=ROOT, help="checkout that is measured")
    parser.add_argument("--as", dest="label", choices=("before", "now"), default="now")
    given = parser.parse_args()
    stored: dict[str, dict[str, dict[str, float]]] = {"before": {}, "now": {}}
    if STORED.exists():
        stored = json.loads(STORED.read_text(encoding="utf-8"))
    missed = False
    for name in given.names or COMMANDS:
        command = COMMANDS[name]
        found = measured(command, given.tree.resolve())
        late = command.bar_s is not None and found.cpu_s > command.bar_s
        missed = missed or late
        bar = "" if command.bar_s is None else f"bar {command.bar_s:g} s{', MISSED' if late else ''}"
        print(f"{command.what:44} {found.cpu_s:6.2f} CPU s {found.peak_bytes / 1e6:6.0f} MB  {bar}", flush=True)
        stored[given.label][name] = asdict(found)
        if given.write:
            STORED.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
            PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), stored), encoding="utf-8")
    return 1 if missed and given.label == "now" else 0


if __name__ == "__main__":
    sys.exit(main())

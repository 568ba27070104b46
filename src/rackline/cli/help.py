"""What `rackline --help` and `rackline COMMAND --help` say: groups, one line per command, examples."""

from __future__ import annotations

from collections.abc import Mapping

GROUPS: Mapping[str, Mapping[str, str]] = {
    "Decide": {
        "plan": "The cheapest way to serve a model within latency limits.",
        "compare": "Chips, clusters, models or deployments side by side.",
        "price": "What to charge: input, output, cache, batch, fast modes.",
        "tiers": "Where to keep the KV cache of a prompt, and for how long.",
        "train": "Layout, step time, memory, days and dollars of a run.",
        "rl": "A step of reinforcement learning: split, layouts, time, cost.",
        "budget": "How large a model to train, on how many tokens.",
    },
    "Explore": {
        "sweep": "A design space as one file: billions of points, resumable.",
        "sweep-show": "What a sweep has found; also as rackline sweep show.",
    },
    "Understand": {
        "explain": "One pass row by row: formula, numbers, time, bottleneck.",
        "fit": "What fits: weights, KV cache, context length, concurrency.",
        "simulate": "Latency percentiles under recorded or synthetic traffic.",
        "encode": "Images and audio of a request: tokens, FLOP, first token.",
        "infer-prices": "What public prices reveal: parameters, KV bytes, batches.",
    },
    "Measure": {
        "measure": "Measure this machine and an engine; a file for --on.",
        "observe": "Send a load to a live server and record each token.",
        "validate": "Compare predictions with measured cases.",
        "calibrate": "Fit calibrations to measured operations or observed runs.",
    },
    "Learn": {
        "lecture": "Check the lecture's claims, and where they stop holding.",
        "lab": "Run the lecture's mechanisms at small scale, and measure them.",
        "web": "The page with its figures, and the HTTP API, on this machine.",
    },
    "Catalogue": {
        "models": "The models, or one: parameters, FLOP and KV per token.",
        "chips": "The chips, or one with the sources of its numbers.",
        "clusters": "The clusters, or one with the sources of its numbers.",
        "memory": "The memory tiers, or one with the sources of its numbers.",
        "new": "A file for your own chip, cluster, model, memory or prices.",
    },
    "Programs": {
        "ask": "Answer a file of questions: one table, one JSON.",
        "schema": "JSON Schema of questions and of answers.",
    },
}
"""Headings of `rackline --help` and the commands below each, the most used first, with what each answers."""

COMMANDS: Mapping[str, str] = {name: line for lines in GROUPS.values() for name, line in lines.items()}
"""What each command answers, in one line."""

USUAL: Mapping[str, tuple[str, ...]] = {
    "plan": ("on", "input", "output", "tpot", "ttft", "chips", "precision", "layout", "traffic", "launch", "set"),
    "train": ("seq", "chips", "tokens", "precision", "layout", "recompute", "set"),
    "rl": ("prompts", "generations", "input", "output", "longest", "algorithm", "mode", "chips", "steps", "set"),
    "simulate": ("rate", "users", "trace", "requests", "input", "output", "slo", "capacity", "layout", "chips",
                 "precision"),
    "explain": ("layout", "prefill", "precision", "calibration", "set"),
    "fit": ("context", "concurrency", "chips", "precision", "layout", "set"),
    "tiers": ("prompt", "hold_time", "reuses", "max_load_time", "layout", "precision", "set"),
    "price": ("layout", "precision", "contexts", "output", "margin", "utilisation", "tpot", "rent"),
    "budget": ("quality_of", "loss", "traffic", "months", "rl", "moe", "unique_tokens", "on", "runs"),
    "compare": ("stack", "now", "for", "input", "output", "tpot", "ttft", "precision", "layout", "set"),
    "observe": ("rate", "users", "trace", "requests", "input", "output", "save", "yes", "key_env", "model", "on",
                "stack", "max_time"),
    "validate": ("calibration", "stored", "import_format", "output"),
}  # fmt: skip
"""Options that `--help` shows beside the required ones, by command; the others are shown by `--help-all`. A command
that is missing here shows all."""

EXAMPLES: Mapping[str, str] = {
    "": """Examples:

    rackline plan deepseek-v3 --on gb200-nvl72 \\
      --input 4k --output 1k --tpot 30ms --ttft 2s
    rackline explain llama-3.1-70b --on dgx-h100 --batch 64 --context 8k
    rackline models meta-llama/Llama-3.1-70B

Each command has --help, and --json for programs.
Quantities carry units: 30ms, 4k, 128Ki, 141GB, 3.35TB/s.
""",
    "plan": """Examples:

    rackline plan deepseek-v3 --on gb200-nvl72 \\
      --input 4k --output 1k --tpot 30ms --ttft 2s
    rackline plan llama-3.1-70b --on dgx-h100 \\
      --input 1k --output 500 --precision fp8 --layout tp=4
    rackline plan gpt-oss-120b --on dgx-b200 \\
      --input 8k --output 1k --set hbm_bytes_per_s=20TB/s
    rackline plan deepseek-v3 --on gb200-nvl72 --chips 16 \\
      --prefill-on h100-96 --input 4k --output 1k --precision fp8
    rackline plan deepseek-v3 --on gb200-nvl72 --input 4k --output 1k \\
      --tpot 30ms --traffic 50M --peak-over-mean 1.8 --launch auto
    rackline plan llama-3.1-70b --on dgx-h200 --input 2k --output 500 \\
      --what-if hbm_bandwidth=3TB/s:12TB/s:4 --plot what-if.svg
    rackline plan ./config.json --on dgx-h200 --input 4k --output 1k --json
""",
    "rl": """Examples:

    rackline rl qwen3-32b --on gb200-nvl72 --chips 32 --prompts 64 \\
      --generations 32 --output 3k --longest 4k --mode one-step-off
    rackline rl llama-3.1-8b --on dgx-h100 --chips 16 --mode async \\
      --staleness 4 --in-flight --plot step.svg
""",
    "train": """Examples:

    rackline train llama-3.1-405b --on dgx-h100 --chips 16384 \\
      --tokens 15.6T --global-batch 16M
    rackline train deepseek-v3 --on gb200-nvl72 --chips 2304 \\
      --global-batch 63M --seq 4Ki --precision mxfp8 --plot pipeline.html --plot-kind pipeline
    rackline train llama-3.1-70b --on dgx-h100 --chips 64 \\
      --global-batch 1M --layout tp=4,pp=4 --recompute full --json
""",
    "simulate": """Examples:

    rackline simulate llama-3.1-70b --on dgx-h100 --layout tp=4 \\
      --rate 4 --input 2k --output 256 --slo ttft=2s,tpot=50ms@p99
    rackline simulate deepseek-v3 --on dgx-h200 --layout tp=8,ep=8 \\
      --trace mooncake_conversation_trace.jsonl --prefix-caching
    rackline simulate llama-3.1-8b --on dgx-h100 --chips 1 \\
      --rate 5 --input 1k --output 200 --capacity ttft=1s,tpot=30ms@p99
    rackline simulate llama-3.1-8b --on dgx-h100 --chips 2 --users 64 \\
      --input 1k --output 200 --compare policy=prefill-first
""",
    "explain": """Examples:

    rackline explain llama-3.1-70b --on dgx-h100 --batch 64 --context 8k
    rackline explain deepseek-v3 --on gb200-nvl72 \\
      --batch 512 --context 4k --layout attention_dp=8,ep=8
    rackline explain qwen3-32b --on dgx-h100 \\
      --batch 0 --context 1 --prefill 4k --trace pass.json
""",
    "fit": """Examples:

    rackline fit llama-3.1-70b --on dgx-h100 --context 32k
    rackline fit deepseek-v3 --on dgx-h200 \\
      --context 32k --concurrency 64 --precision fp8
""",
    "tiers": """Examples:

    rackline tiers deepseek-v3 --on dgx-h200 --prompt 16k
    rackline tiers llama-3.1-70b --on dgx-h100 \\
      --hold-time 5min --hold-time 1h --reuses 10 --max-load-time 200ms --plot tiers.svg
""",
    "price": """Examples:

    rackline price llama-3.1-70b --on dgx-h100 --precision fp8 --layout tp=8
    rackline price deepseek-v3 --on dgx-h200 --contexts 32k,128k \\
      --margin 50% --utilisation 40% --purchase 40000 --pue 1.2 --json
""",
    "infer-prices": """Examples:

    rackline infer-prices gemini-3.1-pro
    rackline infer-prices deepseek-v3
    rackline infer-prices claude-opus-4.6 --chip gb200 --margin 20%..100%
    rackline infer-prices --all --plot prices.html
""",
    "budget": """Examples:

    rackline budget --quality-of 70b@15T --traffic 50M --months 2
    rackline budget --quality-of 70b@15T --traffic 50M --months 2 \\
      --rl 10T --moe 32 --plot budget.svg
    rackline budget --loss 1.95 --traffic 1M --unique-tokens 20T --json
    rackline budget --runs
""",
    "validate": """Examples:

    rackline validate cases.jsonl --plot parity.html
    rackline validate cases.jsonl --calibration unit --json
    rackline validate --import vllm result.json --chip h100-sxm \\
      --num-chips 4 --layout tp=4 --precision fp8 -o cases.jsonl
""",
    "observe": """Examples:

    rackline observe http://localhost:8000 --rate 2 --requests 200 \\
      --input 512 --output 128 --model llama-3.1-8b --on dgx-h100 --chips 1 \\
      --stack vllm -o observed.jsonl
    rackline validate observed.jsonl
""",
    "calibrate": """Examples:

    rackline calibrate gemm.csv moe.csv collective.csv -o calibration.toml
    rackline plan llama-3.1-70b --on dgx-h100 \\
      --input 1k --output 500 --calibration ./calibration.toml
    rackline calibrate --release vllm=0.33 gemm.csv --cases servings.jsonl
    rackline calibrate --from observed.jsonl -o mine.toml
    rackline validate observed-later.jsonl --calibration mine
""",
    "measure": """Examples:

    rackline measure
    rackline measure --engine llama.cpp --dtype bf16 -o laptop.toml
    rackline explain qwen3-0.6b --on my-machine.toml --batch 4 --context 1k
""",
    "lab": """Examples:

    rackline lab cipher --quick
    rackline lab all --quick --report lab.html
""",
    "web": """Examples:

    rackline web
    rackline web --port 8080 --no-browser
""",
    "lecture": """Examples:

    rackline lecture
    rackline lecture --segment 6
    rackline lecture --claim C99
    rackline lecture --claim Q4
    rackline lecture --claim C28 --set gb200:hbm_bytes_per_s=16TB/s
""",
    "chips": """Examples:

    rackline chips
    rackline chips --ridge
    rackline chips h100
    rackline chips h100 --set hbm_bytes_per_s=20TB/s --json
""",
    "clusters": """Examples:

    rackline clusters
    rackline clusters gb200-nvl72
""",
    "models": """Examples:

    rackline models
    rackline models deepseek-ai/DeepSeek-V3
    rackline models path/to/config.json --json
    rackline models --kv --on h200
""",
    "memory": """Examples:

    rackline memory
    rackline memory nvme-gen5
""",
    "ask": """Examples:

    rackline ask questions.toml
    rackline ask questions.toml --json

with questions.toml such as

    [[questions]]
    ask = "fit"
    model = ["llama-3.1-70b", "deepseek-v3"]
    on = ["dgx-h200", "gb200-nvl72"]
    context = "32k"
""",
    "encode": """Examples:

    rackline encode Qwen/Qwen3-VL-8B-Instruct --on dgx-h100 \\
      --image-size 1920x1080 --images 4 --prompt 200
    rackline encode path/to/config.json --on h100-96 --image-size 896x896
""",
    "new": """Examples:

    rackline new chip my-chip --like b200
    rackline chips my-chip.toml
    rackline new cluster my-rack -o racks/my-rack.toml
""",
    "sweep": """Examples:

    rackline sweep --new space.toml
    rackline sweep space.toml --dry-run
    rackline sweep space.toml --out results
    rackline sweep space.toml --search
    rackline sweep space.toml --out s3://bucket/results --ray auto
""",
    "sweep-show": """Examples:

    rackline sweep show results
    rackline sweep show results --plot front.svg
    rackline sweep show results --by on --along context --plot options.svg --plot-kind options
    rackline sweep show results --sql "SELECT layout, count(*) FROM sweep GROUP BY layout"
""",
    "schema": """Examples:

    rackline schema
    rackline schema plan
    rackline schema plan --answers
""",
    "compare": """Examples:

    rackline compare h100 b200 mi355x tpu-v7
    rackline compare dgx-h100 gb200-nvl72
    rackline compare deepseek-v3 deepseek-v3.2 kimi-k3
    rackline compare llama-3.1-70b@dgx-h100 llama-3.1-70b@dgx-b200 --input 4k --output 1k
""",
}
"""Examples of each command; "" is `rackline` itself."""


def first_examples(name: str, number: int = 2) -> str:
    """The first examples of a command.

    Args:
        name: of the command.
        number: how many at most [count].
    """
    head, *examples = EXAMPLES[name].split("    rackline ")
    return "    rackline ".join([head, *examples[:number]])

"""Published training tables that nothing is fitted to, beside predictions: the tables of docs/accuracy/training.md.

They are read beside this checkout (`../shared/facts`); `bench/refresh_docs.py --only tables/training` writes the page.
"""

from __future__ import annotations

import csv
import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from helpers import micro_batch
from rackline import arch
from rackline.arch import Model
from rackline.errors import RacklineError
from rackline.hardware import Cluster, cluster
from rackline.search.train_space import evaluate_runs, timed_steps, train_space
from rackline.training.flop import model_flop
from rackline.training.memory import micro_batches_in_flight, stack_bytes, train_memory
from rackline.training.runs import Runs, TrainLayout
from rackline.training.schedules import equal_stages, schedule
from rackline.training.stack import IDEAL, TrainPrecision, train_precision, training_stack
from rackline.training.step import step_parts, step_time
from rackline.training.system import MicroBatch, TrainingSystem
from rackline.validation.resolve import architecture_record

ROOT = Path(__file__).resolve().parents[2]
FACTS = ROOT.parent / "shared" / "facts"
BEGIN, END = "<!-- training tables: begin -->", "<!-- training tables: end -->"
GIB = 2.0**30
NARROW = IDEAL.with_values({"memory.gradient_bytes": 2.0})
Row = dict[str, str]


def rows(name: str) -> list[Row]:
    """A table of facts."""
    with (FACTS / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def gpt(layers: int, width: int, heads: int, vocab: int = 51200) -> Model:
    """A model of the GPT family."""
    shape = {
        "num_layers": layers,
        "d_model": width,
        "num_q_heads": heads,
        "d_ff": 4 * width,
        "vocab_size": vocab,
        "attention": "mha",
        "ffn": "gelu",
    }
    found = arch.build_model(architecture_record(shape, "gpt", "table"))
    assert isinstance(found, Model)
    return found


def named(name: str) -> Model:
    found = arch.model(name)
    assert isinstance(found, Model)
    return found


def job_of(
    model: Model,
    on: Cluster,
    stack: str,
    batch: int,
    seq_len: int,
    precision: TrainPrecision | str = "bf16",
    mtp_layers: int = 0,
    changes: Mapping[str, object] | None = None,
) -> TrainingSystem:
    """A job whose stack may have other values, by dotted key."""
    return TrainingSystem.of(
        model,
        on,
        precision=precision,
        stack=training_stack(stack).with_values(changes or {}),
        global_batch_sequences=batch,
        seq_len=seq_len,
        mtp_layers=mtp_layers,
    )


def step_of(job: TrainingSystem, layout: TrainLayout) -> float:
    """Time of a step [s]."""
    return float(timed_steps(job, Runs.of([layout])).step[0])


# -------------------------------------------------------------------------------- Korthikanti, Calculon


def megatron_steps() -> Iterator[tuple[str, str, float, float, float | None]]:
    """(model, recompute, measured, predicted, Calculon's prediction) of a step [s]."""
    for row in rows("korthikanti_end_to_end.csv"):
        count = {
            k: int(row[k]) for k in ("layers", "hidden", "heads", "pp", "dp", "virtual_stages", "gbs", "mbs", "n_gpus")
        }
        model = gpt(count["layers"], count["hidden"], count["heads"])
        for key, again, sp in (
            ("iter_s_full_recompute", "full", False),
            ("iter_s_selective_plus_sp", "selective", True),
        ):
            if not row[key]:
                continue
            layout = TrainLayout(
                tp=8,
                pp=count["pp"],
                virtual_pp=count["virtual_stages"],
                dp=count["dp"],
                micro_batch=count["mbs"],
                recompute=again,
                zero=0,
            )
            on = cluster("dgx-a100").with_num_chips(count["n_gpus"])
            spread = {"parallelism.sequence_parallel": sp}
            job = job_of(model, on, "megatron-lm-2021", count["gbs"], 2048, changes=spread)
            other = row["calculon_pred_iter_s_full" if again == "full" else "calculon_pred_iter_s_selective"]
            name = row["model"] if count["dp"] == 1 else f"{row['model']}, dp {count['dp']}"
            yield name, again, float(row[key]), step_of(job, layout), float(other) if other else None


SHAPES = {
    "megatron-22B": (48, 6144, 64, 1, 1, 4),
    "gpt3-175B": (96, 12288, 96, 8, 3, 1),
    "turing-530B": (105, 20480, 128, 35, 3, 1),
    "megatron-1T": (128, 25600, 160, 64, 1, 1),
}


def megatron_memory() -> Iterator[tuple[str, str, float, float, float]]:
    """(model, quantity, published, predicted, Calculon) of activations and states."""
    on = cluster("dgx-a100")
    for row in rows("calculon_memory_validation.csv"):
        layers, width, heads, pp, v, b = SHAPES[row["model"]]
        model = gpt(layers, width, heads)

        def held(again: str, sp: bool, shape=(model, pp, v, b)) -> float:
            model, pp, v, b = shape
            runs = Runs.of([TrainLayout(tp=8, pp=pp, virtual_pp=v, micro_batch=b, recompute=again)])
            plain = IDEAL.with_values({"kernels.flash_attention": False, "parallelism.sequence_parallel": sp})
            batch = micro_batch(model, runs, on, seq_len=2048, stack=plain)
            flight = micro_batches_in_flight(runs, np.array([64.0 * pp]))
            return float((stack_bytes(batch, again, dropout=True) / pp * flight)[0])

        quantity = row["quantity"]
        if quantity == "params+optimizer_GiB":
            runs = Runs.of([TrainLayout(tp=8, pp=pp, virtual_pp=v, micro_batch=b, zero=0)])
            states = train_memory(micro_batch(model, runs, on, seq_len=2048))
            ours = float((states.weights + states.gradients + states.optimizer)[0]) / GIB
        elif quantity.endswith("_GiB"):
            ours = (held("none", False) if "no_recompute" in quantity else held("selective", True)) / GIB
        else:
            again, sp = {
                "seq_parallel_pct": ("none", True),
                "selective_pct": ("selective", False),
                "seq+selective_pct": ("selective", True),
                "full_recompute_pct": ("full", False),
            }[quantity]
            ours = 100.0 * held(again, sp) / held("none", False)
        yield row["model"], quantity, float(row["published"]), ours, float(row["calculon_pred"])


# -------------------------------------------------------------------------------- schedules


def zero_bubble(most_slots: float = float("inf")) -> dict[str, list[float]]:
    """Predicted minus published bubble rate, by schedule; stage times are those of the step model on A100."""
    names = {"1F1B": "1f1b", "1F1B-I": "interleaved", "ZB-H1": "zb-h1", "ZB-H2": "zb-h2", "ZB-V": "zb-v"}
    found: dict[str, list[float]] = defaultdict(list)
    stack = training_stack("megatron-lm-2021")
    for row in rows("zero_bubble_tables.csv"):
        name = names.get(row["schedule"])
        if name is None or not row["bubble_rate"]:
            continue
        layers, width, heads, p, m = (
            int(row[k]) for k in ("layers", "hidden", "heads", "stages_p", "num_microbatches_m")
        )
        if p * m > most_slots:
            continue
        on = cluster("dgx-a100").with_num_chips(p)
        micro = int(float(row["microbatch"]))
        layouts = [TrainLayout(pp=p, micro_batch=micro, zero=0)]
        plain = stack.with_values({"kernels.flash_attention": False, "parallelism.sequence_parallel": True})
        parts = step_parts(micro_batch(gpt(layers, width, heads), layouts, on, seq_len=1024, stack=plain, batch=micro))
        time = step_time(parts, stack)
        # the paper counts embedding and head as a layer each and cuts evenly
        grown = (layers + 2) / layers
        forward, given, weight = (float(x[0]) * grown for x in (time.forward, time.input, time.weight))
        kind = schedule(name)
        v = (layers + 2) // p if name == "interleaved" else 1
        line = kind.run(p, m, equal_stages(kind, p, forward, given, weight, virtual_pp=v, hop_s=float(parts.hop[0])), v)
        found[row["schedule"]].append(line.bubble_fraction - float(row["bubble_rate"]))
    return found


def gpipe() -> Iterator[tuple[int, int, float, float]]:
    """(partitions, micro-batches, published, predicted speed-up over two partitions and one micro-batch).

    Equal stages, backward twice the forward pass, all micro-batches but the last computed again.
    """

    def step(n: int, m: int) -> float:
        work = 1.0 + (1.0 - 1.0 / m) / 3.0
        return work * (m + n - 1) / m / n

    for row in rows("gpipe_torchgpipe_tables.csv"):
        if row["table"].startswith("AmoebaNet-D (18,256)"):
            n, m = int(row["partitions"]), int(row["micro_batches"])
            yield n, m, float(row["speedup_torchgpipe"]), step(2, 1) / step(n, m)


# -------------------------------------------------------------------------------- large runs


def llama3() -> Iterator[tuple[str, float, float]]:
    """(run, published TFLOP/s per chip, predicted) of Llama 3 405B; attention counted causal."""
    model = named("llama-3.1-405b")
    for row in rows("llama3_table4.csv"):
        chips, tp, cp, pp, dp, seq, per = (
            int(row[k]) for k in ("n_gpus", "tp", "cp", "pp", "dp", "seq_len", "batch_per_dp")
        )
        job = job_of(model, cluster("dgx-h100").with_num_chips(chips), "llama-3", per * dp, seq)
        layout = TrainLayout(tp=tp, cp=cp, pp=pp, virtual_pp=8, dp=dp, zero=1, recompute="modules")
        flop = float(model_flop(model, seq, float(per * dp), causal=True))
        yield row["stage"], float(row["tflops_per_gpu"]), flop / step_of(job, layout) / chips / 1e12


def deepseek() -> Iterator[tuple[str, float, float]]:
    """(quantity, published, predicted) of DeepSeek-V3's own run: 2,048 H800, pp 16, ep 64, ZeRO-1, DualPipe.

    15,360 sequences of 4,096 tokens are 272.8e9 tokens a day at 19.926 s a step (arXiv:2505.09343, table 4); 14.8e12
    tokens took 2.664e6 H800 hours (arXiv:2412.19437, table 1).
    """
    published = {
        row["item"]: float(row["value"]) for row in rows("deepseek_training_facts.csv") if "MPFT" in row["item"]
    }
    job, layout = deepseek_run()
    step_s = step_of(job, layout)
    hours = 14.8e12 / job.global_batch_tokens * step_s * job.cluster.num_chips / 3600.0
    yield "seconds of a step", published["V3 training (2048 H800) time/step MPFT"], step_s
    yield "million H800 hours of pre-training", 2.664, hours / 1e6
    flop = {causal: float(model_flop(job.model, 4096, 15360.0, causal=causal)) for causal in (False, True)}
    for causal, name in ((False, "non-causal"), (True, "causal")):
        rate = flop[causal] / step_s / job.cluster.num_chips / 1e12
        yield f"TFLOP/s per chip, {name}", published[f"V3 training (2048 H800) TFLOPS {name} MPFT"], rate


def deepseek_run() -> tuple[TrainingSystem, TrainLayout]:
    """The run and its layout."""
    job = job_of(
        named("deepseek-v3"), cluster("h800-8").with_num_chips(2048), "hai-llm", 15360, 4096, "fp8-block", mtp_layers=1
    )
    return job, TrainLayout(pp=16, ep=64, dp=128, schedule="dualpipe", recompute="modules")


def megascale() -> Iterator[tuple[str, float, float]]:
    """(run, published seconds of a step, predicted) of a 175B model on A100."""
    model = gpt(96, 12288, 128, 65536)
    for row in rows("megascale_tables.csv"):
        if not row["iter_s"]:
            continue
        chips, batch = int(row["n_gpus"]), int(row["batch"])
        job = job_of(model, cluster("dgx-a100").with_num_chips(chips), "megatron-lm", batch, 2048)
        layout = TrainLayout(tp=8, pp=8, virtual_pp=6, dp=chips // 64)
        yield f"{row['system']}, {chips:,} chips, batch {batch:,}", float(row["iter_s"]), step_of(job, layout)


def torchtitan_runs() -> Iterator[tuple[str, Row, TrainingSystem, TrainLayout]]:
    """(run, row, job, layout) of torchtitan on H100 with 2.4 TB/s that are kept below 500 W, as its tables say.

    A pipeline has as many micro-batches as ranks (@9dec370, torchtitan/parallelisms/pipelining_utils.py). Its loss is
    the stack's, and with tensor parallelism that of pytorch/torch/distributed/tensor/parallel/loss.py, whose backward
    pass holds four copies of the logits in fp32: log-probabilities, their gradient, its sum with probabilities, scaled.
    """
    for row in rows("torchtitan_benchmarks.csv"):
        text = f"{row['caption']} {row['label']}"
        rate = row["tokens_per_s_per_gpu"] or row["vanilla_tp_tokens_per_s"]
        if not rate or not row["gpu"].startswith("H100"):
            continue
        chips, seq = int(row["n_gpus"]), int(row["seq_len"] or 8192)

        def part(name: str, text: str = text) -> int | None:
            found = re.findall(rf"\b{name}\s*=?\s*(\d+)", text)
            return int(found[-1]) if found else None

        tp, pp, cp = part("TP") or 1, part("PP") or 1, part("CP") or 1
        dp = chips // (tp * pp * cp)
        local = part("[Ll]ocal batch size") or 1
        model = named(row["model"].lower().replace("llama3", "llama-3"))
        on = cluster("dgx-h100", {"chip.hbm_bytes_per_s": 2.4e12, "chip.hbm_bytes": 96e9}).with_num_chips(chips)
        on = dataclasses.replace(on, chip=dataclasses.replace(on.chip, power_cap_w=500.0))
        again = "full" if "ull" in row["caption"] or "full AC" in text else "selective-op"
        label = "fp8" if "loat8" in text and row["label"] not in ("FSDP", "FSDP + torch.compile") else "bf16"
        if row["label"].startswith("None"):
            label = "bf16"
        micro = local // pp
        v = 2 if "Interleaved" in row["label"] else 1
        parallel_loss = {"memory.logit_bytes": 16.0} if tp > 1 else {}
        job = job_of(model, on, "torch-fsdp-2", local * dp, seq, label, changes=parallel_loss)
        layout = TrainLayout(
            tp=tp, pp=pp, cp=cp, dp=dp, virtual_pp=v, zero=3 if pp == 1 else 2, micro_batch=micro, recompute=again
        )
        what = f"{row['model']} {chips} chips, {row['label']}" + (f", {seq} tokens" if row["seq_len"] else "")
        yield what, row, job, layout


def torchtitan() -> Iterator[tuple[str, float, float]]:
    """(run, published tokens/s per chip, predicted)."""
    for what, row, job, layout in torchtitan_runs():
        rate = row["tokens_per_s_per_gpu"] or row["vanilla_tp_tokens_per_s"]
        yield what, float(rate), job.global_batch_tokens / step_of(job, layout) / layout.num_chips


def torchtitan_memory() -> Iterator[tuple[str, float, float]]:
    """(run, published peak of the memory that PyTorch reserves, predicted) [bytes].

    It reserves 1.14 times what is allocated: median of 22 steps, 1.03 to 1.30 (docs/measured/train-pytorch-h200.csv).
    """
    for what, row, job, layout in torchtitan_runs():
        if row["memory_gib"]:
            batch = MicroBatch(system=job, runs=Runs.of([layout]))
            yield what, float(row["memory_gib"]) * GIB, 1.14 * float(train_memory(batch).allocated[0])


# -------------------------------------------------------------------------------- memory of real runs


def measured_memory() -> Iterator[tuple[str, float, float]]:
    """(run, measured bytes, predicted bytes that are allocated: without driver and fragments).

    Moonlight's recipe keeps moments in bf16 (NVIDIA-NeMo/Megatron-Bridge @08de997, recipes/moonlight/moonlight_16b.py).
    Runs that ended out of memory are `ran_out` instead: their last reading is not what they need.
    """
    on = cluster("dgx-h100")
    llama, small = named("llama-3.1-70b"), named("qwen3-30b-a3b")
    runs = [
        (
            "Llama-3-70B SFT fp8, TP4 PP4 VPP5 DP2",
            llama,
            58.8e9,
            TrainLayout(tp=4, pp=4, virtual_pp=5, dp=2),
            "fp8",
            32,
            4096,
        ),
        ("the same, TP4 PP8 VPP5", llama, 53.2e9, TrainLayout(tp=4, pp=8, virtual_pp=5), "fp8", 32, 4096),
        ("the same, TP8 PP4 VPP5", llama, 50.2e9, TrainLayout(tp=8, pp=4, virtual_pp=5), "fp8", 32, 4096),
        ("the same, TP4 PP4 VPP10", llama, 60.2e9, TrainLayout(tp=4, pp=4, virtual_pp=10, dp=2), "fp8", 32, 4096),
        ("Qwen3-30B-A3B bf16, EP16", small, 62.166 * GIB, TrainLayout(dp=16, ep=16), "bf16", 512, 4096),
        (
            "Moonlight-16B bf16, TP2 EP8",
            moonlight(),
            36.618e9,
            TrainLayout(tp=2, dp=4, ep=8),
            "bf16",
            4,
            4096,
        ),
    ]
    for what, model, measured, layout, label, batch, seq in runs:
        types = train_precision(label, on.chip, "adam-bf16" if what.startswith("Moonlight") else None)
        micro = micro_batch(model, [layout], on, seq_len=seq, precision=types, stack=NARROW, batch=batch)
        found = train_memory(micro, runtime_bytes=0.0, margin=0.0)
        yield what, measured, float(found.total[0])
    tune = arch.build_model(
        architecture_record(
            {
                "num_layers": 28,
                "d_model": 3072,
                "num_q_heads": 24,
                "num_kv_heads": 8,
                "head_dim": 128,
                "d_ff": 8192,
                "vocab_size": 128256,
                "attention": "gqa",
                "ffn": "swiglu",
                "tied_embeddings": True,
            },
            "llama-3.2-3b",
            "table",
        )
    )
    assert isinstance(tune, Model)
    whole = TrainPrecision(label="bf16", master_bytes=0.0, moment_bytes=4.0)
    for what, measured, again, logits in (
        ("torchtune Llama-3.2-3B, packed, compiled", 51.0, "none", True),
        ("the same, chunked loss", 42.9, "none", False),
        ("the same, chunked loss, full recompute", 24.9, "full", False),
    ):
        layout = TrainLayout(micro_batch=2, zero=0, recompute=again)
        micro = micro_batch(tune, [layout], cluster("dgx-a100"), seq_len=4096, precision=whole, stack=NARROW, batch=2)
        found = train_memory(micro, runtime_bytes=0.0, margin=0.0)
        yield what, measured * GIB, float(found.total[0]) - (0.0 if logits else float(found.logits[0]))


def ran_out() -> Iterator[tuple[str, float]]:
    """(run that ended out of memory on 80 GB, predicted bytes of its chip, driver and fragments included)."""
    on = cluster("dgx-h100")
    model = named("nemotron-3-nano-30b-a3b")
    layout = TrainLayout(dp=16, ep=8)
    found = train_memory(micro_batch(model, [layout], on, seq_len=8192, stack=NARROW, batch=16))
    yield "Nemotron-3-Nano bf16, EP8, nothing recomputed", float(found.total[0])


def moonlight() -> Model:
    """Moonlight-16B-A3B: DeepSeek-V3's shape at 27 layers of 2048."""
    base = named("deepseek-v3")
    dense, mixture = base.layer_groups[0], base.layer_groups[-1]
    attention = dataclasses.replace(dense.attention, num_q_heads=16, q_lora_rank=0)
    return dataclasses.replace(
        base,
        d_model=2048,
        vocab_size=163_840,
        norm_params_per_norm=2048,
        layer_groups=(
            dataclasses.replace(dense, count=1, attention=attention, ffn=dataclasses.replace(dense.ffn, d_ff=11_264)),
            dataclasses.replace(
                mixture,
                count=26,
                attention=attention,
                ffn=dataclasses.replace(mixture.ffn, num_experts=64, experts_per_token=6, d_expert=1408, d_shared=2816),
            ),
        ),
    )


# -------------------------------------------------------------------------------- a vendor's layouts

RECIPES = (
    ("deepseek_v3/pretrain/megatron_bridge", "", "deepseek-v3"),
    ("gpt-oss", "", "gpt-oss-120b"),
    ("kimi-k2", "", "kimi-k2"),
    ("llama3.1", "405b", "llama-3.1-405b"),
    ("llama3.1", "70b", "llama-3.1-70b"),
    ("llama3.1", "8b", "llama-3.1-8b"),
    ("nemotron-h", "", "nemotron-h-56b"),
    ("nemotron3", "30B", "nemotron-3-nano-30b-a3b"),
    ("nemotron3", "120", "nemotron-3-super-120b-a12b"),
    ("qwen3", "30B", "qwen3-30b-a3b"),
    ("qwen3", "235B", "qwen3-235b-a22b"),
)
CLUSTERS = {"H100": "dgx-h100", "B200": "dgx-b200", "B300": "dgx-b300", "GB200": "gb200-nvl72", "GB300": "gb300-nvl72"}


def vendor_layouts() -> Iterator[tuple[str, float, bool, str]]:
    """(recipe, its time over the time of our best, whether it fits by our count, our best layout)."""
    for row in rows("nvidia_dgxc_recipe_configs.csv"):
        size = f"{row['model size']} {row['section']}"
        model = next((m for start, part, m in RECIPES if row["recipe"].startswith(start) and part in size), None)
        if model is None or not row["gpus"]:
            continue
        chips = int(re.findall(r"\d+", row["gpus"])[0])

        def count(key: str, otherwise: int = 1, row: Row = row, chips: int = chips) -> int:
            text = row[key].replace("\\", "").replace("**", "").replace("GPUs", str(chips))
            if not re.fullmatch(r"\d+([*/]\d+)?", text):
                return otherwise
            a, *rest = re.split(r"[*/]", text)
            return int(a) if not rest else int(a) * int(rest[0]) if "*" in text else int(a) // int(rest[0])

        batch, seq = count("gbs", 0), count("seqlen", 4096)
        label = (row["precision"] or row["datatype"] or "BF16").split("/")[0].lower()
        label = "mxfp8" if label == "fp8" and row["gpu_context"] != "H100" else label
        tp, pp, cp = count("tp"), count("pp"), count("cp")
        if not batch or chips % (tp * pp * cp):
            continue
        try:
            job = job_of(
                named(model),
                cluster(CLUSTERS[row["gpu_context"]]).with_num_chips(chips),
                "megatron-bridge",
                batch,
                seq,
                label,
            )
            layout = TrainLayout(
                tp=tp,
                pp=pp,
                virtual_pp=count("vp", max(1, job.model.num_layers // pp)) if pp > 1 else 1,
                cp=cp,
                ep=count("ep") if job.model.is_moe else 1,
                expert_tp=count("etp") if job.model.is_moe else 1,
                dp=chips // (tp * pp * cp),
                micro_batch=count("mbs"),
                zero=3 if row["fsdp"] == "True" else 1,
            )
            ours = step_of(job, layout)
            memory = train_memory(MicroBatch(system=job, runs=Runs.of([layout])))
            fits = float(memory.total[0]) <= job.cluster.chip.hbm_bytes
            space = train_space(job, schedules=("1f1b", "interleaved"), recompute=("none", "modules", "full"))
        except RacklineError:
            continue
        found = evaluate_runs(job, space)
        best = int(np.argmin(found.step_s))
        if not np.isfinite(found.step_s[best]):
            continue
        name = f"{model} {row['gpu_context']} {label} {chips}"
        yield name, ours / float(found.step_s[best]), fits, space.layout(best).label()


# -------------------------------------------------------------------------------- the page


def error(predicted: float, measured: float) -> str:
    return f"{100 * (predicted / measured - 1):+.1f} %"


def spread(values: list[float]) -> str:
    sizes = np.abs(np.array(values))
    return f"{100 * np.median(sizes):.1f} % median, {100 * np.mean(sizes):.1f} % mean, {100 * np.max(sizes):.1f} % most"


def compared(
    title: str, head: str, found: list[tuple[str, float, float]], digits: int = 1, note: str = ""
) -> list[str]:
    """A table of measured and predicted values with its errors."""
    errors = [p / m - 1 for _, m, p in found]
    bias = 100 * (float(np.median([p / m for _, m, p in found])) - 1)
    lines = ["", f"### {title}", "", f"{note}Errors: {spread(errors)}, bias {bias:+.1f} %.".strip(), ""]
    lines += [f"| {head} | published | predicted | error |", "|---|---:|---:|---:|"]
    lines += [f"| {name} | {m:,.{digits}f} | {p:,.{digits}f} | {error(p, m)} |" for name, m, p in found]
    return lines


def markdown() -> str:
    """The whole block."""
    steps = list(megatron_steps())
    known = [(m, p, c) for _, _, m, p, c in steps if c is not None]
    ours, calculon = [p / m - 1 for m, p, _ in known], [c / m - 1 for m, _, c in known]
    lines = [
        "### Megatron on A100 (Korthikanti et al. 2022), seconds of a step",
        "",
        f"The eight runs that Calculon is validated on: {spread(ours)}; Calculon {spread(calculon)}.",
        "",
        "| model | recompute | published | predicted | error | Calculon |",
        "|---|---|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {name} | {again} | {m:.2f} | {p:.2f} | {error(p, m)} | {error(c, m) if c else '-'} |"
        for name, again, m, p, c in steps
    ]
    memory = list(megatron_memory())
    lines += [
        "",
        "### Memory of the same models",
        "",
        f"28 published values (weights and optimiser, activations, share under each recompute): "
        f"{spread([p / m - 1 for _, _, m, p, _ in memory])}; "
        f"Calculon {spread([c / m - 1 for _, _, m, _, c in memory])}.",
    ]
    memory_rows = [(w, m / 1e9, p / 1e9) for w, m, p in measured_memory()]
    lines += compared(
        "Memory of measured runs, GB", "run", memory_rows, note="Allocated bytes without driver and fragments. "
    )
    bubbles = zero_bubble()
    lines += [
        "",
        "### Bubble rates (Qi et al. 2023), percentage points",
        "",
        f"Median over all: {100 * np.median(np.abs(np.concatenate(list(bubbles.values())))):.2f} points.",
        "",
        "| schedule | rows | median difference | bias |",
        "|---|---:|---:|---:|",
    ]
    lines += [
        f"| {name} | {len(v)} | {100 * np.median(np.abs(v)):.2f} | {100 * np.median(v):+.2f} |"
        for name, v in bubbles.items()
    ]
    pipes = [(f"{n} partitions, {m} micro-batches", a, b) for n, m, a, b in gpipe()]
    lines += compared("Speed-up of torchgpipe (AmoebaNet-D on P40)", "run", pipes, 2)
    lines += compared(
        "Llama 3 405B, TFLOP/s per chip",
        "run",
        list(llama3()),
        note="Stack llama-3, its own layouts, modules recomputed; attention counted causal. ",
    )
    lines += compared(
        "DeepSeek-V3, its own run",
        "quantity",
        list(deepseek()),
        2,
        note="Stack hai-llm: 2,048 H800, pp 16, ep 64, ZeRO-1, DualPipe, norms and up-projections recomputed. ",
    )
    lines += compared("MegaScale 175B, seconds of a step", "run", list(megascale()), 2, note="Stack megatron-lm. ")
    lines += compared("torchtitan, tokens/s per chip", "run", list(torchtitan()), 0, note="Stack torch-fsdp-2. ")
    peaks = [(w, m / 1e9, p / 1e9) for w, m, p in torchtitan_memory()]
    lines += compared(
        "torchtitan, peak of reserved memory, GB",
        "run",
        peaks,
        note="Stack torch-fsdp-2. ",
    )
    vendor = list(vendor_layouts())
    near = [v for v in vendor if v[1] <= 1.05]
    lines += [
        "",
        "### Layouts of NVIDIA's recipes against our best",
        "",
        f"In {len(near)} of {len(vendor)} recipes the vendor's layout is within 5 % of our best (1F1B and interleaved, "
        f"the same batch, precision and chips), median ratio {np.median([v[1] for v in vendor]):.2f}; "
        f"{sum(not v[2] for v in vendor)} do not fit by our count: recipes recompute single modules, or offload.",
        "",
        "| recipe | vendor's time over ours | fits by our count | our best |",
        "|---|---:|---|---|",
    ]
    worst = sorted((v for v in vendor if v[1] > 1.05), key=lambda v: -v[1])[:12]
    lines += [f"| {name} | {ratio:.2f} | {'yes' if fits else 'no'} | {best} |" for name, ratio, fits, best in worst]
    return "\n".join(lines)

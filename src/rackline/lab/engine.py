"""What `measure` asks of an engine: single passes of a stated batch, and requests served in real time.

An engine is the lab's own, or one in a process of its own that answers lines of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, cast

import numpy as np

from rackline.errors import InputError
from rackline.files import shipped_toml
from rackline.lab.rates import available_cores
from rackline.lab.transformer import Shape
from rackline.passes import Batch
from rackline.passes.features import Array
from rackline.simulation import Requests

Dtype = Literal["fp32", "bf16"]
WorkKind = Literal["decode", "prefill", "mixed"]
WORK_KINDS: tuple[WorkKind, ...] = ("decode", "prefill", "mixed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one pass computes.

    Args:
        sequences: that decode one token each [sequences].
        context_len: tokens that each of them has in the cache [tokens].
        prompt_tokens: new tokens of one prompt [tokens].
    """

    sequences: int = 0
    context_len: int = 0
    prompt_tokens: int = 0

    @property
    def kind(self) -> WorkKind:
        """Which of the three it is."""
        if not self.prompt_tokens:
            return "decode"
        return "mixed" if self.sequences else "prefill"

    def batch(self) -> Batch:
        """This work as the batch of a pass table."""
        return batch_of([self])


def batch_of(works: list[Work]) -> Batch:
    """Several passes as one batch of shape (passes,)."""
    import numpy as np

    prompts = np.array([float(work.prompt_tokens) for work in works])
    return Batch(
        decode_sequences=np.array([float(work.sequences) for work in works]),
        context_len=np.array([float(work.context_len) for work in works]),
        prefill_sequences=np.minimum(prompts, 1.0),
        chunk_tokens=prompts,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Largest passes of an engine.

    Args:
        sequences: that decode together [sequences].
        context_len: of one of them, with what it adds [tokens].
        prompt_tokens: of one pass [tokens].
    """

    sequences: int
    context_len: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """How an engine serves.

    Args:
        admission: of prompts, as in a stack of the catalogue.
        max_num_seqs: sequences in progress [sequences].
        max_batched_tokens: tokens of a pass [tokens].
        prompt_tokens: of the requests of the proof [tokens].
        neighbour_passes: whether only sequences of neighbouring slots share a pass, as in a stack of the catalogue.
    """

    admission: Literal["chunked", "prefill_first"]
    max_num_seqs: int
    max_batched_tokens: int
    prompt_tokens: int
    neighbour_passes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTimes:
    """What clients saw, a value a request [s].

    Args:
        ttft_s: arrival to first token.
        e2e_s: arrival to last token.
    """

    ttft_s: Array
    e2e_s: Array


@dataclass(slots=True, kw_only=True)
class Engine(ABC):
    """An engine with a random-weight model, ready to run passes.

    Args:
        name: of the engine.
        shape: of its model.
        dtype: of weights and cache.
        limits: largest passes.
        scheduler: how it serves.
        context_block: cached tokens that attention reads at once [tokens].
        in_a_row: timings of one pass that follow each other: more than one where its contexts take long to compute
            [count].
        versions: name → version of what runs.
    """

    name: str
    shape: Shape
    dtype: Dtype
    limits: Limits
    scheduler: Scheduler
    context_block: int
    in_a_row: int = 1
    versions: dict[str, str] = field(default_factory=dict[str, str])

    @abstractmethod
    def prepare(self, works: Sequence[Work]) -> None:
        """Do what only first passes of these kinds do, such as compiling."""

    @abstractmethod
    def seconds(self, work: Work) -> float:
        """Time of one pass [s]."""

    @abstractmethod
    def serve(self, requests: Requests) -> ServedTimes:
        """Serve requests in real time; each arrives at its time."""

    def close(self) -> None:  # noqa: B027
        """End what was started, if anything was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureSetup:
    """How a machine is measured.

    Args:
        engine: whose passes are measured.
        dtype: of weights and cache; the engine's usual one if None.
        device: name of the JAX platform, "cpu" or "gpu".
        quick: a small model and few repeats, for a first look.
        agreed_within_s: longest time of the passes until their repeats agree, after which the result is marked; 300, or
            20 for a first look, if None [s].
        seed: random seed of weights and requests.
        python: interpreter of the environment that has the engine; found by itself if None.
        cpu_clock: count the processor's time of one core, not the wall's, where other programs keep the machine busy.
        progress: is told (what is done, parts finished, parts in all).
    """

    engine: str = "jax"
    dtype: Dtype | None = None
    device: str = "cpu"
    quick: bool = False
    agreed_within_s: float | None = None
    seed: int = 0
    python: str | None = None
    cpu_clock: bool = False
    progress: Callable[[str, int, int], None] = field(default=lambda text, finished, total: None)


_HERE = Path(__file__).parent
_SHAPE = Shape(
    num_layers=10, d_model=768, num_q_heads=12, num_kv_heads=4, head_dim=64, d_ff=2048, vocab_size=16384
)  # 88 million parameters
LIMITS = Limits(sequences=16, context_len=1024, prompt_tokens=256)
_QUICK_SHAPE = Shape(num_layers=2, d_model=128, num_q_heads=4, num_kv_heads=2, head_dim=32, d_ff=256, vocab_size=512)
QUICK_LIMITS = Limits(sequences=2, context_len=128, prompt_tokens=64)
_PROBE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """An engine of `engines.toml`.

    Args:
        module: whose presence tells that the engine is there.
        also: other modules that its script needs.
        script: that runs it; empty where this version has none.
        install: how to get it.
        admission: how it admits prompts.
        context_block: cached tokens that its attention reads at once [tokens].
        in_a_row: timings of one pass that follow each other [count].
        neighbour_passes: whether only sequences of neighbouring slots share a pass.
    """

    module: str
    also: tuple[str, ...]
    script: str
    install: str
    admission: Literal["chunked", "prefill_first"]
    context_block: int
    in_a_row: int
    neighbour_passes: bool = False


def installable() -> dict[str, Installed]:
    """Engines that run in a process of their own, by name."""
    data = shipped_toml("rackline.lab", "engines.toml")
    known: dict[str, dict[str, Any]] = {name: {**one, "also": tuple(one["also"])} for name, one in data.items()}
    return {name: Installed(**one) for name, one in known.items()}


@dataclass(slots=True, kw_only=True)
class ProcessEngine(Engine):
    """The engine behind lines of JSON."""

    _process: subprocess.Popen[str] | None = None
    _said: IO[str] | None = None

    def start(self, python: str, script: str, config: dict[str, Any]) -> None:
        """Start the process and wait until the model is there.

        Args:
            python: interpreter that has the engine.
            script: in the folder of workers.
            config: that the script reads.
        """
        self._said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        command = [python, "-u", str(_HERE / "workers" / script), json.dumps(config)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True, encoding="utf-8"
        )
        self.versions = cast("dict[str, str]", self._answer()["versions"])

    def prepare(self, works: Sequence[Work]) -> None:
        """Run one pass of each kind, whose times do not count; of those timed in a row the first few are as good."""
        for work in works if self.in_a_row == 1 else ():
            self.seconds(work)

    def seconds(self, work: Work) -> float:
        """Time of one pass [s]."""
        return float(self._ask(asdict(work))["seconds"])

    def serve(self, requests: Requests) -> ServedTimes:
        """Serve requests in real time."""
        columns = {name: getattr(requests, name).tolist() for name in ("arrival_s", "input_len", "output_len")}
        found = self._ask({"serve": True, **columns})
        return ServedTimes(ttft_s=np.array(found["ttft_s"]), e2e_s=np.array(found["e2e_s"]))

    def close(self) -> None:
        """End the process at once."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
        if self._said is not None:
            self._said.close()

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        if self._process is None or self._process.stdin is None:
            raise InputError(what="engine", given=f"{self.name}, not started", allowed="a started one")
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # what it said tells why
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process is not None and self._process.stdout else ""
        found: dict[str, Any] = json.loads(line) if line else {"error": "it ended"}
        if "error" in found:
            raise InputError(what=f"engine {self.name}", given=found["error"], allowed=self._last_words())
        return found

    def _last_words(self) -> str:
        if self._said is None:
            return "an engine that runs"
        self._said.seek(0)
        lines = [line.strip() for line in self._said.read()[-4000:].splitlines() if line.strip()]
        return f"an engine that runs; it said: {lines[-1][:300] if lines else 'nothing'}"


def process_engine(setup: MeasureSetup) -> ProcessEngine:
    """Start an engine that is installed beside rackline, with a random-weight model.

    Raises:
        InputError: it is not installed, or did not start.
    """
    how = installable()[setup.engine]
    python = setup.python or sys.executable
    _check(setup.engine, how, python)
    limits = QUICK_LIMITS if setup.quick else LIMITS
    dtype: Dtype = setup.dtype or "fp32"
    scheduler = Scheduler(
        admission=how.admission,
        max_num_seqs=limits.sequences // 2,
        max_batched_tokens=limits.prompt_tokens + limits.sequences,
        prompt_tokens=limits.prompt_tokens // 2,
        neighbour_passes=how.neighbour_passes,
    )
    engine = ProcessEngine(
        name=setup.engine,
        dtype=dtype,
        shape=_QUICK_SHAPE if setup.quick else _SHAPE,
        limits=limits,
        scheduler=scheduler,
        context_block=how.context_block,
        in_a_row=how.in_a_row,
    )
    config = {
        "shape": asdict(engine.shape),
        "limits": asdict(limits),
        "max_num_seqs": scheduler.max_num_seqs,
        "max_batched_tokens": scheduler.max_batched_tokens,
        "dtype": dtype,
        "seed": setup.seed,
        "device": setup.device,
        "cores": available_cores(),
        "cpu_clock": setup.cpu_clock,
    }
    try:
        engine.start(python, how.script, config)
    except BaseException:
        engine.close()
        raise
    return engine


def _check(name: str, how: Installed, python: str) -> None:
    """Whether an environment has an engine."""
    if not how.script:
        raise InputError(what="engine", given=name, allowed=how.install)
    probe = (
        "import importlib.util as u, sys; "
        f"sys.exit(any(u.find_spec(one) is None for one in {(how.module, *how.also)!r}))"
    )
    try:
        found = subprocess.run([python, "-c", probe], capture_output=True, timeout=_PROBE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(what="--engine-python", given=python, allowed=f"a Python that runs ({error})") from error
    if found.returncode:
        raise InputError(
            what="engine",
            given=f"{name}, which {python} does not have",
            allowed=f"an environment with it ({how.install}), whose Python is named by --engine-python",
        )

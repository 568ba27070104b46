"""The loop of `replica`, in C, and the pass tables that it reads: some fifty times as fast.

`hatch_build.py` compiles `replica.c` when the package is built. The library knows what most servers do: any number of
ranks, micro-batches, pools of prompts and of outputs, drafts, windows of attention, all policies in the order of
arrival or of priority. What it does not know takes `replica`, and so does everything where there is no library.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import sys
from ctypes import POINTER, c_char_p, c_double, c_int, c_int32, c_int64, c_uint8, c_void_p
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rackline.passes import TimeTable, features as f
from rackline.passes.features import Array
from rackline.passes.javascript import merged
from rackline.passes.routing import ExpertLoad
from rackline.simulation.clock import TableClock
from rackline.simulation.pass_call import FAR, Law, Table, is_extensive, law_of

_SOURCE = Path(__file__).with_name("replica.c")
_NAME = "libreplica.dll" if sys.platform == "win32" else "libreplica.so"  # no name of a module
ALIGNMENT = (
    "some_passes", "all_passes", "idle_releases", "counts_always", "holds_chunks", "every", "decodes_after",
)  # fmt: skip
_PLACES = (
    f.TOKENS, f.LOGIT_ROWS, f.GROUP_TOKENS, f.DECODE_SEQUENCES, f.DECODE_TOKENS, f.HAS_DECODE, f.HAS_PREFILL,
    f.CHUNK_TOKENS, f.PREFILL_TOKENS, f.CHUNK_PREFIX_TOKENS, f.kv_tokens("all"), f.ONE, f.EXPERT_TOKENS,
    f.EXPERTS_TOUCHED,
)  # fmt: skip
_KINDS: dict[str, Any] = {
    "int": c_int64, "float": c_double, "ints": POINTER(c_int64), "floats": POINTER(c_double),
    "shorts": POINTER(c_int32), "flags": POINTER(c_uint8), "at": c_void_p,
}  # fmt: skip


def _fields(text: str) -> list[tuple[str, Any]]:
    """Fields of a structure from "type: names; ..."."""
    parts = [part.partition(":") for part in text.split(";")]
    return [(name, _KINDS[kind.strip()]) for kind, _, names in parts for name in names.split()]


class LogFields(ctypes.Structure):
    _fields_ = _fields(
        "ints: input_len output_len computed priority; floats: engine_s admitted_s first_s finish_s last_s;"
        "ints: generated preempted; flags: ready; ints: num_ready base end_at held done;"
        "shorts: place run_before run_after fill_before fill_after; flags: fills decodes"
    )


class _Kind(ctypes.Structure):
    _fields_ = _fields("float: a b start shift share; int: kv_at pairs_at longest_at attended_at causal first end")


class _Table(ctypes.Structure):
    _fields_ = _fields(
        "int: width num_kinds num_streams num_bends last_load; float: host_s factor skew_s imbalance per_octave;"
        "ints: places; at: kinds; floats: weights reaches shares; ints: starts columns; floats: values;"
        "ints: streams choices options; floats: ramps loads touched bends x"
    )


class _Clock(ctypes.Structure):
    _fields_ = _fields(
        "at: table draft; int: drafts verified bends_known;"
        "float: tokens_per_step straight_from floor_s held_tokens host_s_per_sequence prefill_slowdown;"
        "int: has_host graphs_need_all; floats: hosts"
    )


class Head(ctypes.Structure):
    """The fields of a replica that Python reads or writes."""

    _fields_ = _fields(
        "at: clock log; int: num_ranks group_size block_size num_blocks fixed_blocks grows max_num_seqs"
        " max_batched_tokens reserve passes_as chunked aligned "
        + " ".join(ALIGNMENT)
        + " hands_over tells by_priority for_urgent; float: interval_s now next_start;"
        "int: load queued held_blocks finished num_done used_blocks steps passes num_samples;"
        "float: busy_s sequence_s used_s prompt_pass_s prompt_rank_s; ints: gaps; floats: samples; ints: done;"
        "floats: done_s"
    )


class RunFields(ctypes.Structure):
    """The fields of a run that Python writes."""

    _fields_ = _fields(
        "at: log replicas; int: num_front num_replicas least_loaded num_requests closed;"
        "floats: times_s at_s arrival_s; ints: first_follower followers; float: latency_s tokens_per_s"
    )


class Loaded(NamedTuple):
    """The compiled loop, or None and the reason."""

    library: Any
    missing: str = ""


def library_path() -> Path | None:
    """Find the library in the package or, of an editable install, among the packages that are installed."""
    folders = (os.fspath(_SOURCE.parents[2]), *sys.path)
    paths = (os.path.join(folder, "rackline", "simulation", _NAME) for folder in folders)
    return next((Path(path) for path in paths if os.path.isfile(path)), None)


@functools.cache
def loaded() -> Loaded:
    """Load the compiled loop, unless it was built from another source than the one beside this file."""
    path = library_path()
    if path is None:
        return Loaded(None, "this installation has no compiled loop")
    try:
        library: Any = ctypes.CDLL(os.fspath(path))
    except OSError as error:  # of another processor, or in a folder without the right to run programs
        return Loaded(None, f"the compiled loop cannot be loaded ({error})")
    library.source_hash.restype = c_char_p
    if library.source_hash() != hashlib.sha256(_SOURCE.read_bytes()).hexdigest().encode():
        return Loaded(None, f"the compiled loop is not that of {_SOURCE.name}, which has changed since")
    sizes = (c_int64 * 6)()
    library.sizes(sizes)
    library.replica_bytes, library.run_bytes = sizes[4], sizes[5]
    library.advance.argtypes = [c_void_p, c_double, c_int64]
    library.advance.restype = c_int
    library.submit_all.argtypes = [c_void_p, c_int64, POINTER(c_int64), POINTER(c_double)]
    library.serve.argtypes = [
        POINTER(c_void_p), c_int64, c_int64, c_int64, POINTER(c_int64), POINTER(c_double), c_int, POINTER(c_int64),
        POINTER(c_int64), c_double,
    ]  # fmt: skip
    library.serve.restype = c_int
    library.look.argtypes = [POINTER(c_void_p), c_int64, c_double, POINTER(c_int64)]
    library.look.restype = c_int
    library.put.argtypes = [c_void_p, c_int64, c_double]
    library.put.restype = None
    library.begin_run.argtypes = [c_void_p, c_int64, POINTER(c_int64)]
    library.go.argtypes = [c_void_p, c_int64]
    for call in (library.begin, library.release, library.release_run):
        call.argtypes = [c_void_p]
        call.restype = None
    return Loaded(library)


def library() -> Any:
    """The compiled loop; None where there is none."""
    return loaded().library


def slow_because() -> str:
    """Say that simulations run in Python, and why; empty where the loop is compiled."""
    reason = loaded().missing
    if not reason:
        return ""
    return (
        f"Simulations run in Python and take about six times as long: {reason}. "
        "To compile it, reinstall rackline where there is a C compiler or PyPI can be reached."
    )


class Arrays:
    """Arrays that a structure of C points into, kept as long as it."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def floats(self, values: Any) -> Any:
        """Values as C reads them."""
        return self.of(np.ascontiguousarray(values, dtype=np.float64))

    def ints(self, values: Any) -> Any:
        """Values as C reads them."""
        return self.of(np.ascontiguousarray(values, dtype=np.int64))

    def of(self, values: Array) -> Any:
        """An array that both read and write."""
        kinds = {"f8": "floats", "i8": "ints", "i4": "shorts", "u1": "flags"}  # letters differ between systems
        self.kept.append(values)
        return ctypes.cast(values.ctypes.data, _KINDS[kinds[values.dtype.str[1:]]])

    def at(self, structure: Any) -> Any:
        """The address of a structure."""
        self.kept.append(structure)
        return ctypes.addressof(structure)


def compiled_clock(clock: object, most_sequences: int) -> NativeClock | None:
    """A clock as the loop reads it; None where it cannot."""
    if not isinstance(clock, TableClock) or clock.straight_from >= FAR or library() is None:
        return None
    tables = [clock.table] if clock.draft is None else [clock.table, clock.draft]
    for table, of in zip(tables, (clock.engine.table, clock.engine.draft), strict=False):
        used = table.places.adapters_touched < len(table.order)
        if used or not (of is None or of.experts is None or isinstance(of.experts, ExpertLoad)):
            return None
    laws = [[law_of(kind) for kind in table.kinds] for table in tables]
    if any(law is None for some in laws for law in some):
        return None
    return NativeClock(clock, [[law for law in some if law is not None] for some in laws], most_sequences)


class NativeClock:
    """The pass tables of a `TableClock` as arrays."""

    def __init__(self, clock: TableClock, laws: list[list[Law]], most_sequences: int) -> None:
        self.arrays, stack = Arrays(), clock.engine.stack
        table = self._table(clock, clock.table, clock.engine.table, laws[0], clock.two_batch_overlap)
        draft = None
        if clock.draft is not None:
            draft = self._table(clock, clock.draft, clock.engine.draft, laws[1], two_batch_overlap=False)
        sequences = np.arange(most_sequences + 1.0)
        hosts = clock.engine.host_s(sequences * clock.verified, sequences, prompts=False)
        self.structure = _Clock(
            table=table,
            draft=draft,
            drafts=clock.drafts,
            verified=clock.verified,
            bends_known=not any(row.per_longest for one in (clock.table, clock.draft) if one for row in one.kv_rows),
            tokens_per_step=clock.tokens_per_step,
            straight_from=clock.straight_from,
            floor_s=clock.floor_s,
            held_tokens=stack.graphs.held_tokens,
            graphs_need_all=stack.graphs.need_all_ranks,
            host_s_per_sequence=stack.host.s_per_sequence,
            prefill_slowdown=stack.graphs.prefill_slowdown,
            has_host=bool(stack.graphs.captured_tokens or stack.host.s_per_sequence),
            hosts=self.arrays.floats(np.broadcast_to(np.asarray(hosts, dtype=float), sequences.shape)),
        )

    def _table(self, clock: TableClock, table: Table, of: Any, laws: list[Law], two_batch_overlap: bool) -> int:
        arrays = self.arrays
        times: TimeTable = of.time_table("overlap" if two_batch_overlap else None)
        columns = {name: index for index, name in enumerate(table.order)}
        nowhere = len(columns)  # what the table does not use is written there
        for name in (f.ONE, f.EXPERT_TOKENS, f.EXPERTS_TOUCHED):
            columns.setdefault(name, len(columns) + 1)
        width = nowhere + 4
        rows = _Rows(times, columns)
        kinds = (_Kind * max(len(laws), 1))()
        parts: list[tuple[float, float]] = []
        for place, (law, (kind, *at)) in enumerate(zip(laws, table.places.kinds, strict=True)):
            first = len(parts)
            parts += law.parts
            kinds[place] = _Kind(kind.a, kind.b, kind.start, law.shift, law.share, *at, kind.causal, first, len(parts))
        shares = np.ones(width)
        if two_batch_overlap:
            shares[: len(table.order)] = [0.5 if is_extensive(name) else 1.0 for name in table.order]
        load = of.experts
        bends = [[*row[:4], row.per_kv] for row in table.kv_rows if row.per_kv]
        structure = _Table(
            width=width,
            num_kinds=len(laws),
            num_streams=len(times.streams),
            num_bends=len(bends),
            last_load=-1 if load is None else len(load.log_tokens) - 2,
            host_s=times.host_s,
            factor=2.0 if two_batch_overlap else 1.0,
            skew_s=table.skew_s,
            imbalance=table.stage_imbalance,
            per_octave=0.0 if load is None else load.points_per_octave,
            places=arrays.ints([columns.get(name, nowhere) for name in _PLACES]),
            kinds=arrays.at(kinds),
            weights=arrays.floats([weight for weight, _ in parts] or [0.0]),
            reaches=arrays.floats([reach for _, reach in parts] or [0.0]),
            shares=arrays.floats(shares),
            starts=arrays.ints(rows.starts),
            columns=arrays.ints(rows.columns),
            values=arrays.floats(rows.values),
            streams=arrays.ints(rows.streams),
            choices=arrays.ints(rows.choices),
            options=arrays.ints(rows.options),
            ramps=arrays.floats(rows.ramps),
            loads=arrays.floats([0.0] if load is None else load.tokens_per_token),
            touched=arrays.floats([0.0] if load is None else load.touched),
            bends=arrays.floats(bends or [[0.0] * 5]),
            x=arrays.floats(np.zeros(width)),
        )
        return arrays.at(structure)


class _Rows:
    """Coefficients of a pass: sparse rows, and which of them make up the streams and their alternatives."""

    def __init__(self, times: TimeTable, columns: dict[str, int]) -> None:
        self.at = [columns.get(name, -1) for name in times.feature_names]
        self.starts, self.columns, self.values = [0], list[int](), list[float]()
        self.streams, self.choices, self.options, self.ramps = list[int](), list[int](), list[int](), list[float]()
        for stream in times.streams:
            line, gaps = merged(stream.linear[0, 0], stream.difference[0])
            first_choice = len(self.choices) // 2
            for choice in stream.choices:
                first = len(self.ramps)
                for index in range(choice.linear.shape[1]):
                    own, bent = merged(choice.linear[0, index], choice.difference[0, index : index + 1])
                    gap = bent[0] if len(bent) else np.zeros_like(own)
                    self.options += [self.row(own), self.row(gap), self.row(choice.overhead[0, index])]
                    self.ramps.append(float(choice.ramp[0, index, 0]))
                self.choices += [first, len(self.ramps)]
            linear = self.row(line)
            first_gap = len(self.starts) - 1
            for gap in gaps:
                self.row(gap)
            self.streams += [linear, first_gap, len(self.starts) - 1, first_choice, len(self.choices) // 2]
        self.choices, self.options, self.ramps = self.choices or [0], self.options or [0], self.ramps or [0.0]

    def row(self, coefficients: Array) -> int:
        """Add a row; returns its number."""
        for place, value in zip(self.at, coefficients.tolist(), strict=True):
            if value and place >= 0:
                self.columns.append(place)
                self.values.append(value)
        self.starts.append(len(self.values))
        return len(self.starts) - 2

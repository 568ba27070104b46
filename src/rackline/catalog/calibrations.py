"""Records of calibrations: the share of each chip's peaks that a software stack reaches; the order of its versions."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rackline.catalog.base import Count, CountOrZero, Evidence, Fraction, NonNegative, Record, SourcedRecord, Text
from rackline.errors import InputError

_RELEASE = re.compile(r"v?(\d+(?:\.\d+)*)(?:[.\-]?(post|rc|dev|a|b)(\d*))?")
_PARTS = 4
_BEFORE = {"rc": -1000, "b": -2000, "a": -3000, "dev": -4000, "post": 0}


def version_key(version: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key of a version: numbers by value, a release candidate before its release.

    >>> sorted(["1.3.0rc20", "1.3.0", "1.3.0rc3", "0.24.0"], key=version_key)
    ['0.24.0', '1.3.0rc3', '1.3.0rc20', '1.3.0']
    """
    parts = re.findall(r"\d+|[a-z]+", version.lower())
    key = [(1, int(part), "") if part.isdigit() else (2 if part == "post" else -1, 0, part) for part in parts]
    return (*key, (0, 0, ""))


def release_numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version, of equal length for all; () for text that begins with no number.

    >>> release_numbers("1.3.0rc15"), release_numbers("0.5.6.post2"), release_numbers("nightly")
    ((1, 3, 0, 0, -985), (0, 5, 6, 0, 2), ())
    """
    found = _RELEASE.match(version.strip().lower())
    if found is None:
        return ()
    numbers = [int(part) for part in found.group(1).split(".")][:_PARTS]
    after = _BEFORE[found.group(2)] + int(found.group(3) or 0) if found.group(2) else 0
    return (*numbers, *[0] * (_PARTS - len(numbers)), after)


def release(version: str) -> str:
    """The release that a version leads to or mends, its first three numbers; other text as it is.

    >>> release("1.2.0rc6.post3"), release("0.5.8.post1"), release("nightly-dev-20260216")
    ('1.2.0', '0.5.8', 'nightly-dev-20260216')
    """
    numbers = release_numbers(version)
    return ".".join(str(number) for number in numbers[:3]) if numbers else version


def apart(version: str, oldest: str, newest: str) -> tuple[int, ...]:
    """How far a version is from a range of versions: the later of it and the nearer end less the earlier, number by
    number, so that tuples compare as distances; all 0 inside.

    Raises:
        InputError: one of them begins with no number.

    >>> apart("0.5.8", "0.5.6.post2", "0.5.10"), apart("1.2.0", "1.3.0rc10", "1.3.0rc20")
    ((0, 0, 0, 0, 0), (0, 1, 0, 0, -990))
    """
    for text in (version, oldest, newest):
        if not release_numbers(text):
            raise InputError(what="version", given=text, allowed="a version such as 0.5.9 or 1.3.0rc15")
    given, low, high = (release_numbers(text) for text in (version, oldest, newest))
    if given < low:
        return tuple(later - earlier for later, earlier in zip(low, given, strict=True))
    return tuple(later - earlier for later, earlier in zip(max(given, high), high, strict=True))


KernelClass = Literal[
    "gemm",
    "latent_product",
    "attention_decode",
    "attention_prefill",
    "mla_decode",
    "mla_prefill",
    "sparse_decode",
    "sparse_prefill",
    "compressed_decode",
    "compressed_prefill",
    "compressed_sparse_decode",
    "compressed_sparse_prefill",
    "index_decode",
    "index_prefill",
    "compressed_index_decode",
    "compressed_index_prefill",
    "block_index_decode",
    "block_index_prefill",
    "block_sparse_decode",
    "block_sparse_prefill",
    "gated_delta_decode",
    "gated_delta_prefill",
    "kda_decode",
    "kda_prefill",
    "encoder_prefill",
    "convolution_decode",
    "convolution_prefill",
    "hyper_connections",
    "quantise",
    "moe",
    "elementwise",
    "embedding",
]
CollectiveClass = Literal[
    "collective",
    "all_reduce_ring",
    "all_reduce_one_shot",
    "all_reduce_two_shot",
    "all_reduce_tree",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "all_reduce_ring_staged",
    "all_gather_staged",
    "reduce_scatter_staged",
    "all_to_all_staged",
    "dispatch_low_latency",
    "combine_low_latency",
    "dispatch_high_throughput",
    "combine_high_throughput",
    "dispatch_high_throughput_fp4",
]
Efficiency = Annotated[float, Field(gt=0.0, le=1.0)]


class FitRecord(Record):
    """What every entry says of itself.

    Args:
        chip: Chip name, generation, or "*" for all chips.
        evidence: "measured" for a fit of this chip's and stack's own table, "derived" for a parent.
        rows: Measured rows behind the fit [count].
        median_error, p90_error: On the shapes that the fit did not see, absolute and relative [fraction].
        family_median_error, family_p90_error: On whole families of shapes that the fit did not see [fraction].
        ideal_median_error: The same for the peaks alone [fraction].
        stack_version: Version that was measured; the newest of several.
        oldest_version: Oldest version whose times these numbers describe as well; stack_version if missing.
        note: What a reader must know.
    """

    chip: Text = "*"
    evidence: Annotated[Evidence, Field(strict=False)] = Evidence.ASSUMED
    rows: CountOrZero = 0
    median_error: NonNegative | None = None
    p90_error: NonNegative | None = None
    family_median_error: NonNegative | None = None
    family_p90_error: NonNegative | None = None
    ideal_median_error: NonNegative | None = None
    stack_version: Text | None = None
    oldest_version: Text | None = None
    note: Text | None = None


class OperationRecord(FitRecord):
    """One kernel class and data type.

    seconds = overhead + max(a, b) + exposed min(a, b) + depth_s depth + tile_s tiles / cores,
    a = FLOP / (eta_compute peak), b = bytes / (eta_memory peak).

    Args:
        operation_class: Which rows it is for; ``class`` in the file.
        dtype: Data types of the operands (see docs/precision.md), "*" for the fallback of the class.
        overhead_s: Fixed time of one launch [s].
        eta_compute, eta_memory: Reached share of the peak rate; 1 where a kernel computes next to nothing [fraction].
        exposed: Share of the shorter time that does not hide behind the longer [fraction].
        depth_s: Time for each element that a kernel goes through in order, however many cores it has: of the reduction
            of a product, of the cached or new tokens of one sequence in attention [s].
        tile_s: Time for each tile of work on one core: a sequence and KV head in decode, 128 queries of a head in
            prefill, 128 rows and columns of a product of an expert [s].
        cached: Share of the last-level cache that a repeated call finds filled; passes leave it out [fraction].
        quantise_s: Fixed time of a separate quantisation of the activations; serving stacks fuse it [s].
        permute: Passes of the routed tokens through memory before and after the experts [count].
    """

    operation_class: Annotated[KernelClass, Field(alias="class")]
    dtype: Text
    overhead_s: NonNegative
    eta_compute: Efficiency = 1.0
    eta_memory: Efficiency
    exposed: Fraction = 0.0
    depth_s: NonNegative = 0.0
    tile_s: NonNegative = 0.0
    cached: Fraction = 0.0
    quantise_s: NonNegative = 0.0
    permute: NonNegative = 0.0


class CollectiveRecord(FitRecord):
    """One collective on groups of one size.

    seconds = overhead + alpha steps + bytes / (eta_link rate) + ramp sqrt(overhead bytes / (eta_link rate))

    Args:
        collective_class: Which rows it is for; ``class`` in the file. Those that end in "_staged" go through the memory
            of the host, between chips without access to each other's.
        group_size: Ranks; 0 for any [count].
        overhead_s: Fixed time of one call [s].
        alpha_s: Time of one message step, where the algorithm's steps are counted [s].
        eta_link: Reached share of the link bandwidth; above 1 where switches reduce in the network.
        ramp: Slowness of mid-size messages.
    """

    collective_class: Annotated[CollectiveClass, Field(alias="class")]
    group_size: CountOrZero = 0
    overhead_s: NonNegative
    alpha_s: NonNegative = 0.0
    eta_link: Annotated[float, Field(gt=0.0, le=2.0)]
    ramp: NonNegative = 0.0


class CalibrationRecord(SourcedRecord):
    """How a software stack on some chips falls short of the peaks.

    Args:
        stack: Serving or training software it stands for; "any" when it is generic.
        serving: Serving stack around these kernels, by name or as a file beside this one, where it does not have the
            calibration's own name.
        description: What it is and when to use it.
        evidence: The weakest kind of evidence behind it.
        step_policy: How the rows of a pass combine: serial, overlap or blackboard.
        host_s_per_step: Host time that each step adds [s].
        separate_quantise: Data types of products whose activations the stack quantises in a kernel of its own.
        falls_back_to: Calibration that has what is missing here, where it is none of the measured stacks.
        context_block: Cached tokens of a sequence that attention reads are rounded up to a multiple of this [tokens].
        operation: One entry per chip, class and data type.
        collective: One entry per chip, class and group size.
        older_operation, older_collective: The same of older versions of the stack that take another time.
    """

    stack: Text
    serving: Text | None = None
    description: Text
    evidence: Annotated[Evidence, Field(strict=False)]
    step_policy: Literal["serial", "overlap", "blackboard"]
    host_s_per_step: NonNegative = 0.0
    separate_quantise: tuple[Text, ...] = ()
    falls_back_to: Text | None = None
    context_block: Count = 1
    operation: tuple[OperationRecord, ...] = ()
    collective: tuple[CollectiveRecord, ...] = ()
    older_operation: tuple[OperationRecord, ...] = ()
    older_collective: tuple[CollectiveRecord, ...] = ()

    @model_validator(mode="after")
    def _entries_are_unique(self) -> Self:
        seen: set[tuple[str, str, str, str]] = set()
        keys = [(e.chip, e.operation_class, e.dtype, "") for e in self.operation]
        keys += [(e.chip, e.collective_class, f"group_size {e.group_size}", "") for e in self.collective]
        keys += [(e.chip, e.operation_class, e.dtype, e.stack_version or "") for e in self.older_operation]
        keys += [
            (e.chip, e.collective_class, f"group_size {e.group_size}", e.stack_version or "")
            for e in self.older_collective
        ]
        for key in keys:
            if key in seen:
                raise ValueError(f"two entries for chip {', class '.join(key[:2])}, {' '.join(key[2:]).strip()}")
            seen.add(key)
        for entry in (*self.older_operation, *self.older_collective):
            if not release_numbers(entry.stack_version or ""):
                raise ValueError(f"an older entry for chip {entry.chip} needs a stack_version such as 0.5.9")
        return self

"""The workload of a server, its mixture of lengths, and how its scheduler combines prefill and decode.

A step of speculative decoding drafts k tokens per sequence, one after another, with a small head (a multi-token
prediction layer, or a draft model of about one layer such as EAGLE), then verifies k + 1 tokens per sequence in one
pass. On average a of the drafts are accepted, and each step yields a + 1 tokens.

    tpot = (t_verify(k + 1) + k t_draft) / tokens_per_step
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from rackline.catalog.records import Admission
from rackline.errors import InputError, nearest_names, require
from rackline.passes.features import Array, FloatLike, as_array
from rackline.serving.alignment import Alignment
from rackline.serving.prompt_queue import PromptSizes
from rackline.units import parse_whole, several

_CLASSES = 5  # of prompts in an estimate


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mixture:
    """Lengths of requests with their shares.

    Args:
        shares: of the requests, they add up to 1, (lengths,).
        input_len, output_len: of each, whole tokens, (lengths,) [tokens].
        name: of the file that they are from.
    """

    json_keys: ClassVar = ("name", "num_lengths", "input_cv2", "longest_context")

    shares: Array
    input_len: Array
    output_len: Array
    name: str = ""

    @classmethod
    def of(cls, shares: FloatLike, input_len: Array, output_len: Array, name: str = "") -> Mixture:
        """Lengths with weights that need not add up to 1; equal lengths become one.

        Raises:
            InputError: no lengths, weights that are not positive, prompts below 1 or answers below 1 token.
        """
        inputs, outputs = np.rint(as_array(input_len)), np.rint(as_array(output_len))
        weights = np.broadcast_to(as_array(shares), inputs.shape)
        require(inputs.size, what="mix", given="nothing", allowed="at least one length", where=name)
        for what, values, least in (("share", weights, 0.0), ("input_len", inputs, 1.0), ("output_len", outputs, 1.0)):
            bad = values <= 0.0 if least == 0.0 else values < least
            if np.any(bad | ~np.isfinite(values)):
                worst = float(values[int(np.argmax(bad | ~np.isfinite(values)))])
                allowed = "more than 0" if least == 0.0 else f"at least {least:g} token"
                raise InputError(what=what, given=worst, allowed=allowed, where=name)
        outputs = np.maximum(outputs, 2.0)  # the first token is the prompt's; an answer decodes at least once
        both, place = np.unique(np.stack([inputs, outputs], axis=1), axis=0, return_inverse=True)
        total = np.bincount(place.ravel(), weights=weights)
        return cls(shares=total / total.sum(), input_len=both[:, 0], output_len=both[:, 1], name=name)

    @property
    def num_lengths(self) -> int:
        """Different lengths [count]."""
        return len(self.shares)

    def mean(self, values: Array) -> float:
        """Over requests."""
        return float(self.shares @ values)

    def between(self, from_len: float, until_len: float) -> Mixture | None:
        """The requests with prompts longer than the first and up to the second; None where there are none."""
        inside = (self.input_len > from_len) & (self.input_len <= until_len)
        if not np.any(inside):
            return None
        return Mixture.of(self.shares[inside], self.input_len[inside], self.output_len[inside], self.name)

    def share_between(self, from_len: float, until_len: float) -> float:
        """Share of all requests whose length lies between two lengths [1]."""
        return float(self.shares[(self.input_len > from_len) & (self.input_len <= until_len)].sum())

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        """(input_len, output_len) of requests at random, (count,) each [tokens]."""
        return self._spread(rng, count, self.shares)

    def draw_decoding(self, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        """Draw lengths of requests that are decoding at some time: long answers more often."""
        return self._spread(rng, count, self.shares * (self.output_len - 1.0))

    def _spread(self, rng: np.random.Generator, count: int, weights: Array) -> tuple[Array, Array]:
        """Each length as often as its weight says, to one request, in random order."""
        ends: Array = as_array(np.cumsum(weights))
        quantiles = (rng.permutation(count) + rng.random(count)) / max(count, 1)
        place = np.searchsorted(ends, quantiles * float(ends[-1])).clip(0, len(ends) - 1)
        return self.input_len[place].astype(np.int64), self.output_len[place].astype(np.int64)

    def prompt_sizes(self, new_share: float = 1.0) -> PromptSizes:
        """Classes of prompts with an equal share of the tokens each, and their second moment.

        Args:
            new_share: of the prompts that is not cached.
        """
        order = np.argsort(self.input_len)
        tokens: Array = as_array(self.shares * self.input_len)[order]
        middle = np.cumsum(tokens) - 0.5 * tokens
        place = np.clip(middle / tokens.sum() * _CLASSES, 0.0, _CLASSES - 1.0).astype(np.int64)
        weights = np.bincount(place, weights=self.shares[order], minlength=_CLASSES)
        sums = np.bincount(place, weights=tokens, minlength=_CLASSES)
        some = weights > 0.0
        return PromptSizes(
            shares=weights[some],
            tokens=np.maximum(new_share * sums[some] / weights[some], 1.0),
            squared=1.0 + self.input_cv2,
        )

    @property
    def input_cv2(self) -> float:
        """Variance of prompts over the square of their mean."""
        return self.mean(self.input_len**2) / self.mean(self.input_len) ** 2 - 1.0

    @property
    def mean_context(self) -> float:
        """Context of a decoding sequence, averaged over those in flight [tokens].

        Equation:
            E[o (i + o / 2)] / E[o], i prompt, o output tokens
        """
        return self.mean(self.output_len * (self.input_len + self.output_len / 2.0)) / self.mean(self.output_len)

    @property
    def final_context(self) -> float:
        """What a decoding sequence will hold at its end, averaged over those in flight [tokens]."""
        return self.mean(self.output_len * (self.input_len + self.output_len)) / self.mean(self.output_len)

    def slots(self, room: float) -> float:
        """Sequences for which there is nearly always room: their contexts add up to n m + 2 s sqrt(n) or less.

        Args:
            room: sequences of the mean final context that memory holds [sequences].
        """
        weights = self.shares * self.output_len / self.mean(self.output_len)
        final, mean = self.input_len + self.output_len, self.final_context
        spread = math.sqrt(float(weights @ (final - mean) ** 2)) / mean
        return (math.sqrt(spread**2 + max(room, 0.0)) - spread) ** 2

    @property
    def longest_context(self) -> float:
        """Context at the end of the longest request [tokens]."""
        return float(np.max(self.input_len + self.output_len))


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests of equal mean lengths, or of several lengths by their moments.

    Args:
        input_len: prompt tokens [tokens].
        output_len: generated tokens, at least 2 [tokens].
        cache_hit: share of the prompt whose KV is already cached, 0 to below 1 [1].
        equal_lengths: whether all requests have exactly these lengths, as in some benchmarks; else they vary.
        output_spread: standard deviation of the output lengths over their mean [1].
        input_spread: the same of prompts, which decides how many passes a CUDA graph holds [1].
        mixture: several lengths, of which input_len and output_len are the means; None for one.

    Raises:
        InputError: a length is below its minimum, or cache_hit is outside [0, 1).
    """

    input_len: float
    output_len: float
    cache_hit: float = 0.0
    equal_lengths: bool = False
    output_spread: float = 0.0
    input_spread: float = 0.0
    mixture: Mixture | None = None

    @classmethod
    def of_mixture(cls, mixture: Mixture, cache_hit: float = 0.0) -> Workload:
        """Requests of several lengths; input_len and output_len are their means."""
        return cls(
            input_len=mixture.mean(mixture.input_len),
            output_len=mixture.mean(mixture.output_len),
            cache_hit=cache_hit,
            mixture=mixture,
        )

    def __post_init__(self) -> None:
        for name, value, least in (("input_len", self.input_len, 1), ("output_len", self.output_len, 2)):
            require(
                value >= least,
                what=name,
                given=value,
                allowed=f"at least {several(least, 'token')}",
                nearest=str(least),
            )
        require(
            0.0 <= self.cache_hit < 1.0, what="cache_hit", given=self.cache_hit, allowed="0 to below 1", nearest="0"
        )

    @property
    def new_tokens(self) -> float:
        """Prompt tokens that must be prefilled [tokens]."""
        return max(1.0, self.input_len * (1.0 - self.cache_hit))

    @property
    def cached_tokens(self) -> float:
        """Prompt tokens whose KV is only read [tokens]."""
        return self.input_len - self.new_tokens

    @property
    def input_cv2(self) -> float:
        """Variance of prompts over the square of their mean."""
        return 0.0 if self.mixture is None else self.mixture.input_cv2

    def mean_pieces(self, max_tokens: float) -> float:
        """Passes that a prompt's new tokens need, averaged over prompts [passes].

        Args:
            max_tokens: of a prompt in one pass [tokens].
        """
        if self.mixture is None:
            return float(np.ceil(self.new_tokens / max_tokens))
        return self.mixture.mean(np.ceil(np.maximum(self.mixture.input_len * (1.0 - self.cache_hit), 1.0) / max_tokens))

    def prompt_sizes(self) -> PromptSizes | None:
        """New tokens of prompts that differ; None for equal ones."""
        return None if self.mixture is None else self.mixture.prompt_sizes(1.0 - self.cache_hit)

    @property
    def prefix_tokens(self) -> float:
        """What stands before a prompt's new tokens, by which long prompts have more query-key pairs [tokens].

        A mixture has the pairs E[n²] / 2 of its prompts: the mean token has E[n²] / (2 E[n]) before it, not E[n] / 2.
        """
        return self.cached_tokens * (1.0 + self.input_cv2) + self.new_tokens * self.input_cv2 / 2.0

    @property
    def mean_context(self) -> float:
        """Mean context of the sequences in flight, which weights long outputs more [tokens]."""
        if self.mixture is not None:
            return self.mixture.mean_context
        return self.input_len + self.output_len * (1.0 + self.output_spread**2) / 2.0

    @property
    def final_context(self) -> float:
        """Context at the end of a request, which must fit in memory; of a mixture the mean in flight [tokens]."""
        if self.mixture is not None:
            return self.mixture.final_context
        return self.input_len + self.output_len

    def slots(self, room: float) -> float:
        """Sequences for which there is nearly always room, where memory holds `room` of the mean one [sequences]."""
        return room if self.mixture is None else self.mixture.slots(room)

    @property
    def longest_context(self) -> float:
        """Context at the end of the longest request [tokens]."""
        return self.final_context if self.mixture is None else self.mixture.longest_context


@dataclass(frozen=True, slots=True, kw_only=True)
class Workloads:
    """Several workloads as columns, each a benchmark of its own; see `Workload`.

    Args:
        input_len, new_tokens, cached_tokens, prefix_tokens, output_len, mean_context, final_context: of each,
            (workloads, 1) [tokens].
        equal_lengths: the same for all of them.
    """

    input_len: Array
    new_tokens: Array
    cached_tokens: Array
    prefix_tokens: Array
    output_len: Array
    mean_context: Array
    final_context: Array
    equal_lengths: bool

    _LENGTHS: ClassVar = (
        "input_len",
        "new_tokens",
        "cached_tokens",
        "prefix_tokens",
        "output_len",
        "mean_context",
        "final_context",
    )

    @classmethod
    def of(cls, workloads: Sequence[Workload]) -> Workloads:
        """Combine workloads without cached prompts.

        Raises:
            InputError: cached prompts, or answers that spread in some and not in others.
        """
        alike = {(one.equal_lengths, one.output_spread) for one in workloads}
        if len(alike) != 1 or any(one.cache_hit for one in workloads):
            allowed = "nothing cached, equal_lengths and output_spread the same"
            raise InputError(what="workloads", given="unlike ones", allowed=allowed)
        columns = {
            name: np.array([[getattr(one, name)] for one in workloads], dtype=np.float64) for name in cls._LENGTHS
        }
        return cls(**columns, equal_lengths=workloads[0].equal_lengths)

    def take(self, index: Array) -> Workloads:
        """The workloads of an index."""
        return replace(self, **{name: getattr(self, name)[index] for name in self._LENGTHS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """How an engine runs its passes.

    Args:
        admission: "chunked" puts prompt chunks and decodes into one pass; "prefill_first" runs prompts in passes of
            their own while decoding waits; "decode_first" finishes a batch before it admits the next one.
        max_batched_tokens: token budget of a pass on one rank [tokens].
        two_batch_overlap: whether the batch is split in two halves, one computing while the other communicates.
        alignment: how attention-dp ranks wait for each other's prompts; None runs them at once.
    """

    admission: Admission = "chunked"
    max_batched_tokens: int = 8192
    two_batch_overlap: bool = False
    alignment: Alignment | None = None

    @property
    def is_mixed(self) -> bool:
        """Whether prompts and decode tokens share passes."""
        return self.admission == "chunked"

    @property
    def is_batch_by_batch(self) -> bool:
        """Whether a batch finishes before the next one is admitted."""
        return self.admission == "decode_first"

    def label(self) -> str:
        """Short label for reports."""
        overlap = ", two-batch overlap" if self.two_batch_overlap else ""
        held = f", {self.alignment.label()}" if self.alignment else ""
        return f"{self.admission.replace('_', ' ')} {self.max_batched_tokens}{overlap}{held}"


# the tokens of a pass where the text of a mode names none
_USUAL_TOKENS: dict[Admission, int] = {"chunked": 8192, "prefill_first": 16384, "decode_first": 16384}


def parse_mode(text: str, alignments: Mapping[str, tuple[Admission, Alignment]] | None = None) -> Mode:
    """Read ADMISSION[=TOKENS][,overlap][,ALIGNMENT[=PASSES]], such as "chunked=2k" or "prefill-first,overlap".

    Args:
        alignments: by name, each with the admission that it goes with.

    Raises:
        InputError: an unknown admission or alignment, or tokens or passes that are no whole number.

    Example:
        >>> parse_mode("prefill-first=8k").max_batched_tokens
        8000
    """
    head, *extras = [part.strip() for part in text.split(",")]
    name, equals, tokens = head.partition("=")
    written = name.strip().replace("-", "_")
    admission: Admission | None = next((known for known in _USUAL_TOKENS if known == written), None)
    held = [extra for extra in extras if extra != "overlap"]
    goes_with, found = admission, None
    if len(held) == 1:
        which, _, passes = held[0].partition("=")
        goes_with, found = (alignments or {}).get(which.strip().replace("-", "_"), (None, None))
        if found is not None and passes:
            found = found.of(parse_whole(passes, name="mode passes", minimum=2, maximum=1e6))
    if admission is None or len(held) > 1 or goes_with != admission:
        near = nearest_names(written, _USUAL_TOKENS, 1)
        raise InputError(
            what="mode",
            given=text,
            allowed="chunked[=TOKENS], prefill-first[=TOKENS] or decode-first[=TOKENS], each also with ,overlap"
            + "".join(
                f", {of.replace('_', '-')} with ,{name.replace('_', '-')}[=PASSES]"
                for name, (of, _) in (alignments or {}).items()
            ),
            nearest=near[0].replace("_", "-") if near else "chunked",
        )
    most = parse_whole(tokens, name="mode tokens", minimum=1, maximum=1e9) if equals else _USUAL_TOKENS[admission]
    return Mode(admission=admission, max_batched_tokens=most, two_batch_overlap="overlap" in extras, alignment=found)


# Mean tokens per step by the number of drafts, over the models, thinking modes and kinds of draft of the table (coding
# prompts of SPEED-Bench, temperature 1). Source: SemiAnalysis InferenceX, golden_al_distribution, commit 843c6254;
# measured on B300 with vLLM.
MEASURED_TOKENS_PER_STEP: Mapping[int, float] = {1: 1.84, 2: 2.48, 3: 2.94, 4: 3.27, 5: 3.51, 6: 3.64, 7: 3.74, 8: 3.82}
USUAL_DRAFT_TOKENS = 3  # the depth of published recipes for low and medium concurrency


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """How many tokens an engine drafts, and how many a step yields.

    Args:
        draft_tokens: k, drafts per step and sequence [tokens]; 0 decodes one token per step.
        tokens_per_step: tokens that a step yields per sequence, 1 to k + 1 [tokens].

    Raises:
        InputError: a value is outside these ranges.
    """

    draft_tokens: int = 0
    tokens_per_step: float = 1.0

    def __post_init__(self) -> None:
        require(self.draft_tokens >= 0, what="draft_tokens", given=self.draft_tokens, allowed="0 or more", nearest="0")
        most = self.draft_tokens + 1.0
        require(
            1.0 <= self.tokens_per_step <= most,
            what="tokens_per_step",
            given=self.tokens_per_step,
            allowed=f"1 to {most:g}: the drafts, and one token of the model itself",
            nearest=f"{min(max(self.tokens_per_step, 1.0), most) if self.tokens_per_step > 0 else 1.0:g}",
        )

    @property
    def verified_tokens(self) -> float:
        """Tokens per sequence in the verification pass [tokens]."""
        return self.draft_tokens + 1.0

    def label(self) -> str:
        """Short text."""
        if not self.draft_tokens:
            return "one token per step"
        return f"{self.draft_tokens} drafts, {self.tokens_per_step:.3g} tokens/step"


PLAIN = Speculation()


def expected_tokens(acceptance: float, draft_tokens: int) -> float:
    """Tokens per step if each draft is accepted with the same probability, given that the ones before it were.

    tokens = (1 - p^(k + 1)) / (1 - p)

    Args:
        acceptance: p, 0 to 1 [fraction].
        draft_tokens: k [tokens].

    Returns:
        1 to k + 1 [tokens].

    Raises:
        InputError: the probability is outside [0, 1], or the number of drafts is negative.

    Assumes: drafts are accepted independently; measured acceptance falls with the depth.
    Sources: Leviathan et al. 2023 (arXiv:2211.17192), equation 1.

    >>> round(expected_tokens(0.85, 1), 3), round(expected_tokens(0.8, 3), 3), expected_tokens(1.0, 3)
    (1.85, 2.952, 4.0)
    """
    require(0.0 <= acceptance <= 1.0, what="acceptance", given=acceptance, allowed="0 to 1", nearest="0.8")
    require(draft_tokens >= 0, what="draft_tokens", given=draft_tokens, allowed="0 or more", nearest="0")
    return float(sum(acceptance**i for i in range(draft_tokens + 1)))


def usual_speculation(draft_tokens: int = USUAL_DRAFT_TOKENS) -> Speculation:
    """Drafts with the mean acceptance measured on servers; constant beyond the end of the table.

    Args:
        draft_tokens: k, 0 or more [tokens].
    """
    if draft_tokens == 0:
        return PLAIN
    return Speculation(
        draft_tokens=draft_tokens,
        tokens_per_step=MEASURED_TOKENS_PER_STEP[min(max(draft_tokens, 1), max(MEASURED_TOKENS_PER_STEP))],
    )


def breakeven_tokens(verify_s: float, draft_s: float, plain_s: float, draft_tokens: int) -> float:
    """Tokens per step above which drafting pays off.

    tokens = (t_verify + k t_draft) / t_plain

    Args:
        verify_s, draft_s, plain_s: verification pass, one draft, plain decode step, at the same batch size [s].
        draft_tokens: k [tokens].

    Returns:
        Tokens; above k + 1, drafting never pays off at this batch size.

    >>> breakeven_tokens(1.1, 0.1, 1.0, 3)
    1.4000000000000001
    """
    return (verify_s + draft_tokens * draft_s) / plain_s if plain_s > 0 else math.inf

"""The glossary: terms of the field as rackline uses them, for the help of the commands and for docs/glossary.md."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import wrap

_TERMS_WIDTH = 14  # characters of a column of the help
_MEANINGS_WIDTH = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A word, or several that belong together, and what it means.

    Args:
        words: as they are written.
        meaning: without a full stop at the end.
        in_help: whether the help of the commands has it.
    """

    words: str
    meaning: str
    in_help: bool = False


def _term(words: str, meaning: str) -> Term:
    return Term(words=words, meaning=meaning)


TERMS: tuple[Term, ...] = (
    Term(
        words="tp, pp, ep",
        meaning="tensor, pipeline, expert parallelism: degrees of splitting each layer, the layers, the experts over "
        "chips",
        in_help=True,
    ),
    Term(words="cp", meaning="context parallelism: chips that split one long prompt", in_help=True),
    Term(
        words="attention_dp",
        meaning="data-parallel attention: ranks with full attention weights and different requests, which share the "
        "experts",
        in_help=True,
    ),
    Term(
        words="ttft, tpot",
        meaning="time to first token; time per output token after the first",
        in_help=True,
    ),
    Term(
        words="MFU",
        meaning="model FLOP utilisation: the model's FLOP per second over the peak of the chips",
        in_help=True,
    ),
    _term(
        "active parameters", "the parameters that one token is multiplied with; in a mixture of experts, fewer than all"
    ),
    _term("all-gather", "exchange after which each chip holds the parts of all"),
    _term(
        "all-reduce",
        "exchange after which each chip holds the sum of what all had; a reduce-scatter, then an all-gather",
    ),
    _term(
        "all-to-all", "exchange in which each chip has something different for each other one: tokens to their experts"
    ),
    _term("arithmetic intensity", "FLOP of an operation over the bytes that it reads and writes"),
    _term("band", "the range in which 90 % of measured servers of a kind lay around their predictions"),
    _term("batch size", "sequences that take part in one pass"),
    _term("blackboard", "the ideal roofline: peak rates, no overheads, the longest resource alone counts"),
    _term("bubble", "time in which a stage of a pipeline waits for others; as a fraction, over the time of the step"),
    _term(
        "calibration",
        "the numbers that turn peaks into what kernels reach on a chip under a stack: overheads and efficiencies",
    ),
    _term("chunked prefill", "a prompt computed in pieces that share passes with decoding sequences"),
    _term("closed loop", "a load in which a fixed number of users each wait for an answer before they ask again"),
    _term("cluster", "chips and the links between them, as levels: scale-up domains and the network beyond"),
    _term(
        "compute-optimal", "the number of parameters and tokens with the least loss for a given number of training FLOP"
    ),
    _term("decode", "passes in which each running sequence gains a token"),
    _term("disaggregation", "prefill and decode on separate pools of chips; attention and experts on separate chips"),
    _term("dp", "data parallelism: copies of the model with different sequences"),
    _term("expert", "one of many feed-forward blocks of a layer, of which each token visits a few"),
    _term("FLOP, FLOP/s", "a floating-point operation, a multiply-add is two; their rate"),
    _term("GB, GiB", "10⁹ bytes; 2³⁰ bytes"),
    _term("HBM", "high-bandwidth memory, next to the chip; here, the main memory of any chip"),
    _term("KV cache", "what a sequence leaves behind in attention layers for the tokens after it"),
    _term("layout", "the degrees of parallelism of a deployment, such as tp=4,pp=2"),
    _term(
        "lifetime-optimal",
        "the number of parameters and tokens with the least compute for training and later use, at a given loss",
    ),
    _term("Little's law", "mean number in a system = rate of arrivals × mean time in it"),
    _term("micro-batch", "part of a batch that goes through a pipeline by itself"),
    _term(
        "mixture of experts, MoE",
        "a model whose feed-forward blocks are experts; a router chooses a few for each token",
    ),
    _term("MLA", "multi-head latent attention: a small latent per token is cached instead of keys and values"),
    _term("multi-token prediction, MTP", "a light layer that guesses tokens ahead, for the model to verify"),
    _term("open loop", "a load in which requests arrive on their own, however long others take"),
    _term("pass", "one walk of a batch through all layers: a decode step, a prefill, or both mixed"),
    _term("pool", "replicas with one job, such as prefill"),
    _term("prefill", "the pass over a prompt, which fills its KV cache and yields the first token"),
    _term("prefix caching", "keeping the KV cache of the beginning that prompts share"),
    _term("rank", "one member of a parallel group; a chip, or the chips that hold one copy of the attention weights"),
    _term("recompute", "activations dropped in the forward pass and recomputed in the backward pass"),
    _term("reduce-scatter", "exchange after which each chip holds its part of the sum of what all had"),
    _term("replica", "chips that together hold one copy of a model and serve requests"),
    _term(
        "ridge point",
        "the arithmetic intensity from which a chip is bound by compute: peak FLOP/s over memory bandwidth",
    ),
    _term("roofline", "the time of an operation as the longer of its compute and its memory traffic"),
    _term("scale-up, scale-out", "fast links within a domain such as a rack; the network between domains"),
    _term("slot", "a place for one running sequence in an engine"),
    _term("SLO", "a latency that a stated share of requests must keep"),
    _term("sparsity", "said as total_over_active: all parameters over active ones, at least 1"),
    _term("speculative decoding", "a cheap draft of several tokens, which one pass of the model verifies"),
    _term(
        "stack",
        "a serving or training engine with what it does around its kernels: vLLM, SGLang, TensorRT-LLM, Megatron",
    ),
    _term("utilisation", "share of the time, or of the chips, for which work is there"),
    _term("what binds", "the resource whose time is the longest: compute, HBM, scale-up, scale-out or overhead"),
    _term("ZeRO, FSDP", "states of the optimiser, gradients and parameters split over the data-parallel chips"),
)
"""All terms; `--help` shows those with `in_help`, in this order."""


def help_text() -> str:
    """The glossary as the help shows it, with the words in a column."""
    lines = ["Glossary:", ""]
    for term in TERMS:
        if term.in_help:
            first, *others = wrap(term.meaning, _MEANINGS_WIDTH)
            lines.append(f"    {term.words:<{_TERMS_WIDTH}}{first}")
            lines += [f"    {'':<{_TERMS_WIDTH}}{line}" for line in others]
    return "\n".join([*lines, ""])

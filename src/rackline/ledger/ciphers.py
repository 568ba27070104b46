"""Segment 7: ciphers, networks and invertible couplings (C126 to C133), their flash cards and their scene."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rackline.arch import Model
from rackline.hardware import hbm_of
from rackline.ledger.caches import FLASH
from rackline.ledger.drawings import line_drawing, row_drawing, spread
from rackline.ledger.said import Seen
from rackline.ledger.scenes import Scene, work
from rackline.ledger.work import Finding, Work, World
from rackline.pricing.cache import keeping_cost
from rackline.scaling import (
    train_flop,
)
from rackline.scaling.optimum import FORWARD_FLOP_PER_PARAM_TOKEN, PRETRAIN_FLOP_PER_PARAM_TOKEN
from rackline.serving import blackboard as bb
from rackline.units import format_count, format_percent, format_seconds

BITS = 16
_MASK = (1 << BITS) - 1


def _round(x: int, key: int) -> int:
    mixed = ((x ^ key) * 40503 + (x >> 5) * 52711) & _MASK
    return (mixed ^ (mixed >> 7)) & (_MASK ^ (mixed >> 3))


def rounds_of(count: int) -> list[Callable[[int], int]]:
    """Round functions of a small cipher: keyed, not invertible, the same at each call."""
    keys = np.random.default_rng(count).integers(1, _MASK, size=count)
    return [functools.partial(_round, key=int(key)) for key in keys]


def flipped_shares(it: Work, rounds: Iterable[int]) -> list[float]:
    """Shares of the output bits that one input bit flips, of the half that the first round reads, by rounds [1]."""
    functions, samples = rounds_of(int(it.q("rounds"))), int(it.q("samples"))

    def encrypted(word: int, count: int) -> int:
        left, right = bb.coupled_rounds(word >> BITS, word & _MASK, functions[:count], int.__xor__)
        return left << BITS | right

    rng = np.random.default_rng(samples)

    def flipped(word: int, count: int) -> int:
        change = 1 << BITS + int(rng.integers(0, BITS))
        cipher = functools.partial(encrypted, count=count)
        return int(bb.output_difference(cipher, word, change, int.__xor__)).bit_count()

    return [
        float(np.mean([flipped(int(word), count) for word in rng.integers(0, 1 << 2 * BITS, size=samples)]))
        / (2 * BITS)
        for count in rounds
    ]


def c126(it: Work) -> Finding:
    def seen(quantity: str) -> Seen:
        return it.world.seen("cipher", quantity)

    box = "differential uniformity of 8 quantised signs"
    random = seen("differential uniformity of a random function of 8 bits (of 256)").measured
    plain, residual = "layers are plain and weights large", "layers are residual and normed"
    stacks = (
        (plain, seen("signs that change, plain random network of gain 4"), seen(f"{box}, chaotic (of 256)")),
        (residual, seen("signs that change, untrained residual network"), seen(f"{box}, untrained (of 256)")),
    )
    steep, flat = (seen(f"largest singular value of the Jacobian, {name}") for name in ("chaotic", "untrained"))
    learned, not_learned = (seen(f"right answers after training, {name} network") for name in ("residual", "plain"))
    return it.done(
        *(
            row
            for when, flips, shared in stacks
            for row in (
                it.near(f"signs that one input flips, {when}", flips.measured, "share", "half", when=when),
                it.most(
                    f"inputs that share a difference, over a random function, {when}",
                    shared.measured / random,
                    "times",
                    it.q("as_random"),
                    when=when,
                ),
            )
        ),
        it.show("largest singular value of the derivative of a plain net", steep.measured, "times"),
        it.seen_most("the same of a residual net", flat, "times", it.q("meaningful")),
        it.seen_least("right answers that a residual net learns", learned, "share", it.q("learned")),
        it.seen_most("right answers that a plain net learns in as many steps", not_learned, "share", it.q("guess")),
        because=f"In the lab a plain random net changes {format_percent(stacks[0][1].measured)} of its signs, a "
        f"residual one as networks are started {format_percent(stacks[1][1].measured)}. The first is steep by "
        f"{steep.measured:,.0f} times and learns {format_percent(not_learned.measured)} right, the second by "
        f"{flat.measured:.2g} times and learns {format_percent(learned.measured)}.",
    )


def c128(it: Work) -> Finding:
    cipher = it.world.seen("cipher", "bits that change after 12 rounds")
    net = it.world.seen("cipher", "signs that change, trained residual network")
    return it.done(
        it.near("bits that one input bit flips in a cipher of 12 rounds", cipher.measured, "share", "half"),
        it.seen_most("signs that one input flips in a trained net", net, "share", it.q("little")),
        because=f"Measured in the lab: {format_percent(cipher.measured)} in a Feistel cipher, "
        f"{format_percent(net.measured)} ({format_percent(net.low)} to {format_percent(net.high)}) in a residual "
        "network that was trained.",
    )


def c127(it: Work) -> Finding:
    rounds = (1, int(it.q("rounds")))
    shares = {
        f"{count} {'round' if count == 1 else 'rounds'}": share
        for count, share in zip(rounds, flipped_shares(it, rounds), strict=True)
    }
    found = [f"{format_percent(share)} after {many}" for many, share in shares.items()]
    return it.done(
        *(
            it.near(
                f"share of output bits that one input bit flips, {many}",
                share,
                "share",
                "half",
                when=f"the cipher has {many}",
            )
            for many, share in shares.items()
        ),
        because=f"Of all bits change {' and '.join(found)}.",
    )


def c130(it: Work) -> Finding:
    functions = rounds_of(int(it.q("rounds")))
    images = len({functions[0](x) for x in range(_MASK + 1)})
    rng = np.random.default_rng(0)
    pairs = [tuple(int(v) for v in rng.integers(0, _MASK, size=2)) for _ in range(int(it.q("samples")))]
    back = [
        bb.uncoupled_rounds(*bb.coupled_rounds(x, y, functions, int.__xor__), functions, int.__xor__) == (x, y)
        for x, y in pairs
    ]
    return it.done(
        it.show("values that f takes over its inputs", images / (_MASK + 1), "share"),
        it.true("every pair comes back exactly", all(back), by_definition=True),
        because="f is only ever computed forward, so it needs no inverse.",
    )


def c131(it: Work) -> Finding:
    rng = np.random.default_rng(1)
    width = 16
    weights = [rng.normal(0.0, width**-0.5, (width, width)) for _ in range(int(it.q("layers")))]

    def layer(w: Any) -> Callable[[Any], Any]:
        return lambda x: np.tanh(w @ x)

    layers = [layer(w) for w in weights]
    x, y = rng.normal(size=width), rng.normal(size=width)
    u, v = bb.uncoupled_rounds(*bb.coupled_rounds(x, y, layers, operator.add), layers, operator.sub)
    off = float(max(np.abs(u - x).max(), np.abs(v - y).max()))
    # only its order of magnitude is the same on all processors
    power = 10.0 ** math.ceil(math.log10(off)) if off else 0.0
    return it.done(
        it.show("largest difference after 32 layers and back, at most", power, ""),
        it.true("within rounding", off <= it.q("rounding"), when="exact means within rounding"),
        it.true("to the last bit", off == 0.0, when="exact means to the last bit"),
        because="Sums of floats round, so inputs come back within rounding and not bit by bit.",
    )


def c132(it: Work) -> Finding:
    few, many = int(it.q("few")), int(it.q("many"))
    growth = bb.stored_activations(many, False) / bb.stored_activations(few, False)
    return it.done(
        it.identity("ordinary, 80 layers over 4", growth, many / few, "times"),
        it.identity(
            "reversible, 80 layers over 4",
            bb.stored_activations(many, True) / bb.stored_activations(few, True),
            1.0,
            "times",
        ),
        because="The two halves of the last layer are enough to rebuild all earlier ones.",
    )


def c133(it: Work) -> Finding:
    """What computing a context again costs, over what reading its cache and holding it until then do."""
    again = PRETRAIN_FLOP_PER_PARAM_TOKEN + FORWARD_FLOP_PER_PARAM_TOKEN
    step = it.world.seen("reversible", "work of reversible over stored activations")
    model, chip = it.world.model("llama-3.1-70b"), it.world.chip("h100-sxm")
    length, usd_per_s = it.q("context_len"), it.q("usd_per_hour") / 3600.0
    kv = length * model.kv_bytes_per_token(2.0)
    redo = usd_per_s * bb.compute_s(1.0, model.active_params, chip.flop_per_s("bf16"), length)
    read = usd_per_s * bb.kv_fetch_s(1.0, length, model.kv_bytes_per_token(2.0), chip.hbm_bytes_per_s)
    holds = {
        f"the next token comes in {format_seconds(it.q('interval_s'))}": (
            hbm_of(chip, it.q("usd_per_hour")),
            "interval_s",
        ),
        f"it waits {format_seconds(it.q('pause_s'))} in HBM": (hbm_of(chip, it.q("usd_per_hour")), "pause_s"),
        f"it waits {format_seconds(it.q('pause_s'))} on flash": (it.world.tier(FLASH), "pause_s"),
    }
    kept = {when: read + float(keeping_cost(tier, kv).usd(it.q(name))) for when, (tier, name) in holds.items()}
    return it.done(
        it.near("FLOP of a reversible over an ordinary step", again / PRETRAIN_FLOP_PER_PARAM_TOKEN, "times", "extra"),
        it.near("work of a reversible over an ordinary step, as compiled in the lab", step.measured, "times", "extra"),
        *(
            it.least(
                f"cost of computing {format_count(length)} tokens again over that of keeping them, {when}",
                redo / usd,
                "times",
                it.q("pays"),
                when=when,
            )
            for when, usd in kept.items()
        ),
        it.show(f"computing {length:,.0f} tokens again over reading their cache", redo / read, "times"),
        because=f"A reversible step computes {format_percent(again / PRETRAIN_FLOP_PER_PARAM_TOKEN - 1.0)} more and "
        f"stores no outputs. Reading a cache takes one part in {redo / read:,.0f} of the time of computing it; what it "
        "costs is mostly the memory that it occupies meanwhile, so the price of waiting decides.",
    )


def cipher_reads() -> NDArray[np.bool_]:
    """Bytes of the state that each byte depends on after a round of AES: rows are shifted, then columns mixed."""
    reads = np.zeros((16, 16), dtype=bool)
    for row, column, read in itertools.product(range(4), repeat=3):
        reads[4 * column + row, 4 * ((column + read) % 4) + read] = True
    return reads


def q26(it: Work) -> Finding:
    rounds, context = bb.layers_until_mixed(cipher_reads()), it.q("context_len")
    models = [it.world.model(name) for name in ("llama-3.1-70b", "gemma-3-27b")]
    kinds = [
        (model, kind, attention.window, bb.layers_to_reach(context, attention.window))
        for model in models
        if isinstance(model, Model)
        for kind, attention in model.attention_kinds().items()
    ]
    needed = [
        f"{layers:.0f} of the {model.num_layers} layers of {model.name} if all were {kind}"
        for model, kind, _, layers in kinds
    ]
    return it.done(
        it.most(
            "rounds of AES until each byte depends on each", rounds, "rounds", it.q("aes_rounds"), when="rows are mixed"
        ),
        it.most(
            "without shifting and mixing",
            bb.layers_until_mixed(np.eye(16, dtype=bool)),
            "rounds",
            it.q("aes_rounds"),
            when="bytes are substituted alone",
            by_definition=True,
        ),
        *(
            it.most(
                f"{kind} layers of {model.name} until the last token depends on the first",
                layers,
                "layers",
                model.num_layers,
                when=f"attention is {kind} in {model.name}",
                by_definition=window is None,
            )
            for model, kind, window, layers in kinds
        ),
        because=f"Each output has to depend on each input: AES takes {rounds:.0f} rounds for it, mixing rows and "
        f"columns in turn; attention over {format_count(context)} tokens takes {', '.join(needed)}.",
    )


def words_to_read(it: Work) -> tuple[NDArray[Any], NDArray[np.bool_], NDArray[Any]]:
    """Words of 32 bits, a property of each (whether three of five bits are set), and their ciphertexts."""
    rng = np.random.default_rng(0)
    words = rng.integers(0, 1 << 32, size=int(it.q("samples")))
    answers = ((words[:, None] >> np.array([0, 7, 13, 22, 31])) & 1).sum(axis=1) >= 3
    functions = rounds_of(int(it.q("rounds")))
    pairs = [bb.coupled_rounds(int(w) >> 16, int(w) & 0xFFFF, functions, int.__xor__) for w in words]
    return words, answers, np.array([left << 16 | right for left, right in pairs])


def q27(it: Work) -> Finding:
    """A linear probe learns a property from plain words and fails on their ciphertexts."""
    words, answers, hidden = words_to_read(it)
    before = bb.reading_accuracy(words, answers, num_bits=32, steps=0)
    after = bb.reading_accuracy(words, answers, num_bits=32)
    cipher = bb.reading_accuracy(hidden, answers, num_bits=32)
    return it.done(
        it.near("right answers of an untrained reader", before, "share", "guess"),
        it.least("after training on words", after, "share", it.q("found")),
        it.near("after training on their ciphertexts", cipher, "share", "guess"),
        because=f"A net starts from guessing and finds the structure ({format_percent(before)}, then "
        f"{format_percent(after)} right); a cipher takes words with structure and leaves none to be found "
        f"({format_percent(cipher)}).",
    )


def mixing(world: World) -> Scene:
    """How rounds and layers mix, what can be undone, and what reversible layers cost."""
    it, flips, feistel, probe, layers, trade = (
        work(world, one) for one in ("Q26", "C127", "C130", "Q27", "C132", "C133")
    )
    rounds = np.arange(1.0, 7.0)

    def depends(reads: NDArray[np.bool_]) -> list[float]:
        return [float((np.linalg.matrix_power(reads.astype(float), int(one)) > 0.0).mean()) for one in rounds]

    gemma = cast("Model", world.model("gemma-3-27b"))
    window = next(one.window for one in gemma.attention_kinds().values() if one.window)
    context = it.q("context_len")
    windows = np.unique(np.rint(spread(256.0, context, window, count=61)))
    last = int(flips.q("rounds"))
    counts = (1, last, *range(2, last))  # in the order in which the claim draws
    shares = dict(zip(counts, flipped_shares(flips, counts), strict=True))
    tried = 1 << BITS
    function: Callable[[Any], Any] = rounds_of(int(feistel.q("rounds")))[0]
    _, firsts = np.unique(function(np.arange(tried)), return_index=True)
    inputs = spread(1.0, tried, count=49)
    words, answers, hidden = words_to_read(probe)
    steps = [1, 2, 4, 8, 16, 32, 64, 128, 200]
    read = {
        name: [bb.reading_accuracy(one, answers, num_bits=32, steps=count) for count in steps]
        for name, one in (("words", words), ("ciphertexts", hidden))
    }
    depth = np.array([2.0**power for power in range(2, 8)] + [layers.q("many")])
    depth.sort()
    once, again = train_flop(1.0, 1.0), train_flop(1.0, 1.0) + 2.0
    llama, chip = world.model("llama-3.1-70b"), world.chip("h100-sxm")
    lengths = spread(128.0, 131072.0, trade.q("context_len"), count=61)
    return Scene(
        drawings={
            "mixing": line_drawing(
                "Pairs of bytes of which one depends on the other",
                "16 bytes of AES: rows are shifted, columns are mixed",
                ("rounds", "count"),
                ("share of all pairs", "share"),
                rounds,
                {
                    "shifted and mixed": depends(cipher_reads()),
                    "all pairs": 1.0,
                    "bytes replaced alone": depends(np.eye(16, dtype=bool)),
                },
                log="",
            ),
            "window": line_drawing(
                "Layers until the last token depends on the first",
                f"{context:,.0f} tokens, each layer with the same window",
                ("tokens that a layer sees", "count"),
                ("layers", "count"),
                windows,
                {"layers": [bb.layers_to_reach(context, float(one)) for one in windows]},
            ),
            "flips": line_drawing(
                "Output bits that one input bit flips",
                f"a Feistel cipher of 32 bits, mean of {flips.q('samples'):.0f} words",
                ("rounds", "count"),
                ("share of the output bits", "share"),
                sorted(shares),
                {"flipped": [shares[one] for one in sorted(shares)], "a coin for each": 0.5},
                log="",
            ),
            "taken": line_drawing(
                "Values that a round function takes",
                f"{BITS} bits in and out; inputs tried in order",
                ("inputs tried", "count"),
                ("different values", "count"),
                inputs,
                {"values": [np.count_nonzero(firsts < one) for one in np.floor(inputs)], "one an input": inputs},
            ),
            "probe": line_drawing(
                "Right answers of a linear probe",
                f"{len(words):,} words of 32 bits, trained on half of them, asked of the others",
                ("steps of training", "count"),
                ("share of right answers", "share"),
                steps,
                {**read, "guessing": 0.5},
                log="x",
            ),
            "depth": line_drawing(
                "Outputs of layers that are stored for the backward pass",
                "one for each layer, or the two halves of the last",
                ("layers", "count"),
                ("outputs stored", "count"),
                depth,
                {
                    name: [bb.stored_activations(int(one), reversible) for one in depth]
                    for name, reversible in (("ordinary", False), ("reversible", True))
                },
            ),
            "again": row_drawing(
                "Arithmetic of a step of training",
                "of each parameter and token",
                ("FLOP", "number"),
                {"ordinary": once, "reversible": again},
                log="",
            ),
            "cache": line_drawing(
                "A context recomputed, or read from the cache",
                "Llama 3.1 70B in BF16 on one H100's rates",
                ("context length [tokens]", "count"),
                ("time", "seconds"),
                lengths,
                {
                    "recomputed": bb.compute_s(1.0, llama.active_params, chip.flop_per_s("bf16"), lengths),
                    "read": bb.kv_fetch_s(1.0, lengths, llama.kv_bytes_per_token(2.0), chip.hbm_bytes_per_s),
                },
            ),
        },
        facts={
            "context": f"{context:,.0f}",
            "window": f"{window:,.0f}",
            "layers": str(gemma.num_layers),
            "one": format_percent(shares[1]),
            "tried": f"{tried:,}",
            "words": format_percent(read["words"][-1]),
            "growth": f"{layers.q('many') / layers.q('few'):g}",
            "once": f"{once:g}",
            "more": f"{again - once:g}",
        },
    )

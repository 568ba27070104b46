"""The example that `rackline sweep --new FILE` writes: it runs as it is, in about a second."""

from __future__ import annotations

from dataclasses import dataclass

EXAMPLE = """\
# A sweep of rackline. Run it:    rackline sweep FILE --out FOLDER      (first: --dry-run says what it takes)
# Read it:                        rackline sweep show FOLDER

title = "Llama 3.1 70B on three clusters: what does a token cost at which speed?"

# The question that is asked at every point. `explain` (one pass) is compiled: millions of points per second.
# plan, train, simulate, price, fit, tiers, budget and encode are asked once per combination.
ask = "explain"

# Options of that question, as on the command line. One value, or a range:
#   [A, B, C]                                a list
#   { linear = [FROM, TO], num = N }         equal steps
#   { log = [FROM, TO], num = N }            equal ratios
#   { uniform = [FROM, TO] }                 drawn, see [sample]; also log_uniform, normal, log_normal
[options]
model = "llama-3.1-70b"
on = ["dgx-h100", "dgx-h200", "dgx-b200"]
precision = "fp8"
batch = { log = [1, 512], num = 40 }
context = ["2k", "8k", "32k"]
# parts such as "tp=8", a list of them, or a rule: smallest (layout that holds the batch), cheapest, fastest, all
layout = "cheapest"

# Numbers of the model, the cluster or the chip, as --set KEY=VALUE; ranges too.
[set]
"levels.scale_up.bytes_per_s_each_way" = ["450GB/s", "900GB/s"]

# Numbers for the expressions below alone; ranges too.
[inputs]
utilisation = 0.6

# How quantities that are drawn are drawn, all together:
# method = "sobol" (or latin-hypercube, random, saltelli for Sobol' indices), num = 1024, seed = 0
# [sample]

# New columns from columns, in SI units: + - * / ** %, comparisons, min, max, sqrt, exp, log, where(test, a, b) ...
[derived]
usd_per_mtok = "usd_per_mtok_output / utilisation"

# What a point must keep; points that do not stay in the tables, with feasible = false.
[constraints]
fast_enough = "server_s <= 0.05"

# What is better, the most important first.
[objectives]
usd_per_mtok = "min"
server_s = "min"

# Columns of results (of explain: server_s, seconds, output_tokens_per_s_per_chip, input_tokens_per_s_per_chip,
# usd_per_mtok_output, usd_per_mtok_input, max_sequences, chips_per_replica), and how they are stored.
[output]
results = ["server_s", "output_tokens_per_s_per_chip", "usd_per_mtok_output", "max_sequences"]
float_bits = 32
rows_per_shard = 1048576
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """An example that was written.

    Args:
        file: its path.
    """

    file: str

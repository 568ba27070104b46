"""The report of experiments: one HTML file with tables and figures, complete in itself."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from rackline.lab.experiment import Experiment
from rackline.lab.experiments import entry
from rackline.lab.figure import experiment_figure
from rackline.lab.table import MARKS, measured_text, predicted_text

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>rackline lab</title>
<style>
:root { color-scheme: light dark }
h1 { font-size: clamp(1.5rem, 5vw, 2.1rem); line-height: 1.2 }
td:first-child { min-width: 11rem }
body { font: 16px/1.5 system-ui, sans-serif; margin: 1.5rem auto; max-width: 62rem; padding: 0 1rem }
.table { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem }
th, td { text-align: left; padding: 0.25rem 0.75rem 0.25rem 0; border-bottom: 1px solid #8884; vertical-align: top }
td.number { text-align: right; font-variant-numeric: tabular-nums }
figure { margin: 1rem 0; overflow-x: auto }
figure svg { max-width: 100%; height: auto; background: #fff }
.holds { color: light-dark(#0a6b2d, #5fd38d) }
.differs { color: light-dark(#b3261e, #ff8a80) }
.undecided { color: light-dark(#7a5c00, #e6c35c) }
</style>
</head>
<body>
<h1>The lecture's mechanisms, built small and measured</h1>
"""


def report_page(found: Sequence[Experiment]) -> str:
    """The report as HTML.

    Raises:
        InputError: nothing to draw the figures with (extra `plot`).
    """
    parts = [_HEAD, f"<p>{_summary(found)}</p>"]
    for one in found:
        parts.append(f'<h2 id="{one.name}">{escape(one.name)}: {escape(entry(one.name).shows)}</h2>')
        parts.append(
            f'<p><strong class="{one.verdict}">{one.verdict}</strong> (claims {", ".join(one.claims)}; '
            f"{one.seconds:.0f} s on {escape(one.device)}, random seed {one.seed}{', quick' if one.quick else ''})</p>"
        )
        parts += [f"<p>{escape(text[0].upper() + text[1:])}.</p>" for text in one.findings]
        if one.curves:
            parts.append(f"<figure>{experiment_figure(one).svg()}</figure>")
        parts.append('<div class="table"><table><thead><tr><th>quantity</th><th>predicted</th><th>measured</th>')
        parts.append("<th>agrees</th><th>prediction from</th></tr></thead><tbody>")
        for row in one.rows:
            mark = MARKS[row.holds][0] or "-"
            parts.append(
                f'<tr><td>{escape(row.quantity)}</td><td class="number">{escape(predicted_text(row))}</td>'
                f'<td class="number">{escape(measured_text(row))}</td><td>{mark}</td><td>{escape(row.source)}</td></tr>'
            )
        parts.append("</tbody></table></div>")
    return "\n".join(parts) + "\n</body>\n</html>\n"


def _summary(found: Sequence[Experiment]) -> str:
    held = sum(one.verdict == "holds" for one in found)
    return f"{held} of {len(found)} experiments hold. Each reading has its prediction and where that comes from."

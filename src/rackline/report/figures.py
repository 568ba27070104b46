"""The form of a figure, that of plotly ({"data": [...], "layout": {...}}), and the colours of all of them."""

from __future__ import annotations

from typing import Any

Figure = dict[str, Any]

# Okabe and Ito's colours, which people with any colour vision can tell apart.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#767676"

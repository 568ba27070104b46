"""The theme of all figures, light and dark: colours, type and lines as a Vega-Lite config.

A figure names a style or a place in the palette, never a colour, so that the same data is drawn in either theme.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

ThemeName = Literal["light", "dark"]
THEME_NAMES: tuple[ThemeName, ...] = get_args(ThemeName)
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif"
STILL_FONT = "'Liberation Sans', Arial, Helvetica, sans-serif"  # of images, as wide as it was measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """Colours of one theme.

    Args:
        background: behind everything.
        ink: texts, the best point, limits.
        muted: what is there for comparison only.
        grid: lines of the grid.
        category: colours of series in their order. Each has a contrast of 3 and more to the background, and any two
            of them differ by 0.1 and more in OKLab for full colour vision, protanopia, deuteranopia and tritanopia.
        ramp: low to high of an ordered quantity.
    """

    background: str
    ink: str
    muted: str
    grid: str
    category: tuple[str, ...]
    ramp: tuple[str, ...]

    def config(self) -> dict[str, Any]:
        """The theme as a Vega-Lite config."""
        return {
            "background": self.background,
            "font": FONT,
            "padding": 14,
            "view": {"stroke": None},
            "title": {
                "anchor": "start",
                "color": self.ink,
                "fontSize": 16,
                "fontWeight": 600,
                "frame": "bounds",
                "offset": 14,
                "subtitleColor": self.muted,
                "subtitleFontSize": 12,
                "subtitlePadding": 5,
            },
            "axis": {
                "domainColor": self.muted,
                "gridColor": self.grid,
                "labelColor": self.ink,
                "labelFontSize": 12,
                "labelPadding": 5,
                "tickColor": self.muted,
                "titleColor": self.ink,
                "titleFontSize": 12,
                "titleFontWeight": "normal",
                "titlePadding": 10,
            },
            "header": {"labelColor": self.ink, "labelFontSize": 12, "titleColor": self.ink},
            "legend": {
                "columnPadding": 24,  # fonts of readers may be wider than the one that labels were measured with
                "direction": "horizontal",
                "labelColor": self.ink,
                "labelFontSize": 12,
                "labelLimit": 320,
                "offset": 12,
                "orient": "top",
                "symbolOpacity": 1,
                "symbolSize": 90,
                "symbolStrokeWidth": 2.5,
                "titleColor": self.ink,
                "titleFontSize": 12,
                "titleFontWeight": "normal",
                "titleLimit": 320,
            },
            "range": {
                "category": list(self.category),
                "ordinal": list(self.ramp),
                "ramp": list(self.ramp),
                "heatmap": list(self.ramp),
            },
            "mark": {"color": self.category[0]},
            "line": {"strokeWidth": 2.2, "strokeCap": "round", "strokeJoin": "round"},
            "point": {"filled": True, "size": 46, "opacity": 1},
            "bar": {"stroke": self.background, "strokeWidth": 0.5},
            "text": {"color": self.ink, "fontSize": 12},
            "rule": {"color": self.muted},
            "style": {
                "best": {
                    "color": self.ink,
                    "fill": self.ink,
                    "stroke": self.background,
                    "strokeWidth": 1.5,
                    "shape": "diamond",
                    "size": 190,
                },
                "limit": {"color": self.ink, "stroke": self.ink, "strokeDash": [6, 4], "strokeWidth": 1.4},
                "reference": {"color": self.muted, "stroke": self.muted, "strokeDash": [4, 3]},
                "muted": {"color": self.muted, "fill": self.muted, "opacity": 0.75},
                "muted-text": {"color": self.muted, "fill": self.muted},
                "band": {"color": self.muted, "fill": self.muted, "opacity": 0.16, "stroke": None},
                "halo": {
                    "color": self.background,
                    "fill": self.background,
                    "fontWeight": 600,
                    "stroke": self.background,
                    "strokeJoin": "round",
                    "strokeWidth": 5,
                },
                "hull": {"color": self.muted},
                "note": {"color": self.ink, "fill": self.ink, "fontWeight": 600},
            },
        }


LIGHT = Theme(
    background="#ffffff",
    ink="#1b1f24",
    muted="#68717b",
    grid="#e3e6ea",
    category=("#2940a9", "#e06d03", "#1ba3ac", "#9777ec", "#693100", "#2974ac", "#6e4d6b", "#9c540b"),
    ramp=("#d9e2f7", "#9fb4e6", "#6483cf", "#2940a9", "#16246b"),
)
DARK = Theme(
    background="#15181d",
    ink="#e8eaed",
    muted="#9aa3ad",
    grid="#2c3138",
    category=("#3676dd", "#f9b012", "#03e5f3", "#c68bff", "#cb4645", "#80afb2", "#f97d63", "#8f7696"),
    ramp=("#1d2c52", "#2a4f9e", "#3676dd", "#7ea9ee", "#cfe0fb"),
)


def theme(name: ThemeName) -> Theme:
    """The theme of a name."""
    return DARK if name == "dark" else LIGHT

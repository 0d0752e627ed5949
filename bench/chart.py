"""Draws the chart of a report: one bar per row, with the factor by which millstream needs less than
Redis.

Bars start at 1.0 ("the same as Redis") on a logarithmic axis, so that half and twice have bars of
equal length. A dark tick is the goal, the thin line the range of all rounds. The chart is written
as SVG and PNG; the SVG contains no date, so the same figures give the same file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from matplotlib.transforms import blended_transform_factory

from bench.figures import OURS, REDIS
from bench.report import cost_text, machine_line

REACHED = "#2a9d8f"
MISSED = "#e08e45"
NO_GOAL = "#9fb3c8"
INK = "#22303c"
FAINT = "#66757f"
GRID = "#e4e9ed"
COLOURS = {"yes": REACHED, "no": MISSED}
TICKS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)

WIDTH_INCHES = 10.5
ROW_INCHES = 0.27
MARGIN_TOP_INCHES = 1.25
MARGIN_BOTTOM_INCHES = 0.95
SECTION_GAP = 1.35
"""The height of a section's name, in rows."""
PNG_DPI = 150
LEFT = 0.025
"""The left edge of titles, as a fraction of the figure's width."""
NAMES_AT, TITLES_AT, COSTS_AT = -0.48, -0.03, 1.08
"""The positions of the texts next to the bars, as a fraction of the plot's width."""
WORDS_AT_MOST = 20
"""The ratio above which there is no space for a text after a row's line."""
TIMES, ARROW, DIVIDED_BY = "\N{MULTIPLICATION SIGN}", "\N{RIGHTWARDS ARROW}", "\N{DIVISION SIGN}"

OWN_UNIT = "% more"
"""The unit of rows in which each server is compared with itself."""

Rows = list[dict[str, Any]]


def write(report: dict[str, Any], directory: Path) -> list[Path]:
    """Draw the report into `benchmark.svg` and `benchmark.png`; returns their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"font.family": "DejaVu Sans", "svg.hashsalt": "millstream"}):
        figure = draw(report)
        paths = [directory / "benchmark.svg", directory / "benchmark.png"]
        figure.savefig(paths[0], metadata={"Date": None})
        figure.savefig(paths[1], dpi=PNG_DPI)
        plt.close(figure)
    return paths


def shown(report: dict[str, Any]) -> Rows:
    """The rows the chart shows: measured, and compared with Redis."""
    return [
        row
        for row in report["rows"]
        if "ratio" in row and row["unit"] != OWN_UNIT and not has_only_ours(row)
    ]


def has_only_ours(row: dict[str, Any]) -> bool:
    """True if only our server was measured, against itself or against a goal: the cost of Redis is
    then 1 in all rounds, and the ratio means nothing."""
    cost = row["redis"]["cost"]
    return bool(cost["low"] == cost["high"] == 1.0)


def places(rows: Rows) -> tuple[list[float], dict[str, float], float]:
    """The positions of bars and section names, and the height; counted downwards, in rows."""
    bars: list[float] = []
    names: dict[str, float] = {}
    at = 0.0
    for row in rows:
        if row["section"] not in names:
            at += SECTION_GAP / 2 if names else 0
            names[row["section"]] = at
            at += SECTION_GAP - 0.35
        bars.append(at)
        at += 1
    return bars, names, at


def draw(report: dict[str, Any]) -> Figure:
    """The whole figure."""
    rows = shown(report)
    bars, names, height = places(rows)
    inches = MARGIN_TOP_INCHES + MARGIN_BOTTOM_INCHES + height * ROW_INCHES
    figure = plt.figure(figsize=(WIDTH_INCHES, inches), facecolor="white")
    bottom, top = MARGIN_BOTTOM_INCHES / inches, 1 - MARGIN_TOP_INCHES / inches
    axes = figure.add_axes((0.265, bottom, 0.50, top - bottom))
    axes.set_ylim(height - 0.3, -0.8)
    set_scale(axes, rows)
    for row, at in zip(rows, bars, strict=True):
        draw_row(axes, row, at)
    for name, at in names.items():
        write_words(axes, NAMES_AT, at, name, weight="bold", size=10.5, color=INK)
    write_words(axes, COSTS_AT, -0.1, f"Redis {ARROW} {ours_name(report)}", size=8.5, color=FAINT)
    draw_words(figure, report, inches)
    return figure


def set_scale(axes: Axes, rows: Rows) -> None:
    """Set a logarithmic axis around 1.0, wide enough for every bar, goal and extreme."""
    values = [1.0]
    for row in rows:
        values += [row["ratio"]["low"], row["ratio"]["high"], row["goal"]["ratio"] or 1.0]
    low, high = min(values), max(values)
    axes.set_xscale("log")
    axes.set_xlim(min(low / 1.06, 0.9), max(high * 1.25, 2.2))
    axes.xaxis.set_major_locator(FixedLocator(TICKS))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}{TIMES}"))
    axes.tick_params(axis="x", colors=FAINT, length=0, labelsize=9, labeltop=True)
    axes.yaxis.set_visible(False)
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.axvline(1.0, color=INK, linewidth=1.3, zorder=3)
    axes.spines[:].set_visible(False)


def draw_row(axes: Axes, row: dict[str, Any], at: float) -> None:
    """Draw the bar, its extremes, its goal, and the texts on both sides."""
    ratio, goal = row["ratio"], row["goal"]["ratio"]
    colour = COLOURS.get(row["meets_goal"], NO_GOAL)
    axes.barh(at, ratio["median"] - 1, left=1, height=0.66, color=colour, zorder=2)
    axes.plot([ratio["low"], ratio["high"]], [at, at], color=INK, linewidth=1, alpha=0.55, zorder=4)
    if goal is not None:
        axes.plot([goal, goal], [at - 0.43, at + 0.43], color=INK, linewidth=2.2, zorder=5)
    words_at = max(ratio["high"], goal or 0, 1)
    if words_at > WORDS_AT_MOST:  # it would overlap the text on the right: put it on the line
        words_at = max(ratio["median"], goal or 0, 1)
    axes.annotate(
        ratio_text(row),
        (words_at, at),
        (5, 0),
        textcoords="offset points",
        va="center",
        size=9,
        weight="bold",
        color=INK,
        zorder=6,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
    )
    write_words(axes, TITLES_AT, at, row["title"], ha="right", size=9, color=INK)
    costs = [cost_text(row[lane]["cost"]["median"], row["unit"]) for lane in (REDIS, OURS)]
    write_words(axes, COSTS_AT, at, f" {ARROW} ".join(costs), size=8.5, color=FAINT)


def ratio_text(row: dict[str, Any]) -> str:
    """The text of the ratio; if commands per second have a goal too, also their ratio."""
    text = f"{row['ratio']['median']:.2f}{TIMES}"
    if row["goal"]["rate_ratio"] is not None and row["ops_ratio"]:
        text += f"  ({row['ops_ratio']['median']:.2f}{TIMES} in ops)"
    return text


def draw_words(figure: Figure, report: dict[str, Any], inches: float) -> None:
    """Draw the title, the meaning of the ratio, the key and the machine."""
    method = report["method"]
    means = (
        f"Redis {DIVIDED_BY} {ours_name(report)} of server CPU time per command, "
        f"of memory per entry, or of waiting. Longer is better. Median of {method['rounds']} rounds"
        f"{', quick run' if method['quick'] else ''}."
    )
    title_at, means_at, machine_at = 1 - 0.33 / inches, 1 - 0.65 / inches, 0.2 / inches
    title = f"{ours_name(report)} against Redis: how many times less it needs"
    figure.text(LEFT, title_at, title, size=15.5, weight="bold", color=INK, va="center")
    figure.text(LEFT, means_at, means, size=9.5, color=FAINT, va="center")
    figure.text(LEFT, machine_at, machine_line(report), size=7.8, color=FAINT, va="center")
    figure.legend(
        handles=key(),
        loc="lower left",
        bbox_to_anchor=(LEFT - 0.01, 0.30 / inches),
        ncols=5,
        frameon=False,
        fontsize=9,
        labelcolor=INK,
        handlelength=1.3,
        columnspacing=1.8,
    )


def ours_name(report: dict[str, Any]) -> str:
    """The name of the server that Redis is compared with."""
    return "a second Redis" if report["self_check"] else "millstream"


def key() -> list[Patch | Line2D]:
    """The key to colours and lines."""
    tick = Line2D([], [], color=INK, marker="|", markersize=9, markeredgewidth=2.2, linestyle="")
    tick.set_label("goal")
    extremes = Line2D([], [], color=INK, linewidth=1, alpha=0.55, label="least to greatest round")
    return [
        Patch(color=REACHED, label="goal reached"),
        Patch(color=MISSED, label="goal missed"),
        Patch(color=NO_GOAL, label="no goal set"),
        tick,
        extremes,
    ]


def write_words(axes: Axes, x: float, at: float, text: str, **style: Any) -> None:
    """Write a text next to the bars: `x` is a fraction of the plot's width, `at` is in rows."""
    transform = blended_transform_factory(axes.transAxes, axes.transData)
    axes.text(x, at, text, transform=transform, va="center", **style)

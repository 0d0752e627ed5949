"""Draws what hourly.py wrote: a line a stream, and around it the least and the greatest.

python docs/examples/picture.py hourly.parquet docs/spark.png
"""

import argparse

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pyarrow.parquet as pq
from matplotlib.dates import ConciseDateFormatter, DayLocator

COLOURS = ("#2a9d8f", "#e08e45", "#5b7fa6", "#a65b7f")
INK, GRID = "#22303c", "#e4e9ed"


def draw(table: str, picture: str, unit: str) -> None:
    rows = pq.read_table(table).to_pylist()
    figure, axes = plt.subplots(figsize=(10, 4.2), layout="constrained")
    for key, colour in zip(sorted({row["key"] for row in rows}), COLOURS, strict=False):
        mine = sorted((row for row in rows if row["key"] == key), key=lambda row: row["hour"])
        hours = [row["hour"] for row in mine]
        band = ([row["least"] for row in mine], [row["greatest"] for row in mine])
        axes.fill_between(hours, *band, color=colour, alpha=0.2, linewidth=0)
        axes.plot(hours, [row["mean"] for row in mine], color=colour, linewidth=1.6)
        place = {"xytext": (6, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(key, (hours[-1], mine[-1]["mean"]), color=colour, **place)
    _dress(axes, unit)
    figure.savefig(picture, dpi=130)


def _dress(axes: plt.Axes, unit: str) -> None:
    axes.set_title("Hourly mean, least and greatest of each stream", loc="left", color=INK)
    axes.set_ylabel(unit, color=INK)
    axes.xaxis.set_major_locator(DayLocator())
    axes.xaxis.set_major_formatter(ConciseDateFormatter(DayLocator()))
    axes.grid(color=GRID)
    axes.margins(x=0.01)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table")
    parser.add_argument("picture")
    parser.add_argument("--unit", default="temperature, \N{DEGREE SIGN}C")
    arguments = parser.parse_args()
    draw(arguments.table, arguments.picture, arguments.unit)


if __name__ == "__main__":
    main()

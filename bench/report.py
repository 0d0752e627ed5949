"""The report: lines on the terminal as rows finish, and JSON with a description of the machine.

The JSON is the source of the chart, so the chart can be drawn again without a new measurement. It
names programs but no paths, because it is kept in the repository.
"""

from __future__ import annotations

import datetime
import enum
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.figures import (
    EARLIER_LOW,
    NO_GOAL,
    OURS,
    REDIS,
    SAME_HIGH,
    SAME_LOW,
    Lanes,
    Reading,
    cost_ratio,
    costs,
    no_slower,
    rate_ratio,
    rates,
    same,
)
from bench.harness import Row

FORMAT = 1


class Compared(enum.Enum):
    """The server that ours is compared with, as the table names it."""

    REDIS = "Redis"
    SELF = "redis"
    """Redis compared with itself."""
    EARLIER = "earlier"
    """An earlier build of millstream."""
    NATS = "NATS"
    """NATS JetStream, with rows of its own."""


LAYOUT = "{:<32}{:>11}{:>11}  {:<19}{:<22}{:<10}{:>12}{:>14}"


@dataclass(frozen=True)
class Outcome:
    """A row that was measured, or the reason why it was not."""

    row: Row
    lanes: Lanes | None = None
    failure: str = ""

    def verdict(self, compared: Compared) -> str:
        """`yes`, `no`, or `-` without a goal. A self-check requires a ratio of about 1 instead, and
        an earlier build one that is not lower."""
        if self.lanes is None:
            return "failed"
        met: bool | None
        match compared:
            case Compared.REDIS | Compared.NATS:
                met = self.row.goal.met(self.lanes)
            case Compared.SELF:
                met = same(self.lanes)
            case Compared.EARLIER:
                met = no_slower(self.lanes)
        return "-" if met is None else "yes" if met else "no"


def header(compared: Compared) -> str:
    """The table's first lines."""
    peer = compared.value
    ours = "redis 2" if compared is Compared.SELF else "ours"
    line = "  " + LAYOUT.format(
        "", peer, ours, f"{peer} / {ours}", "goal", "goal met", f"{peer} ops/s", f"{ours} ops/s"
    )
    return f"{line}\n{'-' * len(line)}"


def table_line(outcome: Outcome, compared: Compared) -> str:
    """One row of the table."""
    row = outcome.row
    if outcome.lanes is None:
        return f"{row.title:<32}failed: {outcome.failure}"
    ratio = cost_ratio(outcome.lanes)
    cells = [cost_text(costs(outcome.lanes[lane]).median, row.unit) for lane in (REDIS, OURS)]
    speeds = [rates(outcome.lanes[lane]) for lane in (REDIS, OURS)]
    return LAYOUT.format(
        row.title,
        *cells,
        f"{ratio.median:.2f} ({ratio.low:.2f}-{ratio.high:.2f})",
        goal_text(row, compared),
        outcome.verdict(compared),
        *(f"{speed.median:,.0f}" if speed else "-" for speed in speeds),
    ).rstrip()


def goal_text(row: Row, compared: Compared) -> str:
    """The ratio that a row has to reach."""
    match compared:
        case Compared.REDIS | Compared.NATS:
            return row.goal.text()
        case Compared.SELF:
            return f"{SAME_LOW:.2f} to {SAME_HIGH:.2f}"
        case Compared.EARLIER:
            return f">= {EARLIER_LOW:.2f}"


def cost_text(cost: float, unit: str) -> str:
    """A cost in readable form: 812 ns, 12.4 us, 19.0 B, 1.10 x."""
    if unit.startswith("bytes/"):
        return f"{cost:.1f} B"
    if unit == "us":
        return f"{cost:,.0f} us"
    if unit == "us/entry":
        return f"{cost:.2f} us"
    if unit == "MB":
        return f"{cost:.1f} MB"
    if unit == "% more":
        return f"{cost:.1f} %"
    if unit == "times":
        return f"{cost:.2f} x"
    return f"{cost:,.0f} ns" if cost < 10_000 else f"{cost / 1000:,.1f} us"


def summary(outcomes: Sequence[Outcome], compared: Compared, seconds: float) -> str:
    """The last lines: how many rows reach their goals, and which do not."""
    verdicts = {outcome.row.name: outcome.verdict(compared) for outcome in outcomes}
    judged = [name for name, verdict in verdicts.items() if verdict != "-"]
    short = [name for name in judged if verdicts[name] != "yes"]
    text = f"{len(judged) - len(short)} of {len(judged)} rows meet their goal, in {seconds:.0f} s."
    return text + (f" Not: {', '.join(short)}." if short else "")


def as_json(
    outcomes: Sequence[Outcome],
    machine: dict[str, Any],
    method: dict[str, Any],
    compared: Compared,
    seconds: float,
) -> dict[str, Any]:
    """The whole run as JSON."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {
        "format": FORMAT,
        "date": now,
        "seconds": round(seconds, 1),
        "self_check": compared is Compared.SELF,
        "compared_with": compared.value,
        "machine": machine,
        "method": method,
        "rows": [row_json(outcome, compared) for outcome in outcomes],
    }


def row_json(outcome: Outcome, compared: Compared) -> dict[str, Any]:
    """One row: its description, readings and results."""
    row = outcome.row
    made: dict[str, Any] = {
        "name": row.name,
        "section": row.section,
        "title": row.title,
        "unit": row.unit,
        "goal": asdict(row.goal if compared in {Compared.REDIS, Compared.NATS} else NO_GOAL),
        "meets_goal": outcome.verdict(compared),
    }
    if outcome.lanes is None:
        return {**made, "failure": outcome.failure}
    made["ratio"] = asdict(cost_ratio(outcome.lanes))
    rate = rate_ratio(outcome.lanes)
    made["ops_ratio"] = asdict(rate) if rate else None
    for lane in (REDIS, OURS):
        made[lane] = lane_json(outcome.lanes[lane])
    extras = [lane for lane in outcome.lanes if lane not in (REDIS, OURS)]
    made["extras"] = {
        lane: {**lane_json(outcome.lanes[lane]), "ratio": asdict(cost_ratio(outcome.lanes, lane))}
        for lane in extras
    }
    return made


def lane_json(readings: Sequence[Reading]) -> dict[str, Any]:
    """One lane: medians with extremes, and every round."""
    speed = rates(readings)
    return {
        "cost": asdict(costs(readings)),
        "ops_per_s": asdict(speed) if speed else None,
        "rounds": [asdict(reading) for reading in readings],
    }


def write_json(report: dict[str, Any], path: Path) -> None:
    """Write the report atomically, so that no reader sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(report, indent=1) + "\n")
    new.replace(path)


def machine_facts(versions: dict[str, str]) -> dict[str, Any]:
    """The machine and the programs; `versions` has the versions of the servers, by lane."""
    cpu_info = Path("/proc/cpuinfo").read_text()
    memory = Path("/proc/meminfo").read_text()
    return {
        "cpu": next(field_values(cpu_info, "model name"), platform.machine()),
        "cores": os.cpu_count(),
        "memory_gib": round(int(next(field_values(memory, "MemTotal")).split()[0]) / 2**20, 1),
        "kernel": platform.release(),
        "system": platform.system(),
        "python": platform.python_version(),
        "redis": versions.get(REDIS) or "unknown",
        "millstream": versions.get(OURS) or installed_version(),
        "load_average": round(os.getloadavg()[0], 2),
    }


def installed_version() -> str:
    """The version of millstream installed with the benchmark."""
    try:
        return importlib.metadata.version("millstream")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def field_values(text: str, name: str) -> Iterator[str]:
    """The values of `name : value` lines, as in /proc."""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            yield value.strip()


def machine_line(report: dict[str, Any]) -> str:
    """The machine and the versions in one line."""
    machine = report["machine"]
    redis = f"Redis {machine['redis']}"
    millstream = f"millstream {machine['millstream']}"
    programs = {
        Compared.REDIS: f"{redis}, {millstream}",
        Compared.SELF: redis,
        Compared.EARLIER: f"{millstream} and an earlier build",
        Compared.NATS: f"NATS {machine['redis']}, {millstream}",
    }
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['system']} {machine['kernel']}, "
        f"Python {machine['python']}; {programs[Compared(report['compared_with'])]}; "
        f"{report['date'][:10]}"
    )

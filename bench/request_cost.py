"""The cost of one request, one client at a time: `python -m bench.request_cost`.

For both servers and each command, it prints a table of the parts of a request in instructions of
user space (callgrind), the system calls (strace), and the CPU time with the share of the kernel
(/proc/PID/stat). A function without a part of its own, such as those of Python and the C library,
counts for the functions that call it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.datasets import KEY, SENSOR_ENTRY
from bench.figures import BenchError
from bench.harness import JOURNAL_OFF
from bench.server import UTIME_FIELD, Server, pick_cores
from bench.wire import Client

Words = tuple[str, ...]
Function = tuple[str, str]
"""The object file and the name of a function."""

GROUP = "g"
START_TIMEOUT_S = 300.0
STRACE_REQUESTS = 2_000
NONE = "other"
PERIODIC = "periodic"
PARTS = ("loop", "parse", "look-up", "turn", "handler", "effects", "reply", NONE)
"""In the order of a request. `turn` is what surrounds the requests of one arrival: clocks, limits,
statistics, the end of the tick. Periodic work is left out: under callgrind a second has few
requests."""

OURS_PARTS = {
    PERIODIC: r" uv__run_timers$|__uvtimer_callback",
    "loop": r"/uvloop/|/server/net/",
    "parse": r"/server/protocol/resp\.|/runtime/arguments\.",
    "look-up": r"/execution/(lookup|admission)\.|/access/permission\.",
    "turn": r"/server/execution/|/server/monitor/",
    "effects": r"/runtime/(stream_)?effects\.",
    "reply": r"/runtime/replies\.|/protocol/outbox\.|/encoding\.",
    "handler": r"/commands/|/storage/|/ids\.",
}
REDIS_PARTS = {
    PERIODIC: r" (\w*Cron|processTimeEvents)$",
    "loop": r" (ae[A-Z]\w+|main|beforeSleep|afterSleep|readQueryFromClient|conn\w+|writeToClient"
    r"|handleClientsWithPendingWrites\w*)$",
    "parse": r" process(Multibulk|Inline|Input)Buffer$",
    "look-up": r" (processCommand|lookupCommand\w*|ACL\w+)$",
    "turn": r" (call|afterCommand|processCommandAndResetClient|slowlog\w+|resetClient"
    r"|handleBlockedClients\w*|handleClientsBlockedOnKeys)$",
    "effects": r" (alsoPropagate|propagate\w*|feed\w+|preventCommandPropagation)$",
    "reply": r" (addReply\w*|_addReply\w*|prepareClientToWrite|trackingHandle\w*)$",
    "handler": r" \w+Command$",
}


@dataclass(frozen=True)
class Work:
    """Requests of one client, or a blocked read and the append that wakes it."""

    words: Words
    prepare: Sequence[Words] = ()
    wakes: bool = False

    def run(self, server: Server, times: int) -> None:
        with Client(server.port) as client, Client(server.port) as writer:
            for _ in range(times):
                if not self.wakes:
                    client.call(*self.words)
                    continue
                seen_ns = server.cpu_ns()
                client.send_call(*self.words)
                server.wait_until_asleep(seen_ns)
                writer.call(*APPEND)
                client.receive(self.words[0])


APPEND = ("XADD", KEY, "*", *SENSOR_ENTRY)
CREATE = ("XGROUP", "CREATE", KEY, GROUP, "$", "MKSTREAM")
READ_GROUP = ("XREADGROUP", "GROUP", GROUP, "c", "COUNT", "1")
WORKS: Mapping[str, Work] = {
    "PING": Work(("PING",)),
    "XADD": Work(APPEND),
    "XREADGROUP": Work((*READ_GROUP, "STREAMS", KEY, ">"), (CREATE, APPEND)),
    "XACK": Work(("XACK", KEY, GROUP, "1-1"), (CREATE, APPEND)),
    "woken XREAD and XADD": Work(("XREAD", "BLOCK", "0", "STREAMS", KEY, "$"), wakes=True),
    "woken XREADGROUP and XADD": Work(
        (*READ_GROUP, "NOACK", "BLOCK", "0", "STREAMS", KEY, ">"), (CREATE,), wakes=True
    ),
}


@dataclass
class Cost:
    """The cost of one request."""

    parts: dict[str, float] = field(default_factory=dict)
    calls: dict[str, float] = field(default_factory=dict)
    cpu_us: float = 0.0
    kernel_share: float = 0.0


# Instructions


@dataclass
class Profile:
    """A file of callgrind: the instructions of each function alone, and of its callers in it."""

    own: dict[Function, int] = field(default_factory=lambda: defaultdict(int))
    callers: dict[Function, dict[Function, int]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(int))
    )


NAME = re.compile(r"(c?(?:ob|fn))=\((\d+)\)(?: (.*))?")


def read_profile(path: Path) -> Profile:
    profile = Profile()
    names: dict[tuple[str, str], str] = {}
    current = {"ob": "", "fn": "", "cob": "", "cfn": ""}
    is_call = False
    for line in path.read_text(errors="replace").splitlines():
        if found := NAME.match(line):
            kind, number, name = found.groups()
            place = (kind.removeprefix("c"), number)
            if name is not None:
                names[place] = name
            current[kind] = names[place]
            if kind == "ob":
                current["cob"] = ""
        elif line.startswith("calls="):
            is_call = True
        elif line and line[0] in "0123456789+-*":
            cost = int(line.split()[1])
            caller = (current["ob"], current["fn"])
            if is_call:
                called = (current["cob"] or current["ob"], current["cfn"])
                if called != caller:
                    profile.callers[called][caller] += cost
                current["cob"] = ""
            else:
                profile.own[caller] += cost
            is_call = False
    return profile


def by_part(profile: Profile, parts: Mapping[str, str]) -> dict[str, float]:
    """The instructions of each part. Those of a function without a part go to its callers, in
    proportion to what they had it do."""
    patterns = {part: re.compile(pattern) for part, pattern in parts.items()}
    totals: dict[str, float] = defaultdict(float)
    left: dict[Function, float] = {name: float(cost) for name, cost in profile.own.items()}
    for _ in range(200):
        passed: dict[Function, float] = defaultdict(float)
        for name, cost in left.items():
            text = " ".join(name)
            part = next((part for part, found in patterns.items() if found.search(text)), None)
            callers = profile.callers.get(name, {})
            total = sum(callers.values())
            if part is None and total:
                for caller, share in callers.items():
                    passed[caller] += cost * share / total
            else:
                totals[part or NONE] += cost
        left = passed
    totals[NONE] += sum(left.values())
    return totals


def instructions(
    command: Sequence[str], parts: Mapping[str, str], work: Work, times: int, core: int
) -> dict[str, float]:
    """The parts of one request: the difference of two numbers of requests, without the start."""
    totals: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for count in (times, 3 * times):
            path = Path(folder) / f"{count}"
            server = start(
                ["valgrind", "--tool=callgrind", f"--callgrind-out-file={path}", *command], core
            )
            try:
                prepared(server, work).run(server, count)
            finally:
                server.stop()
            totals.append(by_part(read_profile(path), parts))
    return {part: (totals[1][part] - totals[0][part]) / (2 * times) for part in PARTS}


# System calls and time


def system_calls(server: Server, work: Work) -> dict[str, float]:
    """The system calls of all threads for one request."""
    with tempfile.NamedTemporaryFile() as report:
        line = ["strace", "-c", "-f", "-o", report.name, "-p", str(server.pid)]
        tracer = subprocess.Popen(line, stderr=subprocess.DEVNULL)
        time.sleep(1)
        work.run(server, STRACE_REQUESTS)
        tracer.terminate()
        tracer.wait()
        rows = [line.split() for line in Path(report.name).read_text().splitlines()]
    counts = {row[-1]: int(row[3]) / STRACE_REQUESTS for row in rows if is_count(row)}
    return {name: count for name, count in counts.items() if count >= 0.01}


def is_count(row: Sequence[str]) -> bool:
    return len(row) >= 5 and row[3].isdecimal() and row[-1] != "total"


def processor_time(server: Server, work: Work, times: int) -> tuple[float, float]:
    """The CPU time of one request in microseconds, and the kernel's share of it."""
    before, before_ns = ticks(server), server.cpu_ns()
    work.run(server, times)
    user, kernel = (after - early for after, early in zip(ticks(server), before, strict=True))
    return (server.cpu_ns() - before_ns) / 1000 / times, kernel / max(1, user + kernel)


def ticks(server: Server) -> tuple[int, int]:
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[UTIME_FIELD]), int(fields[UTIME_FIELD + 1])


# Both servers


def start(command: Sequence[str], core: int) -> Server:
    # To use huge pages, millstream would execute itself again, outside of callgrind.
    return Server(command, (*JOURNAL_OFF, "--disable-thp", "yes"), core, START_TIMEOUT_S)


def prepared(server: Server, work: Work) -> Work:
    with Client(server.port) as client:
        client.call("FLUSHALL")
        for words in work.prepare:
            client.call(*words)
    return work


def cost_of(
    command: Sequence[str],
    parts: Mapping[str, str],
    work: Work,
    options: argparse.Namespace,
) -> Cost:
    core = pick_cores()[0]
    cost = Cost()
    server = start(command, core)
    try:
        prepared(server, work).run(server, options.requests // 10)
        cost.cpu_us, cost.kernel_share = processor_time(server, work, options.requests)
        if not options.without_strace:
            cost.calls = system_calls(server, prepared(server, work))
    finally:
        server.stop()
    if not options.without_callgrind:
        cost.parts = instructions(command, parts, work, options.counted, core)
    return cost


def table(name: str, costs: Mapping[str, Cost]) -> str:
    """The costs of one command as a table in Markdown."""
    lines = [f"| {name} | {' | '.join(costs)} |", "|---|" + "---|" * len(costs)]

    def add(title: str, shown: Callable[[Cost], str]) -> None:
        lines.append(f"| {title} | {' | '.join(shown(cost) for cost in costs.values())} |")

    for part in PARTS:
        if any(round(cost.parts.get(part, 0)) for cost in costs.values()):
            add(part, lambda cost, part=part: f"{cost.parts.get(part, 0):,.0f}")  # type: ignore[misc]
    add("all instructions in user space", lambda cost: f"{sum(cost.parts.values()):,.0f}")
    add("system calls", lambda cost: ", ".join(f"{n} {c:.2f}" for n, c in cost.calls.items()))
    add("CPU time, of which in the kernel", lambda cost: f"{cost.cpu_us:.1f} us, "
        f"{cost.kernel_share:.0%}")  # fmt: skip
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.request_cost", description=__doc__)
    parser.add_argument("--only", default=",".join(WORKS), help="commands, separated by commas")
    parser.add_argument("--requests", type=int, default=20_000, help="for the CPU time")
    parser.add_argument("--counted", type=int, default=1_000, help="for the instructions")
    parser.add_argument("--without-callgrind", action="store_true")
    parser.add_argument("--without-strace", action="store_true")
    parser.add_argument("--redis", default="redis-server")
    options = parser.parse_args()
    program = str(Path(sys.executable).with_name("millstream-server"))
    lanes = {
        "Redis": ([options.redis], REDIS_PARTS),
        "millstream": ([sys.executable, program], OURS_PARTS),
    }
    os.environ["PYTHONHASHSEED"] = "0"
    try:
        for name in options.only.split(","):
            costs = {
                lane: cost_of(command, parts, WORKS[name], options)
                for lane, (command, parts) in lanes.items()
            }
            print(table(name, costs), end="\n\n", flush=True)
    except (BenchError, KeyError, FileNotFoundError) as error:
        print(f"request_cost: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

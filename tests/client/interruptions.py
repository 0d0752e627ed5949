"""Uses objects of the client after an interruption: `python -m tests.client.interruptions URL`.

Each program is run once for every chosen statement of the client and of redis-py's connections,
and interrupted there. Then its objects are used again. Options are the names of programs, and
`--every N`: every Nth statement only. The faults are printed, and the number of runs.
"""

from __future__ import annotations

import argparse
import logging
import os
from itertools import count
from threading import Thread
from typing import Any

from tests.client.interrupting import PLACES, STATEMENTS, chosen, instrument

instrument("millstream.client", "redis.connection", "redis.client", "redis.retry")

from millstream.client import MillstreamError, RecordsExpired, connect  # noqa: E402

KEYS = (f"{os.getpid()}.{number}" for number in count())


class Program:
    """`run` is interrupted; `check` uses the objects again, and raises AssertionError."""

    def __init__(self, url: str, admin: Any) -> None:
        self.admin = admin
        self.key = next(KEYS)
        self.ms: Any = connect(url, max_connections=4)
        self.prepare()

    def prepare(self) -> None:
        pass

    def run(self) -> None:
        raise NotImplementedError

    def check(self) -> None:
        raise NotImplementedError

    def fill(self, numbers: range, *keys: str) -> list[tuple[Any, str]]:
        """Append entries in turn; their IDs and keys."""
        with self.admin.pipeline(transaction=False) as pipe:
            placed = [keys[n // 3 % len(keys)] for n in numbers]
            for n, key in zip(numbers, placed, strict=True):
                pipe.tappend(key, {"n": n})
            return list(zip(pipe.execute(), placed, strict=True))

    def numbers(self) -> list[str]:
        return [record["n"] for record in self.admin.trange(self.key)]


class Plain(Program):
    def run(self) -> None:
        for n in range(2):
            self.ms.tappend(self.key, {"n": n})

    def append(self, n: int) -> Any:
        return self.ms.tappend(self.key, {"n": n})

    def check(self) -> None:
        for n in range(10, 13):
            new = self.append(n)
            [found] = self.admin.trange(self.key, new, new)
            assert found["n"] == str(n), "a reply belongs to an earlier request"
        thread = Thread(target=self.append, args=[13], daemon=True)
        thread.start()
        thread.join(5)
        assert not thread.is_alive(), "a lock was not released"
        numbers = self.numbers()
        assert len(set(numbers)) == len(numbers), "an entry was appended twice"


class Pipelines(Plain):
    def run(self) -> None:
        with self.ms.pipeline() as pipe:
            pipe.watch(self.key)
            pipe.tinfo(self.key)
            pipe.multi()
            pipe.tappend(self.key, {"n": 0}).tappend(self.key, {"n": 1}).execute()


class Append(Plain):
    def prepare(self) -> None:
        self.writer = self.ms.writer(self.key, "w")

    def run(self) -> None:
        for n in range(2):
            self.writer.append({"n": n})

    def append(self, n: int) -> Any:
        return self.writer.append({"n": n})


class Many(Append):
    def run(self) -> None:
        self.writer.append_many([{"n": n} for n in range(5)], batch=2)

    def append(self, n: int) -> Any:
        self.writer.append_many([{"n": n}])
        return self.admin.tinfo(self.key)["last-id"]


class Produce(Many):
    def prepare(self) -> None:
        self.producer = self.ms.producer(self.key, max_batch=2, linger=0)

    def run(self) -> None:
        for n in range(3):
            self.producer.append({"n": n})
        self.producer.flush()
        self.producer.close()

    def append(self, n: int) -> Any:
        self.producer.append({"n": n}).result(timeout=5)
        return self.admin.tinfo(self.key)["last-id"]

    def check(self) -> None:
        try:
            super().check()
        except MillstreamError:  # the end of the program was reached
            assert self.producer._state._closing
        self.producer.close()
        assert self.producer.pending == 0, "an entry is left"
        numbers = [n for n in self.numbers() if int(n) < 3]
        assert numbers == ["0", "1", "2"][: len(numbers)], "an entry is missing or out of order"


class Facts(Append):
    def run(self) -> None:
        with self.writer.fact() as fact:
            fact["n"] = 0
        one, two = self.writer.facts(2)
        one["n"] = 1
        one.complete()
        two.abort()
        self.writer.fact()
        self.writer.close()

    def check(self) -> None:
        info = self.admin.tinfo(self.key)
        held = 0 if info is None else info["reservations"]
        assert held <= self.writer.pending + self.writer._state._orphans, "an unknown reservation"
        self.writer.close()
        info = self.admin.tinfo(self.key)
        assert info is None or info["reservations"] == 0, "a reservation survives close()"
        with self.ms.writer(self.key, "w") as self.writer:
            super().check()


class Read(Program):
    def prepare(self) -> None:
        other = next(KEYS)
        self.wanted = sorted(self.fill(range(24), self.key, other))
        self.stream = self.ms.stream([self.key, other], "trim_horizon", batch=4)
        self.found: list[tuple[Any, str]] = []

    def read(self, timeout: float) -> bool:
        record = self.stream.read(timeout=timeout)
        if record is not None:
            self.found.append((record.id, record.shard))
        return record is not None

    def run(self) -> None:
        while len(self.found) < 16:
            self.read(5)

    def check(self) -> None:
        while len(self.found) < 23 and self.read(5):
            pass
        self.read(0.01)
        assert len(set(self.found)) == len(self.found), "a record was returned twice"
        assert self.found == sorted(self.found), "the order is wrong"
        assert len(set(self.wanted) - set(self.found)) <= 1, "more than one record was skipped"
        [new] = self.fill(range(1), self.key)
        assert self.read(5), "nothing is read any more"
        assert self.found[-1] == new, "a record was skipped"


class Split(Read):
    def prepare(self) -> None:
        children = next(KEYS), next(KEYS)
        self.wanted = self.fill(range(6), self.key)
        self.admin.tseal(self.key, *children)
        self.wanted += self.fill(range(12), *children)
        for child in children:
            self.admin.tseal(child)
        self.stream = self.ms.stream(self.key, "trim_horizon", batch=4)
        self.found = []

    def run(self) -> None:
        for record in self.stream.follow():
            self.found.append((record.id, record.shard))

    def check(self) -> None:
        self.run()
        assert self.stream.ended
        assert len(set(self.found)) == len(self.found), "a record was returned twice"
        assert self.found == sorted(self.found), "the order is wrong"
        assert len(set(self.wanted) - set(self.found)) <= 1, "more than one record was skipped"


class Gap(Program):
    def prepare(self) -> None:
        self.stream = self.ms.stream(self.key, "trim_horizon")
        self.fill(range(1), self.key)
        assert self.stream.read(timeout=5) is not None
        self.fill(range(7), self.key)
        self.admin.tappev(self.key, count=3)
        self.found: list[str] = []
        self.raised = 0

    def run(self) -> None:
        while len(self.found) < 3:
            try:
                self.found.append(self.stream.read(timeout=5)["n"])
            except RecordsExpired:
                self.raised += 1

    def check(self) -> None:
        self.fill(range(9, 10), self.key)
        while self.found[-1:] != ["9"]:
            try:
                self.found.append(self.stream.read(timeout=5)["n"])
            except RecordsExpired:
                self.raised += 1
        assert self.raised <= 1 == len(self.stream.gaps), "a gap was not reported once"
        assert len(self.found) >= 3, "more than one record was skipped"


class Consume(Program):
    def prepare(self) -> None:
        self.fill(range(12), self.key)
        options = {"retry": 60, "position": "trim_horizon", "batch": 4}
        self.consumer = self.ms.consumer(self.key, "g", **options)
        self.found: list[str] = []

    def run(self) -> None:
        for record in self.consumer.follow(ack=True):
            self.found.append(record["n"])
            if len(self.found) == 8:
                self.consumer.stop()

    def check(self) -> None:
        self.fill(range(99, 100), self.key)
        while self.found[-1:] != ["99"]:
            self.found.append(self.consumer.read(timeout=5)["n"])
        assert len(set(self.found)) == len(self.found), "an entry was returned twice"
        assert len(self.found) >= 13 - 4, "more than one batch was skipped"
        self.consumer.stop()
        assert list(self.consumer.follow()) == [], "a stop was lost"
        self.consumer.close()


WRITING = (Plain, Pipelines, Append, Many, Produce, Facts)
READING = (Read, Split, Gap, Consume)
PROGRAMS = {kind.__name__: kind for kind in (*WRITING, *READING)}


def faults(kind: type[Program], url: str, admin: Any, every: int) -> int:
    """Print the faults of a program; the number of its runs."""
    whole = kind(url, admin)
    places = chosen(STATEMENTS.run(whole.run))[::every]
    for at in places:
        program = kind(url, admin)
        seen = STATEMENTS.run(program.run, at)
        try:
            program.check()
        except Exception as error:
            where = PLACES[seen[at]] if at < len(seen) else "the end"
            print(f"{kind.__name__}, interrupted at {where}: {type(error).__name__}: {error}")
        program.ms.close()
    return len(places)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("programs", nargs="*", default=[])
    parser.add_argument("--every", type=int, default=1)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    with connect(options.url) as admin:
        names = options.programs or list(PROGRAMS)
        runs = sum(faults(PROGRAMS[name], options.url, admin, options.every) for name in names)
    print(f"{runs} runs", flush=True)
    os._exit(0)  # at the end of the interpreter, the statements can no longer be counted


if __name__ == "__main__":
    main()

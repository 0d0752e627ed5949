"""A worker as a program, for tests: it does what its jobs say.

    python worker_program.py URL CONCURRENCY

It prints a line when it begins, and appends an entry to the stream `done` for each job that it has
done. SIGTERM ends it in an orderly way. Before a job of the kind "crashes once" kills it, the jobs
that it had done when this job began are acknowledged; they are in the stream `crashed`.
"""

import os
import signal
import sys
import threading
import time

from millstream.client import Dead, Job, Retry, connect

url, concurrency = sys.argv[1:]
ms = connect(url)
worker = ms.worker(
    "work",
    "crew",
    concurrency=int(concurrency),
    timeout=1,
    backoff=[0.05],
    max_deliver=4,
    dead_letter="work:dead",
    time_limit=2.5,
)
done: list[tuple[str, str]] = []
"""The jobs that this process has done: the ID, and the number."""


def crash_after_acknowledgements() -> None:
    before = list(done)
    while any(ms.xpending_range("work", "crew", id, id, 1) for id, _ in before):
        time.sleep(0.01)
    ms.tappend("crashed", {"pid": os.getpid(), "done": " ".join(n for _, n in before)})
    os.kill(os.getpid(), signal.SIGKILL)


@worker.handler
def handle(job: Job[str]) -> None:
    kind, first = job["kind"], job.attempt == 1
    if kind == "fails" or (kind == "fails once" and first):
        raise ValueError(f"{kind}, attempt {job.attempt}")
    if kind == "is dead":
        raise Dead("it can never succeed")
    if kind == "comes later" and first:
        raise Retry("not now", delay=0.2)
    if kind == "hangs" or (kind == "hangs once" and first):
        threading.Event().wait()
    if kind == "crashes":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "crashes once" and first:
        crash_after_acknowledgements()
    if kind == "takes longer than the timeout":
        time.sleep(1.5)
    if job.lost:
        return
    told = {"n": job["n"], "kind": kind, "attempt": job.attempt, "pid": os.getpid()}
    ms.tappend("done", told)
    done.append((f"{job.id.ms}-{job.id.seq}", job["n"]))


signal.signal(signal.SIGTERM, lambda *_: worker.stop())
print("ready", flush=True)
worker.run()

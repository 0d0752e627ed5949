"""The directives of the process: how signals stop it, and its place among the processes that the
kernel ends when memory runs out."""

from __future__ import annotations

from functools import partial

from millstream.server.config.apply import READ, oom_score
from millstream.server.config.kinds import (
    INT32_MAX,
    SCORE_MODE,
    SCORES,
    STOPPING,
    directive,
    integer,
)

process = partial(directive, section="Process")


class ProcessDirectives:
    """Attributes of Config."""

    shutdown_on_sigterm: str = process(
        "default", STOPPING,
        "how SIGTERM stops the server, in the words of SHUTDOWN: `save` or `nosave`, `now`: do not "
        "wait for replicas, `force`: also if the data cannot be saved", apply=READ,
    )  # fmt: skip
    shutdown_on_sigint: str = process("default", STOPPING, "the same for SIGINT", apply=READ)
    lame_duck_period: int = process(
        60, integer(1, INT32_MAX),
        "seconds over which SIGUSR2 disconnects clients, before it stops the server", apply=READ,
    )  # fmt: skip
    oom_score_adj: str = process(
        "no", SCORE_MODE,
        "set how likely the kernel ends this process when memory runs out: `yes` or `relative`: "
        "oom-score-adj-values are added to the value at start, `absolute`: they replace it",
        apply=oom_score,
    )  # fmt: skip
    oom_score_adj_values: str = process(
        "0 200 800", SCORES,
        "the values for a primary, for a replica, and for a child process of Redis",
        apply=oom_score,
    )  # fmt: skip

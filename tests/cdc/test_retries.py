"""The times of retries of stopped tables, and the imports of Spark's workers."""

from __future__ import annotations

import sys
from pathlib import Path

from millstream.cdc.applier.retries import Retries
from millstream.cdc.applier.spark_daemon import without_archives

KEY = ("shop", "eu", "public.t")


def test_waits_double_up_to_the_maximum() -> None:
    retries = Retries(max_s=30)
    assert retries.is_due(KEY, 0)
    assert [retries.stopped(KEY, 100) for _ in range(5)] == [5, 10, 20, 30, 30]
    assert not retries.is_due(KEY, 129.9)
    assert retries.is_due(KEY, 130)


def test_an_unattempted_copy_is_not_waited_for() -> None:
    retries = Retries(max_s=300)
    retries.saw_copy(KEY, 7)
    retries.stopped(KEY, 100)
    assert not retries.is_due(KEY, 100)
    retries.saw_copy(KEY, 8)
    assert retries.is_due(KEY, 100)


def test_an_altered_target_is_not_waited_for() -> None:
    retries = Retries(max_s=300)
    retries.saw_target(KEY, "narrow")
    retries.stopped(KEY, 100)
    assert not retries.is_due(KEY, 100)
    retries.saw_target(KEY, "wide")
    assert retries.is_due(KEY, 100)


def test_a_resumed_table_is_retried_at_once_with_the_first_delay() -> None:
    retries = Retries(max_s=300)
    for _ in range(4):
        retries.stopped(KEY, 100)
    retries.resume(KEY)
    assert retries.is_due(KEY, 100)
    assert retries.stopped(KEY, 100) == 5


def test_a_table_that_is_no_longer_stopped_begins_again() -> None:
    retries = Retries(max_s=300)
    retries.stopped(KEY, 100)
    retries.forget(KEY)
    assert retries.is_due(KEY, 100)
    assert retries.stopped(KEY, 100) == 5


def test_only_the_archives_of_the_same_installation_are_left_out() -> None:
    import pyspark

    folder = Path(pyspark.__file__).parent
    own = str(folder / "python" / "lib" / "pyspark.zip")
    paths = [own, "/elsewhere/pyspark.zip", *sys.path]
    assert without_archives(paths) == ["/elsewhere/pyspark.zip", *sys.path]

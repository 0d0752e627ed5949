"""`millstream cdc run` with a real source: what it reads is in millstream, once and in order."""

from __future__ import annotations

from typing import Any

import psycopg
from tests.support.pipelines import Pipeline, url_of
from tests.support.waiting import wait_until

Source = psycopg.Connection[Any]


def test_a_copy_and_the_changes_after_it_arrive(pipeline: Pipeline, source: Source) -> None:
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, item text)")
    source.execute("INSERT INTO orders VALUES (1, 'tea'), (2, NULL)")
    pipeline.configure({"eu": url_of(source)}, "orders = {}").start()
    pipeline.wait_copied("public.orders")
    assert pipeline.copied_rows("public.orders") == [["1", "tea"], ["2", "\\N"]]
    source.execute("INSERT INTO orders VALUES (3, 'salt')")
    source.execute("DELETE FROM orders WHERE id = 1")
    assert pipeline.wait_changes("public.orders", 2) == [
        {"@op": "insert", "id": "3", "item": "salt"},
        {"@op": "delete", "@old:id": "1"},
    ]
    cuts = wait_until(lambda: pipeline.entries(""), lambda found: found[-1:] != [])
    assert sum(int(cut["rows"]) for _, cut in cuts) == 2
    assert pipeline.end() == 0
    assert pipeline.alive() == {}

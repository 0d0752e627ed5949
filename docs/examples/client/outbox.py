"""An outbox: orders in SQLite, each reported in a stream exactly once.

    python outbox.py orders.db 20       stores and reports 20 orders

Stop it at any moment, also with kill -9, and start it again: every order in the database is in the
stream, once, and nothing else is.
"""

import os
import sqlite3
import sys

from millstream.client import FactAlreadyDone, Millstream, NotReserved, ReservationLost, connect

URL = os.environ.get("MILLSTREAM_URL", "redis://localhost:6455")
STREAM, WRITER = "orders", "till-1"


def open_database(path: str) -> sqlite3.Connection:
    database = sqlite3.connect(path)
    database.execute(
        "CREATE TABLE IF NOT EXISTS orders"
        " (number INTEGER PRIMARY KEY, total INTEGER, entry_id TEXT, reported INTEGER DEFAULT 0)"
    )
    return database


def mark(database: sqlite3.Connection, number: int) -> None:
    with database:
        database.execute("UPDATE orders SET reported = 1 WHERE number = ?", (number,))


def finish(database: sqlite3.Connection, ms: Millstream) -> None:
    """Report the orders that an earlier run stored, and did not mark."""
    rows = database.execute("SELECT number, total, entry_id FROM orders WHERE reported = 0")
    for number, total, entry_id in rows.fetchall():
        fields = {"order": number, "total": total}
        try:
            ms.tcomplete(STREAM, WRITER, entry_id, fields)
        except FactAlreadyDone:
            pass
        except (ReservationLost, NotReserved):
            report_again(database, ms, number, fields)
        mark(database, number)


def report_again(
    database: sqlite3.Connection, ms: Millstream, number: int, fields: dict[str, int]
) -> None:
    """The lease is over, or the ID is not this order's: the order gets another one."""
    with ms.writer(STREAM, WRITER) as writer, writer.fact() as fact:
        with database:
            database.execute(
                "UPDATE orders SET entry_id = ? WHERE number = ?", (str(fact.id), number)
            )
        fact.update(fields)


def main() -> None:
    path, count = sys.argv[1], int(sys.argv[2])
    database = open_database(path)
    with connect(URL) as ms:
        finish(database, ms)
        # take_over: what was reserved by an earlier run, and not stored, is given up.
        with ms.writer(STREAM, WRITER, take_over=True) as writer:
            for total in range(count):
                with writer.fact() as fact:  # readers do not pass this ID while the fact is open
                    with database:
                        cursor = database.execute(
                            "INSERT INTO orders (total, entry_id) VALUES (?, ?)",
                            (total, str(fact.id)),
                        )
                    number = cursor.lastrowid
                    assert number is not None  # SQLite has inserted a row
                    fact.update(order=number, total=total)
                mark(database, number)


if __name__ == "__main__":
    main()

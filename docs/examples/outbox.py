"""An outbox with reservations: orders in SQLite, each reported in a stream exactly once.

    python outbox.py orders.db 20       stores and reports 20 orders

Stop it at any moment, also with kill -9, and start it again: every order in the database is in the
stream, once, and nothing else is.
"""

import sqlite3
import sys

import redis

STREAM, WRITER = "orders", "till-1"


def open_database(path: str) -> sqlite3.Connection:
    database = sqlite3.connect(path)
    database.execute(
        "CREATE TABLE IF NOT EXISTS orders"
        " (number INTEGER PRIMARY KEY, total INTEGER, entry_id TEXT, reported INTEGER DEFAULT 0)"
    )
    return database


def store(database: sqlite3.Connection, server: redis.Redis, total: int) -> None:
    """Store an order together with the ID that its entry will have."""
    entry_id = server.execute_command("TRESERVE", STREAM, WRITER)
    with database:
        database.execute("INSERT INTO orders (total, entry_id) VALUES (?, ?)", (total, entry_id))


def report(database: sqlite3.Connection, server: redis.Redis) -> None:
    """Complete the entries of all orders that are not marked as reported."""
    rows = database.execute("SELECT number, total, entry_id FROM orders WHERE reported = 0")
    for number, total, entry_id in rows.fetchall():
        fields = ("order", number, "total", total)
        try:
            server.execute_command("TCOMPLETE", STREAM, WRITER, entry_id, *fields)
        except redis.ResponseError as error:
            if str(error).startswith(("FACTLOST", "NORESERVATION")):
                # The lease is over, or the ID is not this order's: the order gets another one.
                entry_id = server.execute_command("TRESERVE", STREAM, WRITER)
                with database:
                    database.execute(
                        "UPDATE orders SET entry_id = ? WHERE number = ?", (entry_id, number)
                    )
                server.execute_command("TCOMPLETE", STREAM, WRITER, entry_id, *fields)
            elif not str(error).startswith("FACTDONE"):
                raise
        with database:
            database.execute("UPDATE orders SET reported = 1 WHERE number = ?", (number,))


def main() -> None:
    path, count = sys.argv[1], int(sys.argv[2])
    port = int(sys.argv[3]) if len(sys.argv) > 3 else 6455
    server = redis.Redis(port=port, decode_responses=True)
    database = open_database(path)
    report(database, server)  # what was stored before the last stop, and not reported
    server.execute_command("TABORT", STREAM, WRITER)  # what was reserved, and not stored
    for number in range(count):
        store(database, server, total=number)
        report(database, server)


if __name__ == "__main__":
    main()

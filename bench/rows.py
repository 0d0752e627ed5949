"""The rows of the benchmark: one small function per row.

To add a row, write a function that returns lanes (readings of REDIS and OURS, one per round) and
decorate it with `@row(...)`. `Harness` has the kinds of measurement that most rows use. For other
kinds, take `harness.pair(name, directives)`, write a function that makes one `Reading` of a side,
and pass both sides to `harness.alternate`. Titles may contain `{large}` for the size of the large
stream. The order here is the order of the report; rows that share a pair of servers should follow
each other.
"""

from __future__ import annotations

from collections.abc import Callable

from bench import (
    access_rows,
    client_rows,
    cluster_rows,
    evict_rows,
    filter_rows,
    managed_rows,
    member_rows,
    metrics_rows,
    replica_rows,
    schedule_rows,
    small_rows,
    sync_rows,
    tls_rows,
    wake_rows,
    writer_rows,
)
from bench.command_rows import ALONE, MESSAGES, OTHERS, CommandRow
from bench.datasets import IOT, KEY, LOG, PAYLOAD, SENSOR_ENTRY, TEN_FIELD_ENTRY
from bench.fanout_rows import woken_readers
from bench.figures import NO_GOAL, OURS, REDIS, BenchError, Goal, Lanes, Reading, alone
from bench.harness import JOURNAL_OFF, OURS_X, Harness, Row
from bench.import_rows import imports, peak_memory
from bench.persistence_rows import (
    calm,
    deliveries,
    growth,
    journal_of,
    loads,
    replays,
    rewriting,
    saving,
    snapshots,
    stalls,
)

MILLION = 1_000_000
APPEND = "Append"
RANGE = "Range, 1 M entries"
RANGE_LARGE = "Range, {large} entries"
FILTER = "Range with WHERE against the range of all, 1 M entries"
GROUPS = "Groups, 1 M entries"
DIALECTS = "X commands against T commands"
MEMORY = "Memory"
SEEK = "Seek"
WAKING = "Blocked readers"
CONNECTIONS = "Connections and starts"
WRITERS = "Reservations, our server against itself"
SCHEDULES = "Scheduled entries, our server against itself"
RULES = "Groups with rules, our server against itself"
CLIENT = "The Python client against plain redis-py"
CLUSTER = "The gateway of a cluster, our server alone"
MEMBERS = "Members of a shard, our server alone"
METRICS = "Metrics, our server alone"
REPLICAS = "Replicas, appendfsync everysec"
JOURNAL = "Append with the journal on"
KEEPING = "Snapshot and start, {kept} entries"
SMALL = "Many small streams"
LARGE = "Large values"

ROWS: list[Row] = []


def row(
    name: str,
    section: str,
    title: str,
    goal: Goal = NO_GOAL,
    unit: str = "ns/op",
    full_only: bool = False,
) -> Callable[[Callable[[Harness], Lanes]], Row]:
    """Turn a measuring function into a row of the report."""

    def register(measure: Callable[[Harness], Lanes]) -> Row:
        made = Row(name, section, title, measure, goal, unit, full_only)
        ROWS.append(made)
        return made

    return register


def row_named(name: str) -> Row:
    return next(made for made in ROWS if made.name == name)


# Append


@row("append-p1", APPEND, "append, -P 1", Goal(ratio=1.0, rate_ratio=1.0))
def append_p1(harness: Harness) -> Lanes:
    return harness.appends(SENSOR_ENTRY, pipeline=1, full=400_000, quick=40_000)


@row("append-p16", APPEND, "append, -P 16", Goal(ratio=2.0))
def append_p16(harness: Harness) -> Lanes:
    return harness.appends(SENSOR_ENTRY, pipeline=16, full=3_200_000, quick=320_000)


@row("append-p100", APPEND, "append, -P 100", Goal(ratio=5.0))
def append_p100(harness: Harness) -> Lanes:
    return harness.appends(SENSOR_ENTRY, pipeline=100, full=5_000_000, quick=500_000)


@row("append-restricted-p100", APPEND, "append, key pattern, -P 100", Goal(ratio=4.75))
def append_restricted(harness: Harness) -> Lanes:
    """As append-p100, by a user who may use only the keys that a pattern matches."""
    user = ("--user", "default", "on", "nopass", "+@all", f"~{KEY}*")
    directives = (*JOURNAL_OFF, *user)
    return harness.appends(SENSOR_ENTRY, 100, 5_000_000, 500_000, directives=directives)


@row("append-patterns-p100", APPEND, "append, ten patterns, -P 100",
     Goal(cost_max=1.15), unit="times")  # fmt: skip
def append_patterns(harness: Harness) -> Lanes:
    return access_rows.ten_patterns(harness, full=2_500_000, quick=500_000)


@row("append-tls-p1", APPEND, "append over TLS, -P 1", Goal(ratio=0.95))
def append_tls_p1(harness: Harness) -> Lanes:
    return tls_rows.appends(harness, 1, full=200_000, quick=20_000)


@row("append-tls-p16", APPEND, "append over TLS, -P 16", Goal(ratio=1.4))
def append_tls_p16(harness: Harness) -> Lanes:
    return tls_rows.appends(harness, 16, full=1_600_000, quick=160_000)


@row("append-tls-p100", APPEND, "append over TLS, -P 100", Goal(ratio=2.0))
def append_tls_p100(harness: Harness) -> Lanes:
    return tls_rows.appends(harness, 100, full=2_500_000, quick=250_000)


@row("append-keys-p16", APPEND, "append to 10,000 keys, -P 16", Goal(ratio=1.6))
def append_keys(harness: Harness) -> Lanes:
    return harness.appends(SENSOR_ENTRY, pipeline=16, full=3_200_000, quick=640_000, keys=10_000)


@row("append-10-fields-p16", APPEND, "append 10 fields, -P 16", Goal(ratio=1.6))
def append_ten_fields(harness: Harness) -> Lanes:
    return harness.appends(TEN_FIELD_ENTRY, pipeline=16, full=1_600_000, quick=160_000)


@row("append-10-fields-p100", APPEND, "append 10 fields, -P 100")
def append_ten_fields_p100(harness: Harness) -> Lanes:
    return harness.appends(TEN_FIELD_ENTRY, pipeline=100, full=1_600_000, quick=160_000)


# Commands for each message or poll, and those next to them


def add_commands(section: str, commands: tuple[CommandRow, ...]) -> None:
    for command in commands:
        row(command.name, section, command.title, Goal(ratio=command.ratio))(command.measure)


add_commands("For each message or poll, -P 16", MESSAGES)
add_commands("Other commands, -P 16", OTHERS)
add_commands("One request at a time", ALONE)


# Memory


def memory_goal(share_of_redis: float) -> Goal:
    """At most this fraction of Redis' bytes."""
    return Goal(ratio=1 / share_of_redis)


@row("memory-iot", MEMORY, "memory, IoT entry", memory_goal(0.60), unit="bytes/entry")
def memory_iot(harness: Harness) -> Lanes:
    return harness.memory(IOT)


@row("memory-log", MEMORY, "memory, 10-field log entry", memory_goal(0.67), unit="bytes/entry")
def memory_log(harness: Harness) -> Lanes:
    return harness.memory(LOG)


@row("memory-payload", MEMORY, "memory, 200-byte value", memory_goal(0.77), unit="bytes/entry")
def memory_payload(harness: Harness) -> Lanes:
    return harness.memory(PAYLOAD)


@row("unique-names", MEMORY, "memory, 10 unique field names", Goal(ratio=1.0), unit="bytes/entry")
def memory_unique_names(harness: Harness) -> Lanes:
    return small_rows.unique_names(harness)


@row("memory-pending", MEMORY, "memory, pending entry", memory_goal(0.50), unit="bytes/entry")
def memory_pending(harness: Harness) -> Lanes:
    return harness.pending_memory(harness.plan.size(MILLION, MILLION // 4))


# Blocked readers


@row("wake-readers", WAKING, "1,000 readers, one append", Goal(ratio=2.5, rate_ratio=1.6))
def wake_readers(harness: Harness) -> Lanes:
    return woken_readers(harness, readers=1000, full=40, quick=8)


row("wake-xread", WAKING, "XREAD, and XADD that wakes it",
    Goal(ratio=1.1))(wake_rows.woken_reader)  # fmt: skip
row("wake-xreadgroup", WAKING, "XREADGROUP, and XADD that wakes",
    Goal(ratio=1.1))(wake_rows.woken_worker)  # fmt: skip
row("wake-xread-1000", WAKING, "XREAD of 1,000 streams, and XADD",
    Goal(ratio=1.0))(wake_rows.woken_reader_of_many)  # fmt: skip


# Connections and starts


row("accept", CONNECTIONS, "connect, PING, disconnect", Goal(ratio=0.95))(wake_rows.accepted)
row("empty-start", CONNECTIONS, "start, empty directory",
    Goal(cost_max=150_000), unit="us")(wake_rows.empty_start)  # fmt: skip


# Reservations, and the readers that follow


@row("reserve-complete-p16", WRITERS, "reserve, complete, -P 16",
     Goal(cost_max=1.3), unit="times")  # fmt: skip
def reserve_complete(harness: Harness) -> Lanes:
    return writer_rows.reserve_and_complete(harness, full=400_000, quick=80_000)


@row("reserve-100-reverse", WRITERS, "100 completed in reverse, -P 16",
     Goal(cost_max=2.0), unit="times")  # fmt: skip
def reserve_reverse(harness: Harness) -> Lanes:
    return writer_rows.completed_in_reverse(harness, full=400_000, quick=80_000)


@row("held-append-p16", WRITERS, "held append, -P 16", Goal(cost_max=1.2),
     unit="times")  # fmt: skip
def held_append(harness: Harness) -> Lanes:
    return writer_rows.held_appends(harness, full=1_600_000, quick=320_000)


@row("held-memory", WRITERS, "memory of held entries", Goal(cost_max=1.2),
     unit="times")  # fmt: skip
def held_memory(harness: Harness) -> Lanes:
    return writer_rows.held_memory(harness, full=MILLION, quick=MILLION // 2)


@row("release-stall", WRITERS, "worst PING, release of 1 M",
     Goal(cost_max=5000), unit="us")  # fmt: skip
def release_stall(harness: Harness) -> Lanes:
    return writer_rows.release_stall(harness, full=MILLION, quick=MILLION)


@row("follow-10", WRITERS, "TMREAD of 10, COUNT 100",
     Goal(cost_max=1.15), unit="times")  # fmt: skip
def follow_ten(harness: Harness) -> Lanes:
    return writer_rows.follow_many(harness, full=20_000, quick=4_000)


@row("peek-100-p16", WRITERS, "TPEEK COUNT 100, -P 16",
     Goal(cost_max=1.15), unit="times")  # fmt: skip
def peek_hundred(harness: Harness) -> Lanes:
    return writer_rows.peek(harness, full=80_000, quick=16_000)


@row("schedule-fire", SCHEDULES, "TSCHEDULE and firing, 2 TAPPENDs",
     Goal(cost_max=2.0), unit="times")  # fmt: skip
def schedule_and_fire(harness: Harness) -> Lanes:
    return schedule_rows.schedule_and_fire(harness, full=800_000, quick=160_000)


@row("schedule-stall", SCHEDULES, "worst PING, 1 M due at once",
     Goal(cost_max=5000), unit="us")  # fmt: skip
def firing_stall(harness: Harness) -> Lanes:
    return schedule_rows.firing_stall(harness, full=MILLION, quick=MILLION // 4)


@row("schedule-memory", SCHEDULES, "bytes besides the fields",
     Goal(cost_max=120), unit="bytes/entry")  # fmt: skip
def schedule_memory(harness: Harness) -> Lanes:
    return schedule_rows.schedule_memory(harness, full=MILLION, quick=MILLION // 4)


# Groups with rules


@row("rules-read", RULES, "read, XACK; with rules", Goal(cost_max=1.10), unit="times")
def read_with_rules(harness: Harness) -> Lanes:
    return managed_rows.with_rules(harness, full=160_000, quick=32_000)


@row("rules-memory", RULES, "memory in flight with rules", Goal(cost_max=1.02), unit="times")
def memory_with_rules(harness: Harness) -> Lanes:
    return managed_rows.memory_with_rules(harness, full=MILLION, quick=MILLION // 4)


@row("nack-10", RULES, "TNACK of 10, read; XACK, read", Goal(cost_max=1.5), unit="times")
def nack_ten(harness: Harness) -> Lanes:
    return managed_rows.nack_and_read(harness, full=160_000, quick=32_000)


@row("extend-10-p16", RULES, "TEXTEND; XCLAIM JUSTID in Redis", Goal(ratio=1.0))
def extend_ten(harness: Harness) -> Lanes:
    return managed_rows.extend(harness, full=400_000, quick=80_000)


@row("dead-letter", RULES, "TNACK FATAL; TAPPEND, XACK", Goal(cost_max=1.6), unit="times")
def dead_letter(harness: Harness) -> Lanes:
    return managed_rows.dead_letters(harness, full=160_000, quick=32_000)


@row("order-keys", RULES, "ORDER, 10,000 keys, COUNT 10", Goal(cost_max=2.0), unit="times")
def order_keys(harness: Harness) -> Lanes:
    return managed_rows.ordered(harness, full=160_000, quick=32_000, hot=0)


@row("order-hot", RULES, "ORDER, half is one key", Goal(cost_max=3.0), unit="times")
def order_hot(harness: Harness) -> Lanes:
    return managed_rows.ordered(harness, full=160_000, quick=32_000, hot=1)


@row("order-hot-stall", RULES, "worst PING meanwhile", Goal(cost_max=5000), unit="us")
def order_hot_stall(harness: Harness) -> Lanes:
    return managed_rows.ordered_stall(harness, full=16_000, quick=3_200)


@row(
    "order-memory", RULES, "in flight, bytes more with ORDER", Goal(cost_max=24), unit="bytes/entry"
)
def order_memory(harness: Harness) -> Lanes:
    return managed_rows.memory_in_order(harness, full=MILLION, quick=MILLION // 4)


@row("order-parked", RULES, "bytes of a parked entry", Goal(cost_max=60), unit="bytes/entry")
def order_parked(harness: Harness) -> Lanes:
    return managed_rows.parked_memory(harness)


@row("group-where", RULES, "WHERE, 10 % match; per match", Goal(cost_max=1.8), unit="times")
def group_where(harness: Harness) -> Lanes:
    return managed_rows.filtered(harness, full=80_000, quick=16_000)


# Replicas


@row("replicas-0-p16", REPLICAS, "append, no replica, -P 16", Goal(ratio=1.6))
def append_without_replica(harness: Harness) -> Lanes:
    return replica_rows.appends(harness, 0, full=1_600_000, quick=320_000)


@row("replicas-1-p16", REPLICAS, "append, 1 replica, -P 16", Goal(ratio=1.6))
def append_one_replica(harness: Harness) -> Lanes:
    return replica_rows.appends(harness, 1, full=1_600_000, quick=320_000)


@row("replicas-2-p16", REPLICAS, "append, 2 replicas, -P 16", Goal(ratio=1.6))
def append_two_replicas(harness: Harness) -> Lanes:
    return replica_rows.appends(harness, 2, full=1_600_000, quick=320_000)


@row("replica-cpu-p16", REPLICAS, "the replica's CPU, -P 16", Goal(ratio=4.0))
def cpu_of_replica(harness: Harness) -> Lanes:
    return replica_rows.appends(harness, 1, full=1_600_000, quick=320_000, of_replica=True)


@row("redis-follows-p16", REPLICAS, "a Redis follows, -P 16", Goal(cost_max=1.3), unit="times")
def append_redis_follows(harness: Harness) -> Lanes:
    return replica_rows.appends_with_redis(harness, full=1_600_000, quick=320_000)


@row("full-sync", REPLICAS, "full sync, {kept} entries", Goal(ratio=2.0))
def full_sync(harness: Harness) -> Lanes:
    return replica_rows.full_syncs(harness, harness.plan.kept_entries)


@row("full-sync-ping", REPLICAS, "full sync under load, worst PING", Goal(cost_max=5000), unit="us")
def ping_of_full_sync(harness: Harness) -> Lanes:
    return sync_rows.pings_during_full_sync(harness, harness.plan.kept_entries)


@row("full-sync-memory", REPLICAS, "full sync under load, growth", Goal(cost_max=16), unit="MB")
def growth_of_full_sync(harness: Harness) -> Lanes:
    return sync_rows.growth_during_full_sync(harness, harness.plan.kept_entries)


@row("replica-seen", REPLICAS, "until seen on a replica", Goal(ratio=0.67), unit="us")
def seen_on_replica(harness: Harness) -> Lanes:
    return sync_rows.seen_on_replica(harness, full=3_000, quick=500)


@row("partial-sync", REPLICAS, "catching up after a restart", Goal(cost_max=0.5), unit="us/entry")
def catching_up(harness: Harness) -> Lanes:
    return sync_rows.catching_up(harness, full=1_600_000, quick=320_000)


@row("replicas-durable", REPLICAS, "replicas-durable 1, always", Goal(cost_max=1.67), unit="times")
def waiting_for_replica(harness: Harness) -> Lanes:
    return sync_rows.waiting_for_replica(harness, full=800_000, quick=160_000)


# Metrics


@row("metrics-scrape", METRICS, "scrape, 1,000 streams", Goal(cost_max=20_000), unit="us")
def metrics_scrape(harness: Harness) -> Lanes:
    return metrics_rows.scrapes(harness, full=10, quick=3)


# A cluster


@row("gateway-append", CLUSTER, "append -P 16, three nodes")
def gateway_append(harness: Harness) -> Lanes:
    return cluster_rows.appends(harness, full=1_600_000, quick=160_000, is_share=False)


@row("gateway-share", CLUSTER, "the same / the nodes", Goal(cost_max=0.7), unit="times")
def gateway_share(harness: Harness) -> Lanes:
    return cluster_rows.appends(harness, full=1_600_000, quick=160_000, is_share=True)


@row("members-p16", MEMBERS, "3 members, 2 disks, -P 16", unit="times")
def members_p16(harness: Harness) -> Lanes:
    return member_rows.appends(harness, 16, full=800_000, quick=160_000)


@row("members-p1", MEMBERS, "3 members, 2 disks, -P 1", unit="times")
def members_p1(harness: Harness) -> Lanes:
    return member_rows.appends(harness, 1, full=100_000, quick=20_000)


@row("member-append", MEMBERS, "a member / one server", Goal(cost_max=1.03), unit="times")
def member_append(harness: Harness) -> Lanes:
    return member_rows.cpu(harness, member_rows.APPEND, full=1_600_000, quick=320_000)


@row("member-read", MEMBERS, "the same, a read", Goal(cost_max=1.03), unit="times")
def member_read(harness: Harness) -> Lanes:
    return member_rows.cpu(harness, member_rows.READ, full=1_600_000, quick=320_000)


# The Python client


@row("client-one-shard", CLIENT, "one shard", Goal(rate_ratio=0.8), unit="ns/record")
def client_one_shard(harness: Harness) -> Lanes:
    return client_rows.one_shard(harness, full=400_000, quick=80_000)


@row("client-one-shard-fields", CLIENT, "one shard, all fields read",
     Goal(rate_ratio=0.8), unit="ns/record")  # fmt: skip
def client_one_shard_fields(harness: Harness) -> Lanes:
    return client_rows.one_shard(harness, full=400_000, quick=80_000, reads="fields")


@row("client-one-shard-all", CLIENT, "one shard, all fields and ID",
     Goal(rate_ratio=0.8), unit="ns/record")  # fmt: skip
def client_one_shard_all(harness: Harness) -> Lanes:
    return client_rows.one_shard(harness, full=400_000, quick=80_000, reads="fields and ID")


@row("client-16-shards", CLIENT, "16 shards in one order",
     Goal(rate_ratio=0.7), unit="ns/record")  # fmt: skip
def client_many_shards(harness: Harness) -> Lanes:
    return client_rows.sixteen_shards(harness, full=400_000, quick=80_000)


@row("client-16-shards-all", CLIENT, "16 shards, all fields and ID",
     Goal(rate_ratio=0.7), unit="ns/record")  # fmt: skip
def client_many_shards_all(harness: Harness) -> Lanes:
    return client_rows.sixteen_shards(harness, full=400_000, quick=80_000, reads="fields and ID")


@row("client-append", CLIENT, "append against xadd", Goal(rate_ratio=0.8), unit="ns/record")
def client_append(harness: Harness) -> Lanes:
    return client_rows.appends(harness, full=40_000, quick=8_000)


@row(
    "client-producer",
    CLIENT,
    "producer against a pipeline",
    Goal(rate_ratio=0.77),
    unit="ns/record",
)
def client_producer(harness: Harness) -> Lanes:
    return client_rows.produced_entries(harness, full=200_000, quick=40_000)


@row("client-worker", CLIENT, "worker with an empty handler", Goal(rate_ratio=0.7), unit="ns/job")
def client_worker(harness: Harness) -> Lanes:
    return client_rows.worker(harness, full=40_000, quick=8_000)


# Journal


@row("journal-everysec-p16", JOURNAL, "appendfsync everysec, -P 16", Goal(ratio=1.8))
def journal_everysec(harness: Harness) -> Lanes:
    directives = journal_of("everysec")
    return harness.appends(SENSOR_ENTRY, 16, full=1_600_000, quick=160_000, directives=directives)


@row("journal-always-p1", JOURNAL, "appendfsync always, -P 1", Goal(ratio=1.0))
def journal_always_p1(harness: Harness) -> Lanes:
    directives = journal_of("always")
    return harness.appends(SENSOR_ENTRY, 1, full=200_000, quick=20_000, directives=directives)


@row("journal-always-p16", JOURNAL, "appendfsync always, -P 16", Goal(ratio=2.0))
def journal_always(harness: Harness) -> Lanes:
    directives = journal_of("always")
    return harness.appends(SENSOR_ENTRY, 16, full=1_600_000, quick=160_000, directives=directives)


@row("journal-deliver", JOURNAL, "group read of one entry, always", Goal(ratio=1.0))
def journal_deliver(harness: Harness) -> Lanes:
    return deliveries(harness, "always", full=2_000, quick=300)


@row("journal-deliver-everysec", JOURNAL, "the same, groups everysec", Goal(ratio=2.0))
def journal_deliver_everysec(harness: Harness) -> Lanes:
    return deliveries(harness, "everysec", full=2_000, quick=300)


# Snapshot and start


@row("snapshot", KEEPING, "snapshot", Goal(ratio=5.0, rate_ratio=5.0))
def snapshot(harness: Harness) -> Lanes:
    return snapshots(harness, harness.plan.kept_entries)


@row("snapshot-stall", KEEPING, "worst PING during it", Goal(cost_max=1000), unit="us")
def snapshot_stall(harness: Harness) -> Lanes:
    return stalls(harness, harness.plan.kept_entries)


@row("snapshot-calm", KEEPING, "worst PING without it", unit="us", full_only=True)
def snapshot_calm(harness: Harness) -> Lanes:
    return calm(harness, harness.plan.kept_entries)


@row("snapshot-memory", KEEPING, "memory during it", Goal(cost_max=10), unit="% more")
def snapshot_memory(harness: Harness) -> Lanes:
    return growth(harness, harness.plan.kept_entries)


# Not in quick runs: their data loads in less time than starts vary by.
@row("load", KEEPING, "start from the snapshot", Goal(ratio=5.0, rate_ratio=5.0), full_only=True)
def load_snapshot(harness: Harness) -> Lanes:
    return loads(harness, harness.plan.kept_entries)


@row("replay", KEEPING, "start from a journal", Goal(ratio=10.0, rate_ratio=10.0))
def replay_journal(harness: Harness) -> Lanes:
    return replays(harness, harness.plan.kept_entries)


@row("import-rdb", KEEPING, "import of a file of Redis", Goal(ratio=1 / 3), full_only=True)
def import_rdb(harness: Harness) -> Lanes:
    return imports(harness, harness.plan.kept_entries)


@row("import-memory", KEEPING, "memory of it", Goal(cost_max=256), unit="MB", full_only=True)
def import_memory(harness: Harness) -> Lanes:
    return peak_memory(harness, harness.plan.kept_entries)


# Many small streams; large values


def add_measured(
    section: str, unit: str, measured: tuple[tuple[str, str, Callable[[Harness], Lanes], Goal], ...]
) -> None:
    """Add rows of one unit: (name, title, measure, goal)."""
    for name, title, measure, goal in measured:
        row(name, section, title, goal, unit)(measure)


AS_FAST = Goal(ratio=1.0, rate_ratio=1.0)
EVERYSEC = journal_of("everysec")

add_measured(SMALL, "bytes/stream", (
    ("small-memory", "memory, 20 entries", small_rows.memory, Goal(ratio=3.0)),
    ("small-group", "memory, a group", small_rows.group_memory, Goal(ratio=0.85)),
    ("small-consumer", "memory, consumer and 1 pending", small_rows.consumer_memory,
     Goal(ratio=1.0)),
    ("small-file", "snapshot's size, 20 entries", small_rows.file_size, Goal(ratio=0.9)),
    ("small-loaded", "memory after loading it", small_rows.loaded_memory, Goal(ratio=1.0)),
))  # fmt: skip
add_measured(SMALL, "ns/stream", (
    ("small-save", "SAVE, 20 entries", small_rows.save, AS_FAST),
    ("small-load", "start from the snapshot", small_rows.load, AS_FAST),
    ("small-bgsave", "BGSAVE, 2 entries and a group", small_rows.background(saving), AS_FAST),
    ("small-rewrite", "BGREWRITEAOF of the same", small_rows.background(rewriting), AS_FAST),
    ("small-replay", "start from a journal of the same", small_rows.replay, AS_FAST),
))  # fmt: skip
add_measured(SMALL, "us", (
    ("small-stall", "worst PING during BGSAVE", small_rows.stall, Goal(cost_max=2000)),
))  # fmt: skip
add_measured(SMALL, "ns/op", (
    ("small-last-p16", "last entry of a random stream", small_rows.last_entries, Goal(ratio=1.3)),
))  # fmt: skip
add_measured(LARGE, "us", (
    ("large-100k", "append of 100 KB", small_rows.large_values(100_000, 4000, 1000),
     Goal(ratio=1.0)),
    ("large-1m", "append of 1 MB", small_rows.large_values(1_000_000, 400, 100),
     Goal(ratio=1.0)),
    ("large-100k-everysec", "append of 100 KB, everysec",
     small_rows.large_values(100_000, 4000, 1000, EVERYSEC), Goal(ratio=1.0)),
    ("large-1m-everysec", "append of 1 MB, everysec",
     small_rows.large_values(1_000_000, 400, 100, EVERYSEC), Goal(ratio=1.0)),
))  # fmt: skip


# Range and seek: on the small stream, then on the large one

RANGE_GOALS = {10: 1.3, 100: 4.0, 1000: 4.5}
# At -P 1 the kernel's part of a short range dominates; a reply of 1,000 entries needs no pipeline.
RANGE_PIPELINES = {10: 16, 100: 16, 1000: 1}
RANGE_REQUESTS = {10: (800_000, 80_000), 100: (80_000, 16_000), 1000: (5_000, 1_000)}
POSITIONS = ("head", "middle", "tail")


def add_ranges(section: str, prefix: str, large: bool) -> None:
    """The nine range rows of one stream."""
    for count, ratio in RANGE_GOALS.items():
        for position in POSITIONS:
            pipeline = RANGE_PIPELINES[count]
            title = f"COUNT {count}, {position}, -P {pipeline}"
            name = f"{prefix}-{count}-{position}"
            measure = range_measure(position, count, pipeline, large)
            row(name, section, title, Goal(ratio=ratio), full_only=large)(measure)


def range_measure(
    position: str, count: int, pipeline: int, large: bool = False
) -> Callable[[Harness], Lanes]:
    """A measuring function for one position and one count."""
    full, quick = RANGE_REQUESTS[count]

    def measure(harness: Harness) -> Lanes:
        entries = harness.plan.large_entries if large else MILLION
        return harness.ranges(entries, position, count, pipeline, full, quick)

    return measure


add_ranges(RANGE, "range", large=False)
row("range-10-p1", RANGE, "COUNT 10, middle, -P 1")(range_measure("middle", 10, 1))
row("range-100-p1", RANGE, "COUNT 100, middle, -P 1")(range_measure("middle", 100, 1))


@row("read-10", RANGE, "read COUNT 10, middle, -P 16")
def read_ten(harness: Harness) -> Lanes:
    return harness.reads(MILLION, 10, pipeline=16, full=800_000, quick=240_000)


# Filters: our server against itself

FILTERS = {
    "range-where": (filter_rows.ONE_SENSOR, "EQ, 1 % match", Goal(cost_max=0.15)),
    "range-between": (filter_rows.ONE_DEGREE, "BETWEEN, 1 % match", NO_GOAL),
    "range-no-field": (filter_rows.NO_SUCH_FIELD, "no block has the field", Goal(cost_max=0.02)),
}


def add_filters() -> None:
    """The rows of ranges with WHERE."""
    for name, (conditions, title, goal) in FILTERS.items():

        def measure(harness: Harness, conditions: tuple[str, ...] = conditions) -> Lanes:
            return filter_rows.filtered(harness, conditions, MILLION, full=20, quick=3)

        row(name, FILTER, title, goal, unit="times")(measure)


add_filters()


# Groups


@row("group-read-10", GROUPS, "group read COUNT 10, -P 16", Goal(ratio=3.0))
def group_read(harness: Harness) -> Lanes:
    return harness.group_reads(MILLION, 10, pipeline=16)


@row("acknowledge", GROUPS, "acknowledge, -P 16", Goal(ratio=1.5))
def acknowledge(harness: Harness) -> Lanes:
    return harness.acknowledgements(MILLION, pipeline=16, full=800_000, quick=80_000)


@row(
    "evict-done",
    GROUPS,
    "read, XACK; with EVICT DONE",
    Goal(cost_max=1.35),
    unit="times",
)
def evict_done(harness: Harness) -> Lanes:
    return evict_rows.read_and_acknowledge(harness, full=160_000, quick=32_000)


# Our X commands against our T commands: they share their code, so the goal is within a tenth


def add_dialect(name: str, title: str, of: Row) -> None:
    """Add a row with the time of the X command as a multiple of the T command's time."""

    def measure(harness: Harness) -> Lanes:
        lanes = harness.measured(of)
        if OURS_X not in lanes:
            raise BenchError("our side speaks one dialect only")
        times = zip(lanes[OURS], lanes[OURS_X], strict=True)
        return alone([Reading(x.cost / t.cost) for t, x in times])

    row(name, DIALECTS, title, Goal(cost_max=1.1), unit="times")(measure)


add_dialect("x-append-p16", "XADD against TAPPEND, -P 16", append_p16)
add_dialect("x-append-p100", "XADD against TAPPEND, -P 100", append_p100)
add_dialect("x-range-10", "XRANGE against TRANGE, COUNT 10", row_named("range-10-middle"))
add_dialect("x-range-100", "XRANGE against TRANGE, COUNT 100", row_named("range-100-middle"))
add_dialect("x-read-10", "XREAD against TREAD, COUNT 10", read_ten)
add_dialect("x-group-read", "XREADGROUP against TREAD GROUP", group_read)
add_dialect("x-acknowledge", "XACK against TACK", acknowledge)


@row("seek", SEEK, "seek in 1 M entries, -P 100")
def seek_small(harness: Harness) -> Lanes:
    return harness.seeks(MILLION, pipeline=100, full=2_000_000, quick=200_000)


@row("seek-large", SEEK, "seek in {large} entries, -P 100", full_only=True)
def seek_large(harness: Harness) -> Lanes:
    return harness.seeks(harness.plan.large_entries, pipeline=100, full=2_000_000, quick=200_000)


@row(
    "seek-growth",
    SEEK,
    "seek, {large} against 1 M entries",
    Goal(cost_max=1.5),
    unit="times",
    full_only=True,
)
def seek_growth(harness: Harness) -> Lanes:
    """The time of a seek in the large stream as a multiple of the small one's, for each side."""
    small, large = harness.measured(seek_small), harness.measured(seek_large)
    return {
        lane: [
            Reading(far.cost / near.cost)
            for near, far in zip(small[lane], large[lane], strict=True)
        ]
        for lane in (REDIS, OURS)
    }


add_ranges(RANGE_LARGE, "range-large", large=True)

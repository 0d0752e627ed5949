"""Measures millstream against Redis, row by row, on one machine and in one run.

Run it with `python -m bench` (or `make bench`). README.md says how it measures and why.

| module | holds |
|---|---|
| rows | what is measured: one small function a row, and its goal |
| stand | the pair of servers, the alternating rounds, the kinds of measurement rows are made of |
| server | one server process: start, CPU time, memory, stop |
| access_rows | what the rules of a user cost |
| tls_rows | rows over TLS |
| cluster_rows | the gateway of a cluster |
| member_rows | a shard of a cluster on many machines |
| wire | a small RESP client and the bulk loader |
| load | redis-benchmark: call it, read its answer |
| datasets | the entries, the same bytes for both sides |
| figures | readings, medians, ratios, goals: pure arithmetic |
| report, chart | table, JSON and picture |
"""

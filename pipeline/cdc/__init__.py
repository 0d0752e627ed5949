"""Change data capture: changes of PostgreSQL databases become entries.

`config`, `names`, `state`, `pgoutput`, `changes` and `copies` do no I/O. `process` reads one
source: `preparing` makes it ready, `reading` and `outgoing` bring its changes to millstream,
`copying` its tables.
"""

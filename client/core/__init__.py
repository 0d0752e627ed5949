"""The decisions of the client, without I/O.

The modules here never touch a socket, a clock or a source of randomness. A function that needs I/O
is a generator: it yields steps (`steps.py`) and is sent their results. The sync and the asyncio API
each have one loop that carries out these steps.
"""

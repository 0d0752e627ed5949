"""The seeded simulation: a whole server in one process, without sockets, threads or real time.

Executor, handlers, storage and persistence are the real ones. Loop, clock, workers, disk and
clients are fake, and one seed decides what happens next: a client sends (a part of) something, the
loop runs a callback, a worker makes a step, time passes, the machine crashes. Next to the server
runs a naive model of what it promises (`model`), and a second one (`replay`) that knows nothing but
the effects it wrote. Every reply, and the state after every restart, must be what they say.

`python -m tests.sim SEED` plays one seed, `python -m tests.sim --seeds 1000` many.
"""

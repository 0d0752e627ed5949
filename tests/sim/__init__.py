"""The seeded simulation: a whole server in one process, without sockets, threads or real time.

Executor, handlers, storage and persistence are real. Loop, clock, workers, disk and clients are
fake, and a seed decides what happens next: a client sends a request or a part of it, the loop runs
a callback, a worker runs a step, time passes, the machine crashes. A naive model of the server's
promises (`model`) runs in parallel, and a second model (`replay`) applies only the recorded
effects. Every reply, and the state after every restart, must agree with them.

`python -m tests.sim SEED` plays one seed, `python -m tests.sim --seeds 1000` many.
"""

"""Execution of commands: the executor, command look-up, blocked readers, timers, pub/sub."""

"""Where commands run: the executor, command look-up, blocked readers, timers, pub/sub."""

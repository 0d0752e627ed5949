"""The meaning of each command: one module per family, one synchronous function per command."""

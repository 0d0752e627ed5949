"""The gateway: one port through which clients that do not know clusters reach all nodes."""

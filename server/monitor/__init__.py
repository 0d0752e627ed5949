"""Monitoring and limits: INFO, the log, the slow log, latency, memory."""

"""What an operator sees and limits: INFO, the log, the slow log, latency, memory."""

"""Groups of a stream: their consumers and pending entries."""

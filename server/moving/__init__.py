"""Moving in from Redis, and back: command lines on files and servers of Redis."""

"""Values in Redis' dump format."""

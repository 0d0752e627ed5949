"""The client for threads. `millstream.client` has its names for users."""

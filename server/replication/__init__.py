"""Replicas: servers that take their journal frames from another server."""

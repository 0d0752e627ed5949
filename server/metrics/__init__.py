"""Metrics and health checks over HTTP."""

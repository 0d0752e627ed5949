"""Parses requests, and decides what may be sent to which client."""

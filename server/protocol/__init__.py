"""Parsing requests, and what may be sent to which client."""

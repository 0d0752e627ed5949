"""A data directory without a server: checking, repairing, inspecting, and their command lines."""

"""Modules that the command table does not need: each is loaded when it is first used."""

"""Checks of the sources, of millstream and of the destination."""

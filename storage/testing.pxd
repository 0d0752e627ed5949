# Nothing is declared here: only tests use this module, and from Python.

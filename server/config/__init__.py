"""Directives: the configuration file, the command line, CONFIG."""

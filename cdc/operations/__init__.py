"""The commands that end at once: setup, status, resync, resume and drop."""

"""Reserved IDs, and entries that are complete but not visible yet."""

"""A source database: its catalog, its publication and slot, and making them ready."""

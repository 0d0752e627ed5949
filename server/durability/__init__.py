"""The journal of each tick, snapshots, and loading the files at start."""

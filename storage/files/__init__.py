"""Files: the disk, journals, snapshots, the manifest, and recovery of damaged files."""

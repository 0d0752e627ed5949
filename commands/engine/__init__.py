"""What the commands of both dialects share: appending, delivering, ranges, groups, long replies."""

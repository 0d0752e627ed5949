"""Common parts of both dialects: appending, delivering, ranges, groups, long replies."""

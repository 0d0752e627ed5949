"""Users, their permissions, and the log of refusals."""

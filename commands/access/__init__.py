"""Users, what they may do, and who was refused."""

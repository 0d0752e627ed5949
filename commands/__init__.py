"""What each command means: one module a family, one synchronous function a command."""

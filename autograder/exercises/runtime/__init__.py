"""Session 10, runtime."""

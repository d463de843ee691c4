"""Session 00, start."""

"""Session 03, the direct sum."""

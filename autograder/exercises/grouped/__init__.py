"""Session 06, grouped heads and cache."""

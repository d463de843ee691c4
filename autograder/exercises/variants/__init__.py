"""Session 09, changed heads."""

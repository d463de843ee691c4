"""Session 01, the shape machine."""

"""Session 04, adjoints."""

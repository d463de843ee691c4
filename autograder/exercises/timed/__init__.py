"""Session 07, the exercises that are timed on the CPU."""

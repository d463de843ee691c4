"""Session 05, cross-attention."""

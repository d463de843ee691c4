"""Session 02, the stride proof."""

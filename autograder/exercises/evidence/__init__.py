"""Session 08: what a head is worth, who may say so, and how one leaves a layer for good."""

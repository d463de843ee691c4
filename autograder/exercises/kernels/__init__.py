"""Session 07, kernels: the Triton exercises, the roofline and the observed backend."""

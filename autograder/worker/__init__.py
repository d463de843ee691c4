"""Everything that runs beside learner code. Nothing in this package knows an expected answer."""

SCRATCH = "/scratch"  # the one writable place inside the walls; not /tmp, where the Python that runs this may lie

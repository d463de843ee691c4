"""Everything that runs beside learner code. Nothing in this package knows an expected answer."""

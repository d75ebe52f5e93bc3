"""Runs find their drivers by Temporal. `temporalio` is imported with the modules of this package, and by nothing else."""

"""Parallel text: readers, batches and built-in corpora."""

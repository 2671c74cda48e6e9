"""Parallel text: readers, token ids, token-budget batches and built-in corpora."""

"""Serving: the local server, its client, its page, and the doctor of an export."""

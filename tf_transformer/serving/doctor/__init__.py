"""Checks of an installation, of an export, and of two forms of one model."""

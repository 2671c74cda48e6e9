"""The SavedModel translator: how it is written and how it is used."""

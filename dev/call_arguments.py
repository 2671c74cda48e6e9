"""Reads the section "Call arguments" of docstrings, which Keras' style has and Google's lacks."""

import re

import griffe


class CallArguments(griffe.Extension):
    """Turns the section into one that the parser of docstrings knows, and keeps its title."""

    def on_instance(self, *, obj, **kwargs):
        if obj.docstring:
            found = re.sub(
                r"^Call arguments:$", "Other Parameters: Call arguments:", obj.docstring.value,
                flags=re.MULTILINE,
            )  # fmt: skip
            obj.docstring.value = found

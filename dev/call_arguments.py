"""Reads the docstrings' section "Call arguments", which is Keras' and not Google's style."""

import re

import griffe


class CallArguments(griffe.Extension):
    """Makes it a section that the parser of docstrings knows, with its own title."""

    def on_instance(self, *, obj, **kwargs):
        if obj.docstring:
            found = re.sub(
                r"^Call arguments:$", "Other Parameters: Call arguments:", obj.docstring.value,
                flags=re.MULTILINE,
            )  # fmt: skip
            obj.docstring.value = found

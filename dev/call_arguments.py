"""Read the section "Call arguments" of docstrings, which Keras' style adds to Google's."""

import re

import griffe


class CallArguments(griffe.Extension):
    """An extension that turns the section into one that griffe knows, with the same title."""

    def on_instance(self, *, obj, **kwargs):
        if obj.docstring:
            found = re.sub(
                r"^Call arguments:$", "Other Parameters: Call arguments:", obj.docstring.value,
                flags=re.MULTILINE,
            )  # fmt: skip
            obj.docstring.value = found

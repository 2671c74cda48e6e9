"""Read two sections of Keras' style of docstrings, "Call arguments" and "Example"."""

import re

import griffe

# What griffe, which reads Google's style, calls them. The first one keeps its title.
_SECTIONS = {"Call arguments:": "Other Parameters: Call arguments:", "Example:": "Examples:"}


class CallArguments(griffe.Extension):
    """An extension that turns the sections into those that griffe knows."""

    def on_instance(self, *, obj, **kwargs):
        if obj.docstring:
            for keras, google in _SECTIONS.items():
                found = re.sub(rf"^{keras}$", google, obj.docstring.value, flags=re.MULTILINE)
                obj.docstring.value = found

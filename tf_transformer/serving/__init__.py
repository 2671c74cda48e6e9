"""Serving: the local server, its client, its page, and the doctor of an export."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "client": ["Client", "DocumentTranslation", "Hypothesis"],
        "limits": ["Limits"],
        "server": ["LocalServer"],
        "connection": [
            "BadRequestError",
            "NotFoundError",
            "OverloadedError",
            "ServingError",
            "ServingTimeoutError",
            "UnexpectedAnswerError",
            "UnreachableError",
        ],
    },
)

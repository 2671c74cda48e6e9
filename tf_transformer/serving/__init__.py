"""Serving: the local server, its client, its page, and the doctor of an export."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "client": ["Client"],
        "client_errors": [
            "BadRequestError",
            "NotFoundError",
            "OverloadedError",
            "ServingError",
            "ServingTimeoutError",
            "UnexpectedAnswerError",
            "UnreachableError",
        ],
        "client_results": [
            "Alignment",
            "DocumentTranslation",
            "Hypothesis",
            "PairScore",
            "VersionStatus",
        ],
        "limits": ["Limits"],
        "server": ["LocalServer"],
    },
)

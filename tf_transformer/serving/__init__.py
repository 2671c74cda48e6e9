"""Serving: the local server, its client, its page, and the doctor of an export."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "client.client": ["Client"],
        "client.errors": [
            "BadRequestError",
            "NotFoundError",
            "OverloadedError",
            "ServingError",
            "ServingTimeoutError",
            "UnexpectedAnswerError",
            "UnreachableError",
        ],
        "client.results": [
            "Alignment",
            "DocumentTranslation",
            "Hypothesis",
            "PairScore",
            "VersionStatus",
        ],
        "server.limits": ["Limits"],
        "server.local_server": ["LocalServer"],
    },
)

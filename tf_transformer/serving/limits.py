"""The limits of the local server; the command line reads them before anything is loaded."""

import dataclasses
from typing import Any


def _limit(default: int, text: str) -> Any:
    return dataclasses.field(default=default, metadata={"help": text})


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits of a server; each is an option of `tf-transformer serve`."""

    max_body_bytes: int = _limit(1 << 20, "size of a request; a larger one: 413")
    max_characters: int = _limit(100_000, "characters of all texts of a request; more: 413")
    max_texts: int = _limit(64, "texts of a request; more: 413")
    max_queue: int = _limit(256, "requests that wait for a thread; one more: 429")
    max_connections: int = _limit(900, "connections that are open; one more: 503")
    request_seconds: int = _limit(60, "time for a request to arrive and be answered; more: 504")
    drain_seconds: int = _limit(30, "time for running requests when the server is stopped")

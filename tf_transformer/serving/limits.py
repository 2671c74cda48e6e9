"""The limits of the local server; the command line reads them before anything is loaded."""

from pydantic import PositiveInt
from pydantic.dataclasses import dataclass

from tf_transformer.config_fields import CHECKED, setting


@dataclass(frozen=True, config=CHECKED)
class Limits:
    """The limits of a server; each is an option of `tf-transformer serve`."""

    max_body_bytes: PositiveInt = setting(1 << 20, "bytes in a request; status 413 if exceeded")
    max_characters: PositiveInt = setting(
        100_000, "characters in all texts of a request; status 413 if exceeded"
    )
    max_texts: PositiveInt = setting(64, "texts in a request; status 413 if exceeded")
    max_queue: PositiveInt = setting(256, "requests waiting for a thread; status 429 if exceeded")
    max_connections: PositiveInt = setting(900, "open connections; status 503 if exceeded")
    request_seconds: PositiveInt = setting(
        60, "seconds for a request to arrive and be answered; status 504 if exceeded"
    )
    drain_seconds: PositiveInt = setting(30, "seconds to finish requests when the server stops")

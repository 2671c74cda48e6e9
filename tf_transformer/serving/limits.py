"""The limits of the local server; the command line reads them before anything is loaded."""

from pydantic import PositiveInt
from pydantic.dataclasses import dataclass

from tf_transformer.models.configs import CHECKED, setting


@dataclass(frozen=True, config=CHECKED)
class Limits:
    """The limits of a server; each is an option of `tf-transformer serve`."""

    max_body_bytes: PositiveInt = setting(1 << 20, "size of a request; a larger one: 413")
    max_characters: PositiveInt = setting(
        100_000, "characters of all texts of a request; more: 413"
    )
    max_texts: PositiveInt = setting(64, "texts of a request; more: 413")
    max_queue: PositiveInt = setting(256, "requests that wait for a thread; one more: 429")
    max_connections: PositiveInt = setting(900, "connections that are open; one more: 503")
    request_seconds: PositiveInt = setting(
        60, "time for a request to arrive and be answered; more: 504"
    )
    drain_seconds: PositiveInt = setting(30, "time for running requests when the server is stopped")

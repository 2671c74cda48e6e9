"""What the local server takes, and how long it waits."""

import dataclasses

from tf_transformer.settings import require_positive, setting


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits of a server; each is an option of `tf-transformer serve`.

    The longest a request may take is `body_seconds` to arrive and `request_seconds` from then on.

    Raises:
        ConfigError: A limit is not greater than 0.
    """

    max_body_bytes: int = setting(1 << 20, "size of a request; a larger one: 413")
    max_characters: int = setting(100_000, "characters of all texts of a request; more: 413")
    max_texts: int = setting(64, "texts of a request; more: 413")
    max_queue: int = setting(256, "requests that wait for a thread; one more: 429")
    max_connections: int = setting(256, "connections that are open; one more: 503")
    body_seconds: float = setting(10.0, "time for a request to arrive; longer: 408")
    request_seconds: float = setting(60.0, "time to wait for and run a request; longer: 504")
    drain_seconds: float = setting(30.0, "time for what runs when the server is stopped")
    max_batch_texts: int = setting(64, "texts that are gathered into a batch")
    max_batch_characters: int = setting(20_000, "characters that are gathered into a batch")

    def __post_init__(self) -> None:
        require_positive(self, *(field.name for field in dataclasses.fields(self)))

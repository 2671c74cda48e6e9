"""What the client needs of a way to the server, REST or gRPC."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class RequestLimits(NamedTuple):
    """How long and how often to try; times are in seconds.

    Attributes:
        connections: Requests at a time.
        connect_timeout: For a connection to be made.
        read_timeout: Without a byte of the answer. gRPC has only the deadline.
        deadline: For a request with all of its retries.
        retries: Of a request, after the first attempt. gRPC makes four at most.
    """

    connections: int
    connect_timeout: float
    read_timeout: float
    deadline: float
    retries: int


class Transport(abc.ABC):
    """A way to one model on one server; it may be used from several threads.

    Every method raises a `ServingError`.

    Attributes:
        where: The model's URL, for messages.
    """

    where: str

    @abc.abstractmethod
    def predict(
        self, signature: str, inputs: Mapping[str, Sequence[str]], outputs: Sequence[str]
    ) -> dict[str, list]:
        """Runs a signature.

        Args:
            signature: Its name.
            inputs: Texts that are valid Unicode, as many for each name.
            outputs: The names of the signature's outputs.

        Returns:
            Nested lists for each output; strings are str.
        """

    @abc.abstractmethod
    def status(self) -> dict[str, Any]:
        """The state of the model's versions, as TensorFlow Serving's REST API has it."""

    @abc.abstractmethod
    def metadata(self) -> dict[str, Any]:
        """The model's signatures, as TensorFlow Serving's REST API has them."""

    @abc.abstractmethod
    def close(self) -> None:
        """Closes all connections."""

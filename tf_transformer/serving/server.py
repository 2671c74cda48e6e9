"""The local server: a model behind TensorFlow Serving's REST API, in this process."""

import dataclasses
import functools
import ipaddress
import os
import socket
import threading
import time
import urllib.parse

import uvicorn

from tf_transformer.errors import InputError
from tf_transformer.machine import num_cores
from tf_transformer.serving.limits import Limits
from tf_transformer.serving.rest import RestApi
from tf_transformer.serving.served_model import load_version

_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_LOOPBACK = ["127.0.0.1", "localhost", "[::1]"]


@dataclasses.dataclass(eq=False)
class LocalServer:
    """An HTTP server of a model, for notebooks, tests and machines without Docker.

    It serves from a thread while its `with` block runs, and answers the pending requests at the end
    of the block. An object can serve only once.

    ```python
    with LocalServer("saved_models/demo") as server, Client(server.url) as client:
        print(client.translate("Wo ist der Bahnhof?"))
    ```

    Args:
        path: Folder of the versions, such as `saved_models/demo`, named like the model.
        host: The address to listen on. Only this machine can reach the default address.
        port: The port to listen on; 0 for any free port.
        limits: Limits of a request.
        threads: The number of batches that run at a time; None for one per core.

    Raises:
        InputError: If, at the start, the address cannot be used or no version can be served.
    """

    path: str | os.PathLike[str]
    host: str = "127.0.0.1"
    port: int = 0
    _: dataclasses.KW_ONLY
    limits: Limits = dataclasses.field(default_factory=Limits)
    threads: int | None = None

    @property
    def address(self) -> str:
        """The URL of the server, such as `http://127.0.0.1:8501`; known once it serves."""
        host = _ANY_ADDRESS.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL of the model, as clients take it: `http://127.0.0.1:8501/v1/models/demo`."""
        return f"{self.address}/v1/models/{urllib.parse.quote(self.version.name)}"

    def __enter__(self) -> "LocalServer":
        """Load the model, and serve it from a thread."""
        # Bind the address first: this fails at once, while loading takes seconds.
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            self._socket = socket.create_server((self.host, self.port), family=family)
        except OSError as error:
            reason = error.strerror.partition(" (")[0]  # without the address
            where = f"{self.host} port {self.port} cannot be used ({reason})"
            raise InputError(f"{where}. Give another --port, or another --host.") from None
        # asyncio does this only for sockets that name their protocol. Without it, the body of an
        # answer waits up to 40 ms until the client has acknowledged the head.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        address, self.port = self._socket.getsockname()[:2]
        try:
            self.version = load_version(self.path)
        except BaseException:
            self._socket.close()
            raise
        # So no web site can reach this machine through a browser by a name of its own.
        is_loopback = ipaddress.ip_address(address).is_loopback
        hosts = [*_LOOPBACK, self.host] if is_loopback else ["*"]
        self._api = RestApi(self.version, self.limits, self.threads or num_cores())
        # After this many seconds every request was answered, even if with a status 504.
        drain_seconds = self.limits.request_seconds + 1
        config = uvicorn.Config(
            self._api.application(hosts),
            http="h11",
            lifespan="off",
            log_config=None,
            log_level="critical",  # the application logs what fails
            access_log=False,
            headers=[("X-Content-Type-Options", "nosniff")],
            timeout_graceful_shutdown=drain_seconds,
        )
        self._server = uvicorn.Server(config)
        serve = functools.partial(self._server.run, [self._socket])
        self._thread = threading.Thread(target=serve, name="server", daemon=True)
        self._thread.start()
        return self

    def wait(self) -> None:
        """Wait until the server ends, which it does by itself only after an error."""
        # An endless wait would miss a signal that comes just before it, and `join` takes a thread
        # for ended that a signal interrupts (Python 3.11).
        while self._thread.is_alive():
            time.sleep(1)

    def __exit__(self, *error: object) -> None:
        """Answer the pending requests, and stop."""
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()  # uvicorn leaves it open if it ends before it has begun
        self._api.batcher.close()

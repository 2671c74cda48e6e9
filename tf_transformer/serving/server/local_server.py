"""The local server: a model behind TensorFlow Serving's REST API, in this process."""

import functools
import ipaddress
import math
import os
import signal
import socket
import threading
import urllib.parse
from collections.abc import Callable
from typing import Any

from tf_transformer.errors import InputError
from tf_transformer.inference.streams import num_cores

# Before TensorFlow, which takes seconds.
try:
    import prometheus_client  # noqa: F401
    import starlette  # noqa: F401
    import uvicorn
except ModuleNotFoundError as error:
    raise InputError(
        f"the server needs the package {error.name}. "
        f"Install what it needs: pip install starlette uvicorn prometheus_client"
    ) from None

from tf_transformer.serving.server.app import Application, overloaded
from tf_transformer.serving.server.batching import Batcher
from tf_transformer.serving.server.connections import Connection
from tf_transformer.serving.server.limits import Limits
from tf_transformer.serving.server.metrics import Metrics
from tf_transformer.serving.server.versions import Versions

_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_LOOPBACK = ["127.0.0.1", "localhost", "[::1]"]
_BACKLOG = 2048
_NOSNIFF = [("X-Content-Type-Options", "nosniff")]


class LocalServer:
    """Serves the versions of a model by HTTP, for notebooks, tests and machines without Docker.

    `with LocalServer("saved_models/demo") as server:` serves from a thread while the block runs;
    `run()` serves from the main thread until a signal comes. An object serves once.

    Args:
        path: Folder of the versions, such as `saved_models/demo`; its name is the model's.
        host: The address to listen on. The default is reached from this machine alone.
        port: The port; 0 is any that is free.
        limits: What requests may ask, and how long the server waits.
        threads: Batches at a time; None is one for each core.
        batching: Whether requests that come together run together.
        unverified: Whether a version without a manifest may be served. Files that differ from a
            manifest are never served.

    Attributes:
        versions: The versions of the model.

    Raises:
        InputError: When it starts: the address cannot be used, or no version can be served.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        limits: Limits | None = None,
        threads: int | None = None,
        batching: bool = True,
        unverified: bool = False,
    ) -> None:
        self.versions = Versions(path, unverified)
        self._host = host
        self._port = port
        self._limits = limits or Limits()
        self._workers = threads or num_cores()
        self._batching = batching

    @property
    def address(self) -> str:
        """Where the server is, such as `http://127.0.0.1:8501`; known once it serves."""
        host = _ANY.get(self._host, self._host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self._port}"

    @property
    def url(self) -> str:
        """Where the model is, as clients take it: `http://127.0.0.1:8501/v1/models/demo`."""
        return f"{self.address}/v1/models/{urllib.parse.quote(self.versions.name)}"

    def __enter__(self) -> "LocalServer":
        """Serves from a thread."""
        self._start()
        self._thread = threading.Thread(target=self._serve, name="server", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Answers what has been asked, and ends."""
        self._server.should_exit = True
        self._thread.join()
        self._stop()

    def run(self, started: Callable[[], None] = lambda: None) -> bool:
        """Serves until SIGTERM or SIGINT comes, and then until all requests are answered.

        Args:
            started: Called when the server listens.

        Returns:
            Whether all were answered within the limit.

        Raises:
            InputError: See the class.
        """
        self._start()

        def stop(number: int, frame: Any) -> None:
            self._server.should_exit = True

        # uvicorn raises the signal again when it has ended, which is to do no harm.
        signals = (signal.SIGINT, signal.SIGTERM)
        previous = {number: signal.signal(number, stop) for number in signals}
        try:
            started()
            self._serve()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        return self._stop()

    def _start(self) -> None:
        # The address first: it fails at once, and loading takes seconds.
        self._socket = _bind(self._host, self._port)
        self._port = self._socket.getsockname()[1]
        try:
            self.versions.start()
        except BaseException:
            self._socket.close()
            raise
        limits, metrics = self._limits, Metrics()
        self._batcher = Batcher(
            self._workers,
            limits.max_batch_texts,
            limits.max_batch_characters,
            limits.max_queue,
            self._batching,
            metrics.ran,
        )
        metrics.gauge("queue_length", "Requests that wait.", self._batcher.__len__)
        metrics.gauge("version", "The version that serves.", self._number)
        self._application = Application(self.versions, self._batcher, limits, metrics)
        loopback = ipaddress.ip_address(self._socket.getsockname()[0]).is_loopback
        config = uvicorn.Config(
            self._application.asgi([*_LOOPBACK, self._host] if loopback else None),
            loop="asyncio",
            http=functools.partial(Connection, limits=limits, overloaded=overloaded),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",  # the application logs what fails
            access_log=False,
            proxy_headers=False,
            server_header=False,
            headers=_NOSNIFF,
            timeout_graceful_shutdown=limits.drain_seconds,
        )
        self._server = uvicorn.Server(config)
        connections = self._server.server_state.connections
        metrics.gauge("connections", "Connections that are open.", connections.__len__)
        self._socket.listen(_BACKLOG)

    def _serve(self) -> None:
        self._server.run(sockets=[self._socket])

    def _stop(self) -> bool:
        """Ends the threads; whether nothing was cut off."""
        ended = self._batcher.close(timeout=1.0)
        if ended:
            self.versions.stop()
        return ended and not self._application.cut_off

    def _number(self) -> float:
        version = self.versions.current
        return version.number if version else math.nan


def _bind(host: str, port: int) -> socket.socket:
    """A socket with an address."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except BaseException:
            bound.close()
            raise
    except OSError as error:
        raise InputError(
            f"{host} port {port} cannot be used ({error.strerror}). "
            f"Give another --port, or another --host."
        ) from None
    return bound

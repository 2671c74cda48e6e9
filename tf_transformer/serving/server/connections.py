"""The connections of a server: how many may be open, and how slow they may be."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from tf_transformer.serving.server.limits import Limits


class Connection(H11Protocol):
    """uvicorn's HTTP connection, which waits for ever, with limits.

    A connection is closed when a request has not arrived after `body_seconds`, or when its client
    takes nothing of an answer for as long. Beyond `max_connections` each request is answered by
    `overloaded`; beyond twice as many, connections are cut. The application answers 408 itself when
    it waits for a body, and `request.state.lost` is a future that is done when the client has gone.

    Args:
        config: As uvicorn gives it, like the next three.
        server_state: Likewise.
        app_state: Likewise.
        limits: The limits.
        overloaded: The ASGI application of connections beyond the limit.
    """

    def __init__(
        self,
        config: Any,
        server_state: Any,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: Limits,
        overloaded: Any,
    ) -> None:
        # The state of each of its requests.
        self._lost = asyncio.get_running_loop().create_future()
        super().__init__(config, server_state, {**app_state, "lost": self._lost}, _loop)
        self._limits = limits
        self._overloaded = overloaded
        self._timer: asyncio.TimerHandle | None = None
        self._unsent = 0

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begins to wait for a request."""
        super().connection_made(transport)
        if len(self.connections) > 2 * self._limits.max_connections:
            transport.abort()
            return
        if len(self.connections) > self._limits.max_connections:
            self.app = self._overloaded
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Reads; when a request is complete, it may take as long as the application lets it."""
        if self.timeout_keep_alive_task is not None:  # this begins another request
            self._wait()
        try:
            super().data_received(data)
        except h11.LocalProtocolError:
            # What follows a request that was refused before its end is no HTTP.
            self.transport.abort()
        is_complete = self.conn.their_state not in (h11.IDLE, h11.SEND_BODY)
        if is_complete and not self.transport.get_write_buffer_size():
            self._stop_waiting()

    def pause_writing(self) -> None:
        """Waits for the client to take what has been written."""
        super().pause_writing()
        self._wait()

    def on_response_complete(self) -> None:
        """Waits for the client to take the answer, and for the rest of a request refused early."""
        self._wait()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends waiting, also that of the application."""
        self._stop_waiting()
        self._lost.set_result(None)
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._stop_waiting()
        self._unsent = self.transport.get_write_buffer_size()
        self._timer = self.loop.call_later(self._limits.body_seconds, self._too_slow)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        if unsent:
            if unsent < self._unsent:
                self._wait()
            else:
                self.transport.abort()
        elif self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        # Else the application is at work, and knows the time too.

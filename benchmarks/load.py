"""Send requests to a server over open connections, with as little CPU time as possible.

The server shares the cores with this process, which runs all connections in one thread, on
asyncio's protocols. Each connection is a client that sends its next request after each answer.
"""

import asyncio
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

_HEALTH = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
_HEALTH_PAUSE = 0.02  # seconds between an answer and the next request


def load(
    port: int,
    path: str,
    texts: Sequence[str],
    clients: int,
    seconds: float,
    documents: Sequence[str] = (),
) -> dict[str, Any]:
    """Send requests of one text each for some seconds, and ask for the server's health meanwhile.

    Args:
        port: The server's port on 127.0.0.1.
        path: Where to post, such as `/v1/models/demo:predict`.
        texts: Each client sends all of them in turn, and begins at a different one.
        clients: Number of connections, each with one request under way.
        seconds: How long new requests are sent.
        documents: Each has one more client, which sends it again and again.

    Returns:
        `latencies`, `health` and `documents` with the seconds of answered requests; `seconds` of
        the measurement, and `cpu_seconds` of this process.

    Raises:
        RuntimeError: An answer has a status other than 200, or there is no answer.
    """
    requests = [_request(path, {"instances": [text]}) for text in texts]
    starts = [number * len(requests) // clients for number in range(clients)]
    crowd = [("latencies", requests[start:] + requests[:start]) for start in starts]
    crowd.append(("health", [_HEALTH]))
    for document in documents:
        body = {"signature_name": "translate_document", "instances": [document]}
        crowd.append(("documents", [_request(path, body)]))
    return asyncio.run(_load(port, crowd, seconds))


async def _load(port, crowd, seconds):
    loop = asyncio.get_running_loop()
    found: dict[str, list[float]] = {"latencies": [], "health": [], "documents": []}
    connections = []
    for kind, own in crowd:
        client = _Client(itertools.cycle(own), found[kind], _HEALTH_PAUSE * (kind == "health"))
        await loop.create_connection(lambda client=client: client, "127.0.0.1", port)
        connections.append(client)
    cpu, started = time.process_time(), time.perf_counter()
    for connection in connections:
        connection.ask()
    done, _ = await asyncio.wait([c.lost for c in connections], timeout=seconds)
    took, cpu = time.perf_counter() - started, time.process_time() - cpu
    counted = {kind: list(latencies) for kind, latencies in found.items()}
    for connection in connections:
        connection.close()
    if done:
        raise RuntimeError(f"the server failed: {done.pop().result()}")
    if not counted["latencies"]:
        raise RuntimeError(f"no answer in {seconds} seconds")
    return {**counted, "seconds": took, "cpu_seconds": cpu}


class _Client(asyncio.Protocol):
    """A connection to the server, which sends a request some seconds after each answer.

    Attributes:
        lost: A future that gets the reason why the connection ended.
    """

    def __init__(self, requests: Iterator[bytes], latencies: list[float], pause: float) -> None:
        self.lost = asyncio.get_running_loop().create_future()
        self._requests = requests
        self._latencies = latencies
        self._pause = pause
        self._buffer = b""
        self._sent = 0.0

    def ask(self) -> None:
        self._sent = time.perf_counter()
        self._transport.write(next(self._requests))

    def close(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found or len(body) < _content_length(head):
            return
        if not head.startswith(b"HTTP/1.1 200 "):
            self._end(self._buffer.decode("utf-8", "replace"))
            return
        self._latencies.append(time.perf_counter() - self._sent)
        self._buffer = b""
        if self._pause:
            asyncio.get_running_loop().call_later(self._pause, self.ask)
        else:
            self.ask()

    def connection_lost(self, error: Exception | None) -> None:
        self._end(f"it closed a connection ({error})")

    def _end(self, why: str) -> None:
        if not self.lost.done():
            self.lost.set_result(why)


def _request(path: str, content: dict[str, Any]) -> bytes:
    body = json.dumps(content, ensure_ascii=False).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _content_length(head: bytes) -> int:
    _, found, rest = head.lower().partition(b"\r\ncontent-length:")
    if not found:
        raise ValueError(f"an answer without a length: {head!r}")
    return int(rest.partition(b"\r\n")[0])

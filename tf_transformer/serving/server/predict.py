"""A predict request, from its body to the JSON of its answer."""

import asyncio
from concurrent.futures import Future

import tensorflow as tf
from starlette.requests import ClientDisconnect, Request

from tf_transformer.serving.server import rest
from tf_transformer.serving.server.batching import Batcher, Outputs, QueueFullError
from tf_transformer.serving.server.limits import Limits
from tf_transformer.serving.server.metrics import Metrics
from tf_transformer.serving.server.rest import RestError
from tf_transformer.serving.server.versions import Version, Versions

# HTTP statuses of TensorFlow's error codes, as TensorFlow Serving has them; others are 500.
_STATUSES = {
    1: 499, 3: 400, 4: 504, 5: 404, 6: 409, 7: 403, 8: 429, 9: 400, 10: 409, 11: 400, 12: 501,
    14: 503, 16: 401,
}  # fmt: skip
_LONGEST_REASON = 300
_MANY_VALUES = 20_000  # in an answer that takes so long to write that others should go on


class Predictor:
    """Answers predict requests.

    Args:
        versions: The model.
        batcher: What runs requests.
        limits: What a request may ask.
        metrics: What counts them.
    """

    def __init__(
        self, versions: Versions, batcher: Batcher, limits: Limits, metrics: Metrics
    ) -> None:
        self._versions = versions
        self._batcher = batcher
        self._limits = limits
        self._metrics = metrics

    async def answer(
        self, request: Request, name: str, number: int | None, label: str | None
    ) -> bytes:
        """Runs a request; `request.state.signature` is set as soon as it is known.

        Args:
            request: The request.
            name: The model it asks for.
            number: The version it asks for.
            label: The label of a version it asks for.

        Returns:
            The answer in JSON.

        Raises:
            RestError: It is refused or failed.
            ClientDisconnect: Nobody waits for the answer any more.
        """
        document = rest.parse(await self._body(request))
        if label is not None:
            raise RestError(400, f"Unrecognized servable version label: {label}")
        version = self._versions.acquire(number) if name == self._versions.name else None
        if version is None:
            wanted = f"Latest({name})" if number is None else f"Specific({name}, {number})"
            raise RestError(404, f"Servable not found for request: {wanted}")
        try:
            future = self._submit(request, document, version)
        except BaseException:
            self._versions.release(version)
            raise
        # When it has run, or has left the queue, and not when its client has gone.
        future.add_done_callback(lambda _: self._versions.release(version))
        outputs = await self._outputs(request, future)
        if sum(array.size for array in outputs.values()) < _MANY_VALUES:
            return rest.write_outputs(outputs, document.is_row)
        return await asyncio.to_thread(rest.write_outputs, outputs, document.is_row)

    async def _body(self, request: Request) -> bytearray:
        """The body, refused as soon as it is too long or too slow."""
        if request.headers.get("content-encoding", "identity") != "identity":
            raise RestError(415, "a compressed body is not understood")
        too_long = RestError(413, f"the request is larger than {self._limits.max_body_bytes} bytes")
        if int(request.headers.get("content-length", 0)) > self._limits.max_body_bytes:
            raise too_long
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > self._limits.max_body_bytes:
                        raise too_long
        except TimeoutError:
            raise RestError(
                408, f"the request did not arrive within {self._limits.body_seconds:g} seconds"
            ) from None
        return body

    def _submit(self, request: Request, document: rest.Document, version: Version) -> Future:
        """Puts a request into the queue."""
        signature = version.servable.signatures.get(document.signature)
        if signature is None:
            raise RestError(
                400, f'Serving signature name: "{document.signature}" not found in signature def'
            )
        request.state.signature = document.signature
        texts, characters = rest.read_texts(document, signature.inputs)
        count = len(next(iter(texts.values())))
        for what, has, limit in (
            ("texts", count, self._limits.max_texts),
            ("characters", characters, self._limits.max_characters),
        ):
            if has > limit:
                raise RestError(413, f"the request has {has} {what}; it may have {limit}")
        try:
            future = self._batcher.submit(version.servable, document.signature, texts, characters)
        except QueueFullError:
            raise RestError(
                429, f"{self._limits.max_queue} requests wait already; try again later"
            ) from None
        self._metrics.taken(document.signature, characters)
        return future

    async def _outputs(self, request: Request, future: Future) -> Outputs:
        """Waits until a request has run, its time is up, or its client has gone."""
        outputs = asyncio.wrap_future(future)
        try:
            await asyncio.wait(
                (outputs, request.state.lost),
                timeout=self._limits.request_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if outputs.done():
                return outputs.result()
        except tf.errors.OpError as error:
            reason = error.message.strip().partition("\n")[0][:_LONGEST_REASON]
            raise RestError(_STATUSES.get(error.error_code, 500), reason) from error
        finally:
            outputs.cancel()  # takes it from the queue if it is still there
        if request.state.lost.done():
            raise ClientDisconnect
        raise RestError(504, f"no answer within {self._limits.request_seconds:g} seconds")

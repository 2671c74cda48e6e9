"""Dynamic batching: requests that wait for the same model and signature run together."""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

MAX_TEXTS = 64
MAX_CHARACTERS = 20_000
# A request with more characters is large: a document, which takes as long as hundreds of sentences.
LARGE = 2_000
# The pause after a batch, as a fraction of the batch's time and at most in seconds: it brought 15 %
# more requests a second at 8 and at 64 clients of a tiny model on two cores.
_PAUSE = 0.2
_LONGEST_PAUSE = 0.02

Inputs = Mapping[str, Sequence[bytes]]
Outputs = dict[str, np.ndarray]


class Model(Protocol):
    """What runs a batch; see `session.SavedModelSession`."""

    def run(self, signature: str, inputs: Inputs) -> Outputs:
        """Runs a signature on n texts; each output has n rows."""
        ...


class QueueFullError(Exception):
    """Too many requests wait already."""


class _Key(NamedTuple):
    """What the requests of one batch have in common."""

    model: Model
    signature: str
    is_large: bool


@dataclasses.dataclass(eq=False)
class _Job:
    inputs: Inputs
    texts: int
    characters: int
    outputs: asyncio.Future


class Batcher:
    """Runs requests in threads, and those that wait for the same thing as one batch.

    A free thread takes what waits, up to the limits of a batch: a request that comes alone waits
    for nobody, and batches grow with the load. After a batch of several requests the thread pauses
    briefly, because their clients are about to ask again and one large batch takes less time than
    two. While large requests occupy all threads, small ones have another, so that sentences do not
    wait for documents. If a batch fails, each of its requests runs again alone, so that no request
    can fail another.

    All methods belong to one event loop.

    Args:
        threads: The number of batches that run at a time.
        max_queue: The number of requests that may wait.
        gather: Whether requests share batches at all.
        observe: Is called with the signature and the number of texts of each batch that has run.
    """

    def __init__(
        self,
        threads: int,
        max_queue: int,
        gather: bool = True,
        observe: Callable[[str, int], None] = lambda signature, texts: None,
    ) -> None:
        self._pool = concurrent.futures.ThreadPoolExecutor(threads + 1, "batches")
        self._threads = threads
        self._running = self._running_large = 0
        self._max_queue = max_queue
        self._max_texts = MAX_TEXTS if gather else 0
        self._observe = observe
        self._queues: dict[_Key, deque[_Job]] = {}
        self._tasks: set[asyncio.Task] = set()

    def __len__(self) -> int:
        """Returns the number of requests that wait."""
        return sum(map(len, list(self._queues.values())))

    async def run(self, model: Model, signature: str, inputs: Inputs, characters: int) -> Outputs:
        """Runs a request, which leaves the queue if the caller is cancelled.

        Args:
            model: The model.
            signature: A signature of the model.
            inputs: The same number of texts for each input of the signature.
            characters: The number of characters of all texts together.

        Returns:
            Arrays with a row for each text.

        Raises:
            QueueFullError: Too many requests wait already.
        """
        if len(self) >= self._max_queue:
            raise QueueFullError
        texts = len(next(iter(inputs.values())))
        job = _Job(inputs, texts, characters, asyncio.get_running_loop().create_future())
        key = _Key(model, signature, characters > LARGE)
        self._queues.setdefault(key, deque()).append(job)
        self._start_batches()
        try:
            return await job.outputs
        finally:
            self._remove(key, job)

    def close(self) -> None:
        """Ends the threads that have nothing to do, and the others after their batch."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _remove(self, key: _Key, job: _Job) -> None:
        with contextlib.suppress(KeyError, ValueError):  # it is running, or was answered
            self._queues[key].remove(job)
            if not self._queues[key]:
                del self._queues[key]

    def _start_batches(self) -> None:
        while (key := self._next_key()) is not None:
            self._running += 1
            self._running_large += key.is_large
            task = asyncio.create_task(self._work(key, self._take(key)))
            self._tasks.add(task)  # the loop itself keeps only weak references
            task.add_done_callback(self._tasks.discard)

    def _next_key(self) -> _Key | None:
        """Returns what may run now; the first has waited longest."""
        has_spare_thread = self._running_large == self._threads
        for key in self._queues:
            if self._running < self._threads + (has_spare_thread and not key.is_large):
                return key
        return None

    def _take(self, key: _Key) -> list[_Job]:
        """Takes the next batch from a queue."""
        queue = self._queues.pop(key)
        jobs = [queue.popleft()]
        texts, characters = jobs[0].texts, jobs[0].characters
        while queue:
            texts += queue[0].texts
            characters += queue[0].characters
            if texts > self._max_texts or characters > MAX_CHARACTERS:
                self._queues[key] = queue  # behind all others, so that models take turns
                break
            jobs.append(queue.popleft())
        return jobs

    async def _work(self, key: _Key, jobs: list[_Job]) -> None:
        started = time.monotonic()
        try:
            await self._answer(key, jobs)
            if len(jobs) > 1:
                await asyncio.sleep(min(_PAUSE * (time.monotonic() - started), _LONGEST_PAUSE))
        finally:
            self._running -= 1
            self._running_large -= key.is_large
            self._start_batches()

    async def _answer(self, key: _Key, jobs: list[_Job]) -> None:
        inputs = {name: [x for job in jobs for x in job.inputs[name]] for name in jobs[0].inputs}
        total = sum(job.texts for job in jobs)
        run = asyncio.get_running_loop().run_in_executor
        try:
            outputs = await run(self._pool, key.model.run, key.signature, inputs)
            if len(jobs) > 1 and any(array.shape[:1] != (total,) for array in outputs.values()):
                raise ValueError(f"{key.signature} does not return a row for each text")
        except Exception as error:
            if len(jobs) == 1:
                if not jobs[0].outputs.done():
                    jobs[0].outputs.set_exception(error)
                return
            for job in jobs:
                if not job.outputs.done():  # somebody still waits for it
                    await self._answer(key, [job])
            return
        self._observe(key.signature, total)
        start = 0
        for job in jobs:
            end = start + job.texts
            if not job.outputs.done():
                rows = {name: array[start:end] for name, array in outputs.items()}
                job.outputs.set_result(outputs if len(jobs) == 1 else rows)
            start = end

"""Dynamic batching: requests that wait for the same model and signature run together."""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

MAX_TEXTS = 64
MAX_CHARACTERS = 20_000
# A request with more characters is large: a document, which takes as long as hundreds of sentences.
LARGE = 2_000
_LARGE_NICENESS = 10  # a sentence then gets nine tenths of a core that it shares with a document
# The longest pause after a batch, as a fraction of the batch's time and in seconds.
_PAUSE = 0.2
_LONGEST_PAUSE = 0.02

Inputs = Mapping[str, Sequence[bytes]]
Outputs = dict[str, np.ndarray]


class QueueFullError(Exception):
    """Too many requests are waiting already."""


class _Key(NamedTuple):
    """The properties that all requests of one batch share."""

    model: Any
    signature: str
    is_large: bool


@dataclasses.dataclass(eq=False)
class _Job:
    key: _Key
    inputs: Inputs
    texts: int
    characters: int
    outputs: asyncio.Future


class Batcher:
    """A request queue whose threads run waiting requests of one kind as one batch.

    A free thread takes all waiting requests of a kind, up to the limits of a batch. So a single
    request runs at once, and batches grow with the load. After a batch of several requests, the
    thread pauses until its share of the requests waits, because its clients are about to send new
    ones and one large batch takes less time than two. While large requests occupy all threads,
    small requests use an extra thread, and large requests run at a low priority (on Linux, where a
    thread has its own), so that sentences do not wait for documents. If a batch fails, each of its
    requests runs again alone, so that no request can make another fail.

    All methods must be called in the same event loop.

    Args:
        threads: The number of batches that run at a time.
        max_queue: The number of requests that may wait.
        gather: Whether requests share batches at all.

    Attributes:
        num_batches, num_texts: Numbers of batches and of texts that have run so far.
    """

    def __init__(self, threads: int, max_queue: int, gather: bool = True) -> None:
        self._pool = concurrent.futures.ThreadPoolExecutor(threads + 1, "batches")
        self._pool_of_large = concurrent.futures.ThreadPoolExecutor(threads, "large", _step_back)
        self._threads = threads
        self._running: dict[asyncio.Task, _Key] = {}  # what runs; the loop has only weak references
        self._running_requests = 0
        self._max_queue = max_queue
        self._max_texts = MAX_TEXTS if gather else 0
        self.num_batches = self.num_texts = 0
        self._queue: dict[_Job, None] = {}  # in the order of their arrival
        self._arrived = asyncio.Event()  # wakes threads that pause

    def __len__(self) -> int:
        """Return the number of requests that wait."""
        return len(self._queue)

    def run(
        self, model: Any, signature: str, inputs: Inputs, characters: int
    ) -> asyncio.Future[Outputs]:
        """Return a future of a request's outputs: arrays with a row for each text.

        `model` is a `SavedModelSession`. `inputs` has the same number of texts for each input of
        the signature; `characters` is the total length of the texts. The request leaves the queue
        if the future is cancelled.

        Raises:
            QueueFullError: Too many requests wait already.
        """
        if len(self._queue) >= self._max_queue:
            raise QueueFullError
        texts = len(next(iter(inputs.values())))
        outputs = asyncio.get_running_loop().create_future()
        job = _Job(_Key(model, signature, characters > LARGE), inputs, texts, characters, outputs)
        self._queue[job] = None
        self._arrived.set()
        self._arrived.clear()
        self._start_batches()
        outputs.add_done_callback(lambda _: self._queue.pop(job, None))
        return outputs

    def close(self) -> None:
        """End idle threads at once, and busy threads after their batch."""
        for pool in (self._pool, self._pool_of_large):
            pool.shutdown(wait=False, cancel_futures=True)

    def _start_batches(self) -> None:
        while jobs := self._take():
            self._running_requests += len(jobs)
            self._running[asyncio.create_task(self._work(jobs))] = jobs[0].key

    def _take(self) -> list[_Job]:
        """Take the longest-waiting request that may run now, and others with the same key."""
        is_free = len(self._running) < self._threads
        are_large = [key.is_large for key in self._running.values()]
        # While large requests occupy all threads, small ones use an extra thread.
        if not is_free and are_large != [True] * self._threads:
            return []
        jobs: list[_Job] = []
        texts = characters = 0
        for job in self._queue:
            if (job.key.is_large and not is_free) or (jobs and job.key != jobs[0].key):
                continue
            texts += job.texts
            characters += job.characters
            if jobs and (texts > self._max_texts or characters > MAX_CHARACTERS):
                break
            jobs.append(job)
        for job in jobs:
            del self._queue[job]
        return jobs

    async def _work(self, jobs: list[_Job]) -> None:
        started = time.monotonic()
        try:
            await self._answer(jobs)
            share = (self._running_requests + len(self._queue)) / self._threads
            self._running_requests -= len(jobs)
            if len(jobs) > 1:
                pause = min(_PAUSE * (time.monotonic() - started), _LONGEST_PAUSE)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        while len(self._queue) < share:
                            await self._arrived.wait()
        finally:
            del self._running[asyncio.current_task()]
            self._start_batches()

    async def _answer(self, jobs: list[_Job]) -> None:
        model, signature, is_large = jobs[0].key
        pool = self._pool_of_large if is_large else self._pool
        inputs = {name: [x for job in jobs for x in job.inputs[name]] for name in jobs[0].inputs}
        total = sum(job.texts for job in jobs)
        loop = asyncio.get_running_loop()
        try:
            outputs = await loop.run_in_executor(pool, model.run, signature, inputs)
            if len(jobs) > 1 and any(array.shape[:1] != (total,) for array in outputs.values()):
                raise ValueError(f"{signature} does not return a row for each text")
        except Exception as error:
            for job in jobs:
                if job.outputs.done():  # nobody waits for it
                    continue
                if len(jobs) == 1:
                    job.outputs.set_exception(error)
                else:
                    await self._answer([job])
            return
        self.num_batches += 1
        self.num_texts += total
        start = 0
        for job in jobs:
            rows = {name: array[start : start + job.texts] for name, array in outputs.items()}
            start += job.texts
            if not job.outputs.done():
                job.outputs.set_result(outputs if len(jobs) == 1 else rows)


def _step_back() -> None:
    """Let other threads run before this one."""
    if sys.platform == "linux":  # elsewhere the priority is that of the whole process
        os.nice(_LARGE_NICENESS)

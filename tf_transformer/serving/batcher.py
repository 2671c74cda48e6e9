"""Dynamic batching: requests that wait for the same signature run together."""

import asyncio
import concurrent.futures
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from tf_transformer.serving.session import SavedModelSession

MAX_TEXTS = 64  # as in exports' settings for TensorFlow Serving
MAX_CHARACTERS = 20_000  # 64 texts of three sentences; a batch takes memory for each sentence
# Seconds after a batch of several requests. Without them, batches are half as large under load, and
# a request takes a third more of the processor's time.
_PAUSE = 0.005

Inputs = Mapping[str, Sequence[bytes]]
Outputs = dict[str, np.ndarray]


@dataclasses.dataclass(eq=False)
class _Job:
    signature: str
    inputs: Inputs
    texts: int
    characters: int
    outputs: asyncio.Future


class Batcher:
    """A request queue whose threads run waiting requests for one signature as one batch.

    A free thread takes all waiting requests for a signature, up to the limits of a batch. So a
    single request runs at once, and batches grow with the load. After a batch of several requests,
    the thread pauses, because its clients are about to send new ones. If a batch fails, each of its
    requests runs again alone, so that no request can make another fail.

    All methods must be called in the same event loop.

    Args:
        model: The model that runs the batches.
        threads: The number of batches that run at a time.
    """

    def __init__(self, model: SavedModelSession, threads: int) -> None:
        self._model = model
        self._threads = threads
        self._pool = concurrent.futures.ThreadPoolExecutor(threads, "batches")
        self._running: set[asyncio.Task] = set()  # the event loop has only weak references
        self._queue: dict[_Job, None] = {}  # in the order of their arrival

    def __len__(self) -> int:
        """Return the number of requests that wait."""
        return len(self._queue)

    def run(self, signature: str, inputs: Inputs, characters: int) -> asyncio.Future[Outputs]:
        """Return a future of a request's outputs: arrays with a row for each text.

        `inputs` has the same number of texts for each input of the signature; `characters` is the
        total length of the texts. The request leaves the queue if the future is cancelled.
        """
        outputs = asyncio.get_running_loop().create_future()
        texts = len(next(iter(inputs.values())))
        self._queue[job := _Job(signature, inputs, texts, characters, outputs)] = None
        self._start_batches()
        outputs.add_done_callback(lambda _: self._queue.pop(job, None))
        return outputs

    def close(self) -> None:
        """End idle threads at once, and busy threads after their batch."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _start_batches(self) -> None:
        while self._queue and len(self._running) < self._threads:
            self._running.add(asyncio.create_task(self._work(self._take())))

    def _take(self) -> list[_Job]:
        """Take the longest-waiting request, and others for its signature while they fit."""
        jobs: list[_Job] = []
        texts = characters = 0
        for job in self._queue:
            if jobs and job.signature != jobs[0].signature:
                continue
            texts += job.texts
            characters += job.characters
            if jobs and (texts > MAX_TEXTS or characters > MAX_CHARACTERS):
                break
            jobs.append(job)
        for job in jobs:
            del self._queue[job]
        return jobs

    async def _work(self, jobs: list[_Job]) -> None:
        await self._answer(jobs)
        if len(jobs) > 1:
            await asyncio.sleep(_PAUSE)
        self._running.remove(asyncio.current_task())
        self._start_batches()

    async def _answer(self, jobs: list[_Job]) -> None:
        signature = jobs[0].signature
        inputs = {name: [x for job in jobs for x in job.inputs[name]] for name in jobs[0].inputs}
        total = sum(job.texts for job in jobs)
        loop = asyncio.get_running_loop()
        try:
            outputs = await loop.run_in_executor(self._pool, self._model.run, signature, inputs)
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
        start = 0
        for job in jobs:
            rows = {name: array[start : start + job.texts] for name, array in outputs.items()}
            start += job.texts
            if not job.outputs.done():
                job.outputs.set_result(outputs if len(jobs) == 1 else rows)

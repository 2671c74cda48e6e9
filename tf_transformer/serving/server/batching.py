"""Requests that come together, run together: a queue in front of a model."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol

import numpy as np

# After a batch, as a part of its time, and in seconds: 15 % more requests a second at 8 and at 64
# clients of a tiny model on two cores.
_PAUSE = 0.2
_LONGEST_PAUSE = 0.02

Inputs = Mapping[str, Sequence[bytes]]
Outputs = dict[str, np.ndarray]


class Model(Protocol):
    """What a batch runs on; see `servable.Servable`."""

    def run(self, signature: str, inputs: Inputs) -> Outputs:
        """Runs a signature on texts, n in and n out."""
        ...


class QueueFullError(Exception):
    """As many requests wait as may."""


class _Job(NamedTuple):
    number: int
    inputs: Inputs
    texts: int
    characters: int
    future: Future


class Batcher:
    """Runs requests in threads, those of one signature and model together.

    A thread that is free takes what waits, at once and in order, up to the limits of a batch: one
    request alone waits for nobody, and the more come the larger are the batches. After a batch of
    several requests a thread pauses for a moment, since their clients are about to ask again, and
    one large batch takes less time than two. A request whose future is cancelled leaves the queue.
    If a batch fails, each of its requests runs again alone, so that one cannot fail the others.

    Args:
        threads: Batches at a time.
        max_texts: Texts of a batch; a request with more is a batch of its own.
        max_characters: Characters of a batch, likewise.
        max_queue: Requests that may wait.
        gather: Whether requests share batches at all.
        observe: Called with the signature and the texts of each batch that has run.
    """

    def __init__(
        self,
        threads: int,
        max_texts: int,
        max_characters: int,
        max_queue: int,
        gather: bool = True,
        observe: Callable[[str, int], None] = lambda signature, texts: None,
    ) -> None:
        self._max_texts = max_texts if gather else 0
        self._max_characters = max_characters
        self._max_queue = max_queue
        self._observe = observe
        self._changed = threading.Condition()
        # A queue for each model and signature; a job's number says which of all came first.
        self._queues: dict[tuple[Model, str], deque[_Job]] = {}
        self._number = 0
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"batches-{index}", daemon=True)
            for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        """The requests that wait."""
        with self._changed:
            return sum(map(len, self._queues.values()))

    def submit(self, model: Model, signature: str, inputs: Inputs, characters: int) -> Future:
        """Adds a request to the queue.

        Args:
            model: What runs it.
            signature: A signature of the model.
            inputs: For each input of the signature as many texts.
            characters: How long they are together.

        Returns:
            The future of its outputs: arrays with the request's texts as axis 0.

        Raises:
            QueueFullError: Too many wait already.
            RuntimeError: The queue is closed.
        """
        future: Future = Future()
        texts = len(next(iter(inputs.values())))
        key = (model, signature)
        with self._changed:
            if self._closed:
                raise RuntimeError("the queue is closed")
            if sum(map(len, self._queues.values())) >= self._max_queue:
                raise QueueFullError
            self._number += 1
            job = _Job(self._number, inputs, texts, characters, future)
            self._queues.setdefault(key, deque()).append(job)
            self._changed.notify()
        # By its number: a future that held its own job would wait for the garbage collector.
        number = job.number
        future.add_done_callback(lambda future: future.cancelled() and self._remove(key, number))
        return future

    def close(self, timeout: float | None = None) -> bool:
        """Runs what waits, and ends the threads.

        Args:
            timeout: Seconds to wait for each thread.

        Returns:
            Whether all have ended.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout)
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        while batch := self._next():
            (model, signature), jobs = batch
            started = time.monotonic()
            self._run(model, signature, jobs)
            pause = (time.monotonic() - started) * _PAUSE if len(jobs) > 1 else 0
            del batch, model, jobs  # a thread that waits keeps no model in memory
            time.sleep(min(pause, _LONGEST_PAUSE))

    def _next(self) -> tuple[tuple[Model, str], list[_Job]] | None:
        """Takes a batch from the queue that has waited longest; None at the end."""
        with self._changed:
            while True:
                while not self._queues:
                    if self._closed:
                        return None
                    self._changed.wait()
                key = min(self._queues, key=lambda key: self._queues[key][0].number)
                jobs = self._take(self._queues[key])
                if not self._queues[key]:
                    del self._queues[key]
                if jobs:
                    return key, jobs

    def _take(self, queue: deque[_Job]) -> list[_Job]:
        jobs: list[_Job] = []
        texts = characters = 0
        while queue:
            texts += queue[0].texts
            characters += queue[0].characters
            if jobs and (texts > self._max_texts or characters > self._max_characters):
                break
            job = queue.popleft()
            if job.future.set_running_or_notify_cancel():
                jobs.append(job)
        return jobs

    def _remove(self, key: tuple[Model, str], number: int) -> None:
        with self._changed:
            # Where a thread has taken it, it is not there any more.
            left = deque(job for job in self._queues.pop(key, ()) if job.number != number)
            if left:
                self._queues[key] = left

    def _run(self, model: Model, signature: str, jobs: Sequence[_Job]) -> None:
        try:
            outputs = _run_together(model, signature, jobs)
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].future.set_exception(error)
                return
            for job in jobs:
                self._run(model, signature, [job])
            return
        total = sum(job.texts for job in jobs)
        self._observe(signature, total)
        start = 0
        for job in jobs:
            end = start + job.texts
            rows = outputs
            if len(jobs) > 1:
                rows = {name: array[start:end] for name, array in outputs.items()}
            job.future.set_result(rows)
            start = end


def _run_together(model: Model, signature: str, jobs: Sequence[_Job]) -> Outputs:
    if len(jobs) == 1:
        return model.run(signature, jobs[0].inputs)
    inputs = {name: [text for job in jobs for text in job.inputs[name]] for name in jobs[0].inputs}
    outputs = model.run(signature, inputs)
    total = sum(job.texts for job in jobs)
    for name, array in outputs.items():
        if array.shape[:1] != (total,):
            raise ValueError(f"output {name} has no row for each text")
    return outputs

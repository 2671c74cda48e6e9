"""The queue of a server: which requests run together, and that each gets its own answer."""

import asyncio
import collections
import os
import random
import sys
import threading

import pytest
from stub_server import StubModel

from tf_transformer.serving.batching import (
    LARGE,
    MAX_CHARACTERS,
    MAX_TEXTS,
    Batcher,
    QueueFullError,
)


@pytest.fixture
def model():
    model = StubModel()
    yield model
    model.go.set()


def submit(batcher, model, texts, signature="serving_default"):
    """The result of a request."""
    encoded = [text.encode() for text in texts]
    return batcher.run(model, signature, {"text": encoded}, sum(map(len, texts)))


async def rows(task):
    return (await asyncio.wait_for(task, 20))["translation"].tolist()


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


def answers(model, requests, gather=True):
    """The answers of requests that wait together: model, texts and perhaps a signature of each."""

    async def main():
        batcher = Batcher(1, 100, gather)
        submit(batcher, model, ["wait"])
        await until(lambda: model.batches)
        tasks = [submit(batcher, *request) for request in requests]
        await until(lambda: len(batcher) == len(requests))
        model.go.set()
        return [await rows(task) for task in tasks]

    return asyncio.run(main())


LONG = "x" * (MAX_CHARACTERS // 12)


@pytest.mark.parametrize(
    ("gather", "requests", "sizes"),
    [
        (True, [["a"] * (MAX_TEXTS - 1), ["b"], ["c"]], [MAX_TEXTS, 1]),
        (True, [["a"] * (MAX_TEXTS + 9), ["b"], ["c"]], [MAX_TEXTS + 9, 2]),
        (True, [[LONG]] * 13, [12, 1]),
        (False, [["a"], ["b"], ["c"]], [1, 1, 1]),
    ],
    ids=["texts", "one of too many", "characters", "no batching"],
)
def test_a_batch_has_limits(model, gather, requests, sizes):
    assert len(LONG) < LARGE
    found = answers(model, [(model, texts) for texts in requests], gather)
    assert found == [[text.upper().encode() for text in texts] for texts in requests]
    assert [len(batch) for batch in model.batches[1:]] == sizes


def test_models_and_signatures_do_not_mix(model):
    other = StubModel("2 ")
    requests = [(model, "a"), (other, "b"), (model, "c", "other"), (other, "d")]
    assert answers(model, requests) == [[b"A"], [b"2 B"], [b"C"], [b"2 D"]]
    assert model.batches[1:] == [[b"a"], [b"c"]] and other.batches == [[b"b", b"d"]]


def test_a_model_that_cannot_be_batched_runs_requests_alone(model):
    class OneRow(StubModel):
        def run(self, *request):
            return {name: array[:1] for name, array in super().run(*request).items()}

    alone = OneRow()
    assert answers(model, [(alone, "a"), (alone, "b")]) == [[b"A"], [b"B"]]
    assert alone.batches == [[b"a", b"b"], [b"a"], [b"b"]]


def test_a_request_that_is_cancelled_leaves_the_queue(model):
    async def main():
        batcher = Batcher(1, 2)
        submit(batcher, model, ["wait"])
        await until(lambda: model.batches)
        first, second = (submit(batcher, model, text) for text in "ab")
        await until(lambda: len(batcher) == 2)
        with pytest.raises(QueueFullError):
            await submit(batcher, model, "c")
        second.cancel()
        await until(lambda: len(batcher) == 1)
        third = submit(batcher, model, "d")
        await until(lambda: len(batcher) == 2)
        model.go.set()
        assert await rows(first) == [b"A"] and await rows(third) == [b"D"]

    asyncio.run(main())
    assert model.batches[1:] == [[b"a", b"d"]]


def test_sentences_share_a_batch_while_documents_run_and_wait(model):
    async def main():
        batcher = Batcher(2, 100)
        documents = [submit(batcher, model, ["wait", "x" * MAX_CHARACTERS]) for _ in range(6)]
        await until(lambda: len(model.batches) == 2)
        first = submit(batcher, model, "a")
        assert await rows(first) == [b"A"]
        others = [submit(batcher, model, text) for text in "bcd"]
        assert [await rows(task) for task in others] == [[b"B"], [b"C"], [b"D"]]
        assert len(batcher) == 4, "documents wait for documents"
        documents[0].cancel()  # it runs
        documents[5].cancel()
        await until(lambda: len(batcher) == 3)
        model.go.set()
        for task in documents[1:5]:
            await rows(task)

    asyncio.run(main())
    sentences = [batch for batch in model.batches if b"wait" not in batch]
    assert sentences == [[b"a"], [b"b"], [b"c", b"d"]]
    assert len(model.batches) - len(sentences) == 5


def test_clients_that_ask_again_share_the_next_batch(model):
    async def client(batcher):
        for _ in range(3):
            await rows(submit(batcher, model, "a"))

    async def main():
        batcher = Batcher(1, 100)
        await asyncio.gather(*(client(batcher) for _ in range(8)))

    model.delays["serving_default"] = 0.1
    asyncio.run(main())
    assert [*map(len, model.batches)] == [1, 7, 8, 8]


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_documents_run_at_a_low_priority(model):
    class Noting(StubModel):
        def run(self, *request):
            priority[request[1]["text"][0][:1]] = os.getpriority(os.PRIO_PROCESS, 0)
            return super().run(*request)

    async def main():
        batcher, noting = Batcher(1, 100), Noting()
        for text in ("d" * (LARGE + 1), "s"):
            await rows(submit(batcher, noting, [text]))

    priority: dict[bytes, int] = {}
    asyncio.run(main())
    assert priority[b"d"] > priority[b"s"] == os.getpriority(os.PRIO_PROCESS, 0)


def test_memory_is_bounded_by_the_threads_and_the_size_of_a_batch(model):
    class Counting(StubModel):
        running: collections.Counter[str] = collections.Counter()
        lock = threading.Lock()

        def run(self, signature, inputs):
            texts = inputs["text"]
            kind = "large" if len(texts[0]) > LARGE else "small"
            with self.lock:
                self.running[kind] += 1
                most["characters"] = max(most["characters"], sum(map(len, texts)))
                most["large"] = max(most["large"], self.running["large"])
                most["batches"] = max(most["batches"], self.running.total())
            try:
                return super().run(signature, inputs)
            finally:
                with self.lock:
                    self.running[kind] -= 1

    async def main():
        batcher = Batcher(2, 1000)
        texts = ["x" * rng.choice([1, 40, LARGE - 1, MAX_CHARACTERS]) for _ in range(300)]
        await asyncio.gather(*(rows(submit(batcher, counting, [text])) for text in texts))

    most: collections.Counter[str] = collections.Counter()
    rng, counting = random.Random(0), Counting()
    counting.delays["serving_default"] = 0.002
    asyncio.run(main())
    assert most["large"] == 2 and most["batches"] <= 3
    assert most["characters"] <= MAX_CHARACTERS


def test_many_threads_get_their_own_rows(model):
    async def ask(batcher, seed):
        rng = random.Random(seed)
        for _ in range(60):
            texts = [str(rng.random()) for _ in range(rng.randint(0, 5))]
            texts += ["y" * LARGE] * (rng.random() < 0.1)
            task = submit(batcher, model, texts, rng.choice(["serving_default", "other"]))
            if rng.random() < 0.2:
                await asyncio.sleep(0)
                task.cancel()
                continue
            assert await rows(task) == [text.upper().encode() for text in texts]

    async def main():
        batcher = Batcher(3, 1000)
        await asyncio.gather(*(ask(batcher, seed) for seed in range(16)))

    asyncio.run(main())
    assert len(model.batches) < 16 * 60

"""The queue of a server: which requests run together, and that each gets its own answer."""

import asyncio
import collections
import random
import threading

import pytest
from stub_server import StubModel

from tf_transformer.serving.batcher import MAX_CHARACTERS, MAX_TEXTS, Batcher


@pytest.fixture
def model():
    model = StubModel()
    yield model
    model.go.set()


def submit(batcher, texts, signature="serving_default"):
    """The result of a request."""
    encoded = [text.encode() for text in texts]
    return batcher.run(signature, {"text": encoded}, sum(map(len, texts)))


async def rows(task):
    return (await asyncio.wait_for(task, 20))["translation"].tolist()


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


def answers(model, requests):
    """The answers of requests that wait together: texts and perhaps a signature of each."""

    async def main():
        batcher = Batcher(model, 1)
        submit(batcher, ["wait"])
        await until(lambda: model.batches)
        tasks = [submit(batcher, *request) for request in requests]
        await until(lambda: len(batcher) == len(requests))
        model.go.set()
        return [await rows(task) for task in tasks]

    return asyncio.run(main())


LONG = "x" * (MAX_CHARACTERS // 12)


@pytest.mark.parametrize(
    ("requests", "sizes"),
    [
        ([["a"] * (MAX_TEXTS - 1), ["b"], ["c"]], [MAX_TEXTS, 1]),
        ([["a"] * (MAX_TEXTS + 9), ["b"], ["c"]], [MAX_TEXTS + 9, 2]),
        ([[LONG]] * 13, [12, 1]),
    ],
    ids=["texts", "one of too many", "characters"],
)
def test_a_batch_has_limits(model, requests, sizes):
    found = answers(model, [(texts,) for texts in requests])
    assert found == [[text.upper().encode() for text in texts] for texts in requests]
    assert [len(batch) for batch in model.batches[1:]] == sizes


def test_signatures_do_not_mix(model):
    requests = [("a",), ("b", "other"), ("c",), ("d", "other")]
    assert answers(model, requests) == [[b"A"], [b"B"], [b"C"], [b"D"]]
    assert model.batches[1:] == [[b"a", b"c"], [b"b", b"d"]]


def test_a_model_that_cannot_be_batched_runs_requests_alone():
    class OneRow(StubModel):
        def run(self, *request):
            return {name: array[:1] for name, array in super().run(*request).items()}

    alone = OneRow()
    assert answers(alone, [("a",), ("b",)]) == [[b"A"], [b"B"]]
    assert alone.batches[1:] == [[b"a", b"b"], [b"a"], [b"b"]]


def test_clients_that_ask_again_share_the_next_batch(model):
    async def client(batcher):
        for _ in range(3):
            await rows(submit(batcher, "a"))

    async def main():
        batcher = Batcher(model, 1)
        await asyncio.gather(*(client(batcher) for _ in range(8)))

    model.delays["serving_default"] = 0.1
    asyncio.run(main())
    assert [*map(len, model.batches)] == [1, 7, 8, 8]


def test_memory_is_bounded_by_the_threads_and_the_size_of_a_batch():
    class Counting(StubModel):
        running = 0
        lock = threading.Lock()

        def run(self, signature, inputs):
            with self.lock:
                self.running += 1
                most["characters"] = max(most["characters"], sum(map(len, inputs["text"])))
                most["batches"] = max(most["batches"], self.running)
            try:
                return super().run(signature, inputs)
            finally:
                with self.lock:
                    self.running -= 1

    async def main():
        batcher = Batcher(counting, 2)
        texts = ["x" * rng.choice([1, 40, 1999, MAX_CHARACTERS]) for _ in range(300)]
        await asyncio.gather(*(rows(submit(batcher, [text])) for text in texts))

    most: collections.Counter[str] = collections.Counter()
    rng, counting = random.Random(0), Counting()
    counting.delays["serving_default"] = 0.002
    asyncio.run(main())
    assert most["batches"] == 2
    assert most["characters"] <= MAX_CHARACTERS


def test_many_threads_get_their_own_rows(model):
    async def ask(batcher, seed):
        rng = random.Random(seed)
        for _ in range(60):
            texts = [str(rng.random()) for _ in range(rng.randint(0, 5))]
            texts += ["y" * MAX_CHARACTERS] * (rng.random() < 0.1)
            task = submit(batcher, texts, rng.choice(["serving_default", "other"]))
            if rng.random() < 0.2:
                await asyncio.sleep(0)
                task.cancel()
                continue
            assert await rows(task) == [text.upper().encode() for text in texts]

    async def main():
        batcher = Batcher(model, 3)
        await asyncio.gather(*(ask(batcher, seed) for seed in range(16)))

    asyncio.run(main())
    assert len(model.batches) < 16 * 60

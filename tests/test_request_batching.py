"""The queue of a server: which requests run together, and that each gets its own answer."""

import asyncio
import random

import numpy as np
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


def in_loop(coroutine):
    asyncio.run(asyncio.wait_for(coroutine, 60))


def submit(batcher, model, *texts, signature="serving_default"):
    """The task of a request."""
    encoded = [text.encode() for text in texts]
    request = batcher.run(model, signature, {"text": encoded}, sum(map(len, texts)))
    return asyncio.create_task(request)


async def rows(task):
    return (await asyncio.wait_for(task, 20))["translation"].tolist()


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


async def behind_a_batch(batcher, model):
    """Keeps a thread at work until `model.go` is set."""
    first = submit(batcher, model, "wait")
    await until(lambda: model.batches)
    return first


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

    async def main():
        batcher = Batcher(1, 100, gather)
        await behind_a_batch(batcher, model)
        tasks = [submit(batcher, model, *texts) for texts in requests]
        await until(lambda: len(batcher) == len(requests))
        model.go.set()
        for task, texts in zip(tasks, requests, strict=True):
            assert await rows(task) == [text.upper().encode() for text in texts]

    in_loop(main())
    assert [len(batch) for batch in model.batches[1:]] == sizes


def test_models_and_signatures_do_not_mix(model):
    other = StubModel("2 ")

    async def main():
        batcher = Batcher(1, 1000)
        await behind_a_batch(batcher, model)
        tasks = [
            submit(batcher, model, "a"),
            submit(batcher, other, "b"),
            submit(batcher, model, "c", signature="other"),
            submit(batcher, other, "d"),
        ]
        await until(lambda: len(batcher) == 4)
        model.go.set()
        assert [await rows(task) for task in tasks] == [[b"A"], [b"2 B"], [b"C"], [b"2 D"]]

    in_loop(main())
    assert model.batches[1:] == [[b"a"], [b"c"]] and other.batches == [[b"b", b"d"]]


def test_a_model_that_cannot_be_batched_runs_requests_alone(model):
    async def main():
        batcher = Batcher(1, 100)
        await behind_a_batch(batcher, model)
        model.run = lambda signature, inputs: {"translation": np.array([b"one row"], object)}
        tasks = [submit(batcher, model, text) for text in "ab"]
        await until(lambda: len(batcher) == 2)
        model.go.set()
        assert [await rows(task) for task in tasks] == [[b"one row"], [b"one row"]]

    in_loop(main())


def test_a_request_that_is_cancelled_leaves_the_queue(model):
    async def main():
        batcher = Batcher(1, 2)
        await behind_a_batch(batcher, model)
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

    in_loop(main())
    assert model.batches[1:] == [[b"a", b"d"]]


def test_many_threads_get_their_own_rows(model):
    async def ask(batcher, seed):
        rng = random.Random(seed)
        for _ in range(60):
            texts = [str(rng.random()) for _ in range(rng.randint(0, 5))]
            texts += ["y" * LARGE] * (rng.random() < 0.1)
            task = submit(
                batcher, model, *texts, signature=rng.choice(["serving_default", "other"])
            )
            if rng.random() < 0.2:
                await asyncio.sleep(0)
                task.cancel()
                continue
            assert await rows(task) == [text.upper().encode() for text in texts]

    async def main():
        batcher = Batcher(3, 1000)
        await asyncio.gather(*(ask(batcher, seed) for seed in range(16)))

    in_loop(main())
    assert len(model.batches) < 16 * 60

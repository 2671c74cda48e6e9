"""The queue of a server: which requests run together, and that each gets its own answer."""

import concurrent.futures
import random
import threading

import numpy as np
import pytest
from stub_server import StubModel, eventually

from tf_transformer.serving.server.batching import Batcher, QueueFullError


def make_batcher(threads=1, max_texts=64, max_characters=10_000, max_queue=100, **options):
    return Batcher(threads, max_texts, max_characters, max_queue, **options)


@pytest.fixture
def model():
    model = StubModel()
    yield model
    model.go.set()


def submit(batcher, model, *texts, signature="serving_default"):
    texts = [text.encode() for text in texts]
    characters = sum(map(len, texts))
    return batcher.submit(model, signature, {"text": texts}, characters)


def result(future):
    return future.result(timeout=20)["translation"].tolist()


def behind_a_batch(batcher, model):
    """Keeps the only thread at work until `model.go` is set."""
    first = submit(batcher, model, "wait")
    eventually(lambda: model.batches)
    return first


def test_a_request_alone_waits_for_nobody(model):
    batcher = make_batcher()
    assert result(submit(batcher, model, "a")) == [b"A"]
    assert model.batches == [[b"a"]]
    assert batcher.close()


def test_what_waits_is_one_batch_and_each_gets_its_rows(model):
    sizes = []
    batcher = make_batcher(observe=lambda signature, texts: sizes.append((signature, texts)))
    first = behind_a_batch(batcher, model)
    futures = [submit(batcher, model, *texts) for texts in (["a", "b"], [], ["c"])]
    assert len(batcher) == 3
    model.go.set()
    assert [result(future) for future in futures] == [[b"A", b"B"], [], [b"C"]]
    assert result(first) == [b"WAIT"]
    assert model.batches == [[b"wait"], [b"a", b"b", b"c"]]
    assert sizes == [("serving_default", 1), ("serving_default", 3)]
    assert batcher.close() and len(batcher) == 0


@pytest.mark.parametrize(
    ("limits", "requests", "batches"),
    [
        ({"max_texts": 3}, ["ab", "c", "d"], ["abc", "d"]),
        ({"max_texts": 3}, ["abcde", "f", "g"], ["abcde", "fg"]),
        ({"max_texts": 3}, ["a", "bcde", "f"], ["a", "bcde", "f"]),
        ({"max_characters": 4}, ["ab", "cd", "e"], ["abcd", "e"]),
        ({"gather": False}, ["ab", "c", "d"], ["ab", "c", "d"]),
    ],
)
def test_a_batch_has_limits_and_keeps_the_order(model, limits, requests, batches):
    batcher = make_batcher(**limits)
    behind_a_batch(batcher, model)
    futures = [submit(batcher, model, *request) for request in requests]
    model.go.set()
    for future, request in zip(futures, requests, strict=True):
        assert result(future) == [text.upper().encode() for text in request]
    found = [b"".join(batch).decode() for batch in model.batches[1:]]
    assert found == batches


def test_models_and_signatures_do_not_mix_and_the_oldest_comes_first(model):
    other = StubModel("2 ")
    batcher = make_batcher()
    behind_a_batch(batcher, model)
    futures = [
        submit(batcher, model, "a"),
        submit(batcher, other, "b"),
        submit(batcher, model, "c", signature="other"),
        submit(batcher, other, "d"),
    ]
    model.go.set()
    assert [result(future) for future in futures] == [[b"A"], [b"2 B"], [b"C"], [b"2 D"]]
    assert model.batches == [[b"wait"], [b"a"], [b"c"]]
    assert other.batches == [[b"b", b"d"]]


def test_a_request_that_fails_fails_alone(model):
    batcher = make_batcher()
    behind_a_batch(batcher, model)
    good, bad, fine = (submit(batcher, model, text) for text in ("a", "fail", "b"))
    model.go.set()
    assert result(good) == [b"A"] and result(fine) == [b"B"]
    with pytest.raises(ValueError, match="a text fails"):
        bad.result(timeout=20)
    assert model.batches[1:] == [[b"a", b"fail", b"b"], [b"a"], [b"fail"], [b"b"]]


def test_a_model_that_cannot_be_batched_runs_requests_alone(model):
    model.run = lambda signature, inputs: {"translation": np.array([b"one row"], object)}
    batcher = make_batcher()
    waiting = threading.Event()
    batcher.submit(StubWaiting(waiting), "serving_default", {"text": [b""]}, 0)
    futures = [submit(batcher, model, text) for text in "ab"]
    waiting.set()
    assert [result(future) for future in futures] == [[b"one row"], [b"one row"]]


class StubWaiting:
    def __init__(self, event):
        self.event = event

    def run(self, signature, inputs):
        assert self.event.wait(20)
        return {}


def test_a_request_that_is_cancelled_leaves_the_queue(model):
    batcher = make_batcher()
    first = behind_a_batch(batcher, model)
    futures = [submit(batcher, model, text) for text in "abc"]
    assert futures[1].cancel()
    assert len(batcher) == 2
    assert not first.cancel(), "what runs cannot be cancelled"
    model.go.set()
    assert result(futures[0]) == [b"A"] and result(futures[2]) == [b"C"]
    assert model.batches[1:] == [[b"a", b"c"]]


def test_a_full_queue_refuses_until_there_is_space(model):
    batcher = make_batcher(max_queue=2)
    behind_a_batch(batcher, model)
    futures = [submit(batcher, model, text) for text in "ab"]
    with pytest.raises(QueueFullError):
        submit(batcher, model, "c")
    futures[0].cancel()
    assert submit(batcher, model, "d") and len(batcher) == 2


def test_closing_runs_what_waits_and_takes_nothing_more(model):
    batcher = make_batcher()
    behind_a_batch(batcher, model)
    last = submit(batcher, model, "a")
    assert not batcher.close(timeout=0.05), "a batch still runs"
    with pytest.raises(RuntimeError, match="closed"):
        submit(batcher, model, "b")
    model.go.set()
    assert batcher.close(timeout=20)
    assert result(last) == [b"A"]


def test_many_threads_get_their_own_rows(model):
    batcher = make_batcher(threads=3, max_texts=16, max_characters=200, max_queue=1000)

    def work(seed):
        rng = random.Random(seed)
        for _ in range(60):
            texts = [str(rng.random()) for _ in range(rng.randint(0, 5))]
            future = submit(
                batcher, model, *texts, signature=rng.choice(["serving_default", "other"])
            )
            if rng.random() < 0.2 and future.cancel():
                continue
            assert result(future) == [text.upper().encode() for text in texts]
        return True

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert all(pool.map(work, range(16)))
    assert batcher.close(timeout=20)
    assert max(map(len, model.batches)) <= 16 and len(model.batches) < 16 * 60

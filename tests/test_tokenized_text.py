"""Tests of text as token ids: the same in memory and on disk, and a cache written atomically."""

import json
import multiprocessing
import os
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tf_transformer.data.batching import TokenBatches
from tf_transformer.data.parallel import DataError, ParallelText
from tf_transformer.data.text_files import TextFiles
from tf_transformer.data.tokenized_text import TokenizedText

# No test shall fail because the machine is busy.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Letters:
    """A tokenizer whose token ids are the code points of the characters; it counts its calls."""

    pad_id, bos_id, eos_id = 0, 1, 2

    def __init__(self, vocab_size=2**16, model=b"letters", times=1):
        self.vocab_size, self.model, self._times = vocab_size, model, times
        self.calls = 0

    def encode(self, texts):
        self.calls += 1
        return [list(map(ord, text)) * self._times for text in texts]


def pairs_of(text):
    return [(text.source(i).tolist(), text.target(i).tolist()) for i in range(len(text))]


def codes(*pairs):
    return [tuple(list(map(ord, side)) for side in pair) for pair in pairs]


def parallel(*pairs):
    return ParallelText(*zip(*pairs, strict=True))


letters = st.text(
    st.characters(codec="utf-8", min_codepoint=1, max_codepoint=2**16 - 1), max_size=6
)


@unhurried
@given(
    pairs=st.lists(st.tuples(letters, letters), min_size=1, max_size=25), chunk=st.integers(1, 9)
)
def test_memory_and_disk_hold_the_ids_of_the_pairs_that_are_short_enough(
    tmp_path_factory, pairs, chunk
):
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("tf_transformer.data.tokenized_text._CHUNK_PAIRS", chunk)
        cache = tmp_path_factory.mktemp("cache")
        built = [
            TokenizedText.build(parallel(*pairs), Letters(), Letters(), 5, cache_dir)
            for cache_dir in (None, cache, cache)
        ]
    short = codes(*[pair for pair in pairs if max(map(len, pair)) < 5])
    for text in built:
        assert pairs_of(text) == short and len(text) == len(short)
        assert text.num_too_long == len(pairs) - len(short)
        assert text.source_lengths.tolist() == [len(source) for source, _ in short]
        assert text.target_lengths.tolist() == [len(target) for _, target in short]
        assert text.num_target_tokens == sum(len(target) + 1 for _, target in short)
    lists = [source for source, _ in short], [target for _, target in short]
    assert pairs_of(TokenizedText.of(*lists, vocab_size=2**16)) == short


@unhurried
@given(
    pairs=st.lists(st.tuples(st.lists(st.integers(0, 8)), st.lists(st.integers(0, 9)))),
    chunk=st.integers(1, 4),
    vocab_sizes=st.sampled_from([(9, 10), (2**16 + 1, 10)]),
)
def test_pairs_of_ids_are_taken_one_after_another(pairs, chunk, vocab_sizes):
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("tf_transformer.data.tokenized_text._CHUNK_PAIRS", chunk)
        text = TokenizedText.of_pairs(iter(pairs), vocab_sizes)
        # Arrays will do as well as lists.
        arrays = [tuple(np.array(side, np.int64) for side in pair) for pair in pairs]
        again = TokenizedText.of_pairs(arrays, vocab_sizes)
    assert pairs_of(text) == pairs_of(again) == pairs
    assert text.ids.dtype == (np.uint16 if max(vocab_sizes) <= 2**16 else np.int32)
    assert len(text) == len(pairs) and text.num_too_long == 0


@pytest.mark.parametrize(
    ("pair", "token_id", "limit"), [(([9], [3]), 9, 9), (([3], [10]), 10, 10), (([-1], [3]), -1, 9)]
)
def test_a_pair_with_an_id_outside_its_vocabulary_is_an_error(monkeypatch, pair, token_id, limit):
    monkeypatch.setattr("tf_transformer.data.tokenized_text._CHUNK_PAIRS", 2)
    pairs = [([8], [9])] * 3
    assert len(TokenizedText.of_pairs(pairs, (9, 10))) == 3
    with pytest.raises(DataError, match=f"token id {token_id} is not in .* of {limit} tokens"):
        TokenizedText.of_pairs([*pairs, pair], (9, 10))


def test_pairs_with_a_side_too_long_are_dropped_and_counted():
    pairs = [("a", "b"), ("abcd", "b"), ("abc", "xyz"), ("a", "wxyz"), ("abcd", "wxyz"), ("", "c")]
    text = TokenizedText.build(parallel(*pairs), Letters(), Letters(), max_length=4)
    # Three tokens and the end are four.
    assert pairs_of(text) == codes(("a", "b"), ("abc", "xyz"), ("", "c"))
    assert text.num_too_long == 3 and len(text) == 3
    # b, xyz, c and three ends.
    assert text.num_target_tokens == 1 + 3 + 1 + 3
    batches = TokenBatches(text, 10, pad_id=0, bos_id=1, eos_id=2)
    assert batches.num_too_long == 3 and batches.num_target_tokens == 8


def test_each_side_has_its_own_tokenizer():
    text = TokenizedText.build(parallel(("a", "b")), Letters(), Letters(times=2), 9)
    assert pairs_of(text) == codes(("a", "bb"))


def test_padded_sides_by_hand():
    text = TokenizedText.build(
        parallel(("a", "bcd"), ("", "e"), ("fg", "")), Letters(), Letters(), 9
    )
    ids, lengths = text.padded_sources(np.array([2, 0]), pad_id=7)
    assert ids.tolist() == [[102, 103], [97, 7]] and lengths.tolist() == [2, 1]
    assert ids.dtype == np.int32
    ids, lengths = text.padded_targets(np.array([1, 2]), pad_id=7)
    assert ids.tolist() == [[101], [7]] and lengths.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("vocab_size", "dtype"), [(2**16, np.uint16), (2**16 + 1, np.int32), (300, np.uint16)]
)
def test_an_id_has_two_bytes_if_the_larger_vocabulary_allows(tmp_path, vocab_size, dtype):
    pairs = parallel(("a", chr(vocab_size - 1)))
    for cache_dir in (None, tmp_path):
        text = TokenizedText.build(pairs, Letters(300), Letters(vocab_size), 9, cache_dir)
        assert text.ids.dtype == dtype
        assert pairs_of(text) == [([97], [vocab_size - 1])]


# Bad input


@pytest.mark.parametrize(
    ("sources", "targets", "vocab_size", "message"),
    [
        (
            [[3], [5, 10]],
            [[4], [5]],
            10,
            "token id 10 is not in the vocabulary of 10 tokens, 0 to 9",
        ),
        (
            [[3], [5]],
            [[4], [5, -1]],
            10,
            "token id -1 is not in the vocabulary of 10 tokens, 0 to 9",
        ),
        ([[9]], [[5]], (9, 10), "token id 9 is not in the vocabulary of 9 tokens, 0 to 8"),
        ([[5]], [[9]], (10, 9), "token id 9 is not in the vocabulary of 9 tokens, 0 to 8"),
        ([[2**40]], [[5]], 10, "token id 1099511627776 is not in the vocabulary"),
        ([[3], [5]], [[4]], 10, "received 2 sources and 1 targets; give one target"),
    ],
    ids=["too large", "negative", "source", "target", "huge", "unequal sides"],
)
def test_ids_that_are_not_those_of_aligned_sentences_are_an_error(
    sources, targets, vocab_size, message
):
    with pytest.raises(DataError, match=message) as caught:
        TokenizedText.of(sources, targets, vocab_size)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("token_id", [1.5, "1", None], ids=str)
def test_an_id_that_is_not_an_integer_is_an_error(token_id):
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        TokenizedText.of([[token_id]], [[2]], 10)


def test_each_side_may_use_its_whole_vocabulary():
    text = TokenizedText.of(np.array([[0, 9]]), [np.array([11])], vocab_size=(10, 12))
    assert pairs_of(text) == [([0, 9], [11])]


@pytest.mark.parametrize("cache", [False, True])
def test_an_id_outside_the_vocabulary_of_its_tokenizer_is_an_error(tmp_path, cache):
    # As uint16 the second one would be another id.
    for text, token_id in (("\u012c", 300), ("\U0001f600", 0x1F600)):
        with pytest.raises(DataError, match=f"token id {token_id} is not in .* of 300 tokens"):
            TokenizedText.build(
                parallel(("a", text)), Letters(), Letters(300), 9, tmp_path if cache else None
            )
    assert list(tmp_path.iterdir()) == []


# The cache

PAIRS = [("ab", "c"), ("d", "ef"), ("toolong", "g")]


def build(cache, pairs=PAIRS, source=None, target=None, max_length=5):
    """Returns the text, and whether it was tokenized for that."""
    source, target = source or Letters(), target or Letters()
    text = TokenizedText.build(parallel(*pairs), source, target, max_length, cache)
    return text, source.calls > 0


def folders(cache):
    return sorted(path.name for path in cache.iterdir())


def test_the_cache_is_used_the_second_time(tmp_path):
    first, tokenized = build(tmp_path / "new" / "cache")
    assert tokenized
    second, tokenized = build(tmp_path / "new" / "cache")
    assert not tokenized
    assert pairs_of(first) == pairs_of(second) == codes(("ab", "c"), ("d", "ef"))
    assert second.num_too_long == 1
    # They are mapped from disk, read-only.
    for array in (first.ids, second.ids, second.offsets):
        assert isinstance(array.base, np.memmap) and not array.flags.writeable


def test_a_text_without_a_pair_that_is_short_enough_is_cached_too(tmp_path):
    assert [len(build(tmp_path, max_length=2)[0]) for _ in range(2)] == [0, 0]


@pytest.mark.parametrize(
    "other",
    [
        {"pairs": [("ab", "c"), ("d", "eg"), ("toolong", "g")]},
        {"pairs": PAIRS[:2]},
        {"pairs": [PAIRS[1], PAIRS[0], PAIRS[2]]},
        {"source": Letters(model=b"other")},
        {"target": Letters(model=b"other")},
        {"source": Letters(2**16 + 1)},
        {"max_length": 6},
    ],
    ids=[
        "another sentence",
        "fewer pairs",
        "another order",
        "another source tokenizer",
        "another target tokenizer",
        "a larger vocabulary",
        "a larger max_length",
    ],
)
def test_ids_of_other_input_are_neither_used_nor_overwritten(tmp_path, other):
    first = pairs_of(build(tmp_path)[0])
    text, tokenized = build(tmp_path, **other)
    assert tokenized and len(folders(tmp_path)) == 2
    assert pairs_of(text) == pairs_of(build(None, **other)[0])
    again, tokenized = build(tmp_path)
    assert not tokenized and pairs_of(again) == first


def test_the_cache_does_not_depend_on_how_the_text_is_stored(tmp_path):
    (tmp_path / "a").write_text("ab\n\nd\n", encoding="utf-8")
    (tmp_path / "b").write_text("c\nx\nef\n", encoding="utf-8")
    build(tmp_path / "cache", pairs=PAIRS[:2])
    tokenizer = Letters()
    files = TextFiles(tmp_path / "a", tmp_path / "b")
    text = TokenizedText.build(files, tokenizer, tokenizer, 5, tmp_path / "cache")
    assert not tokenizer.calls and pairs_of(text) == codes(*PAIRS[:2])


def truncated(path):
    os.truncate(path, path.stat().st_size - 4)


def zeroed(path):
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("damage", [truncated, zeroed, os.remove], ids=lambda d: d.__name__)
@pytest.mark.parametrize("name", ["ids", "offsets", "manifest.json"])
def test_a_damaged_cache_is_replaced(tmp_path, name, damage):
    build(tmp_path)
    (folder,) = tmp_path.iterdir()
    damage(folder / name)
    text, tokenized = build(tmp_path)
    assert tokenized and pairs_of(text) == codes(*PAIRS[:2])
    assert folders(tmp_path) == [folder.name]
    text, tokenized = build(tmp_path)
    assert not tokenized and pairs_of(text) == codes(*PAIRS[:2])


def test_a_cache_of_other_metadata_is_not_used(tmp_path):
    build(tmp_path)
    (folder,) = tmp_path.iterdir()
    about = json.loads((folder / "manifest.json").read_text())
    about["key"]["max_length"] = 99
    (folder / "manifest.json").write_text(json.dumps(about))
    assert build(tmp_path)[1]


def test_an_error_in_the_middle_leaves_no_cache(tmp_path):
    class Damaged(ParallelText):
        def __iter__(self):
            yield from super().__iter__()
            raise DataError("the file is damaged")

    with pytest.raises(DataError, match="damaged"):
        TokenizedText.build(Damaged(("ab",), ("c",)), Letters(), Letters(), 5, tmp_path)
    assert folders(tmp_path) == []


def test_a_cache_that_cannot_be_written_is_an_error_of_one_line(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError) as caught:
        build(tmp_path / "file")
    message = str(caught.value)
    assert str(tmp_path / "file") in message and "--data-cache" in message
    assert "\n" not in message


def build_at_once(cache, barrier, results):
    class Patient(Letters):
        def encode(self, texts):
            barrier.wait()  # until every process tokenizes the same text
            return super().encode(texts)

    text, _ = build(cache, source=Patient())
    results.put(pairs_of(text))


def test_processes_that_build_the_same_at_once_all_get_it_and_leave_one_cache(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(3, timeout=60), context.Queue()
    processes = [
        context.Process(target=build_at_once, args=(tmp_path, barrier, results)) for _ in range(3)
    ]
    for process in processes:
        process.start()
    found = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert found == [codes(*PAIRS[:2])] * 3
    assert len(folders(tmp_path)) == 1
    assert not build(tmp_path)[1]


# Batches


def test_batches_are_the_same_from_memory_and_from_disk(tmp_path):
    random = np.random.default_rng(0)
    pairs = [["x" * n for n in sizes] for sizes in random.integers(1, 12, (200, 2))]
    epochs = []
    for cache in (None, tmp_path, tmp_path):
        batches = TokenBatches.from_text(
            parallel(*pairs), Letters(), Letters(), batch_tokens=60, seed=3, cache_dir=cache
        )
        stream = batches.dataset(num_epochs=2, accumulation=2)
        epochs.append([[a.numpy().tolist() for a in (*i.values(), *rest)] for i, *rest in stream])
    assert epochs[0] == epochs[1] == epochs[2]


def test_an_epoch_takes_the_documented_memory():
    num_pairs = 200_000
    lengths = np.random.default_rng(0).integers(5, 30, 2 * num_pairs)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    text = TokenizedText(np.zeros(offsets[-1], np.uint16), offsets)
    batches = TokenBatches(text, 4096, pad_id=0, bos_id=1, eos_id=2, seed=0)
    tracemalloc.start()
    try:
        indices = batches.batch_indices(0)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(indices) == len(batches)
    # Bytes a pair, see docs/architecture.md.
    assert peak / num_pairs < 40 and held / num_pairs < 10

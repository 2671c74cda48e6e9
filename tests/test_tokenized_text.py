"""Tests of text as ids: in memory and on disk the same, and a cache that is whole or not used."""

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

# A busy machine makes no test fail.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Letters:
    """A tokenizer that gives each character of a text its code as id, and counts its calls."""

    pad_id, bos_id, eos_id = 0, 1, 2

    def __init__(self, vocab_size=2**16, model=b"letters", times=1):
        self.vocab_size, self.model, self._times = vocab_size, model, times
        self.calls = 0

    def encode(self, texts):
        self.calls += 1
        return [list(map(ord, text)) * self._times for text in texts]


def pairs_of(text):
    return [(text.source(row).tolist(), text.target(row).tolist()) for row in range(len(text))]


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
        monkeypatch.setattr("tf_transformer.data.tokenized_text._PAIRS_AT_ONCE", chunk)
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
        rows = np.arange(len(short))[::-2]
        expected = sum(len(short[row][1]) + 1 for row in rows)
        assert text.num_target_tokens_of(rows) == expected
    of_lists = TokenizedText.of([source for source, _ in short], [target for _, target in short])
    assert pairs_of(of_lists) == short


def test_pairs_with_a_side_too_long_are_left_out_and_counted():
    pairs = [("a", "b"), ("abcd", "b"), ("abc", "xyz"), ("a", "wxyz"), ("abcd", "wxyz"), ("", "c")]
    text = TokenizedText.build(parallel(*pairs), Letters(), Letters(), max_length=4)
    # Three pieces and the end id are four.
    assert pairs_of(text) == codes(("a", "b"), ("abc", "xyz"), ("", "c"))
    assert text.num_too_long == 3 and len(text) == 3
    # b, xyz, c, and three ends.
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
def test_an_id_has_two_bytes_where_the_larger_vocabulary_allows(tmp_path, vocab_size, dtype):
    pairs = parallel(("a", chr(vocab_size - 1)))
    for cache_dir in (None, tmp_path):
        text = TokenizedText.build(pairs, Letters(300), Letters(vocab_size), 9, cache_dir)
        assert text.ids.dtype == dtype
        assert pairs_of(text) == [([97], [vocab_size - 1])]


def test_an_id_outside_the_vocabulary_is_no_other_id():
    with pytest.raises(OverflowError):
        TokenizedText.build(parallel(("a", "\U0001f600")), Letters(300), Letters(300), 9)


# The cache

PAIRS = [("ab", "c"), ("d", "ef"), ("toolong", "g")]


def build(cache, pairs=PAIRS, source=None, target=None, max_length=5):
    """Builds, and says whether the tokenizers had anything to do."""
    source, target = source or Letters(), target or Letters()
    text = TokenizedText.build(parallel(*pairs), source, target, max_length, cache)
    return text, source.calls > 0


def folders(cache):
    return sorted(path.name for path in cache.iterdir())


def test_the_second_time_the_ids_are_found(tmp_path):
    first, tokenized = build(tmp_path / "new" / "cache")
    assert tokenized
    second, tokenized = build(tmp_path / "new" / "cache")
    assert not tokenized
    assert pairs_of(first) == pairs_of(second) == codes(("ab", "c"), ("d", "ef"))
    assert second.num_too_long == 1
    # They are on the disk, and cannot be changed there by accident.
    for array in (first.ids, second.ids, second.offsets):
        assert isinstance(array.base, np.memmap) and not array.flags.writeable


def test_no_pair_that_is_short_enough_is_kept_too(tmp_path):
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
def test_ids_of_anything_else_are_not_used_and_not_lost(tmp_path, other):
    first = pairs_of(build(tmp_path)[0])
    text, tokenized = build(tmp_path, **other)
    assert tokenized and len(folders(tmp_path)) == 2
    assert pairs_of(text) == pairs_of(build(None, **other)[0])
    again, tokenized = build(tmp_path)
    assert not tokenized and pairs_of(again) == first


def test_how_the_text_is_stored_does_not_matter(tmp_path):
    (tmp_path / "a").write_text("ab\n\nd\n", encoding="utf-8")
    (tmp_path / "b").write_text("c\nx\nef\n", encoding="utf-8")
    build(tmp_path / "cache", pairs=PAIRS[:2])
    tokenizer = Letters()
    files = TextFiles(tmp_path / "a", tmp_path / "b")
    text = TokenizedText.build(files, tokenizer, tokenizer, 5, tmp_path / "cache")
    assert not tokenizer.calls and pairs_of(text) == codes(*PAIRS[:2])


def cut_short(path):
    os.truncate(path, path.stat().st_size - 4)


def zeroed(path):
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("damage", [cut_short, zeroed, os.remove], ids=lambda d: d.__name__)
@pytest.mark.parametrize("name", ["ids", "offsets", "about.json"])
def test_a_damaged_cache_is_replaced(tmp_path, name, damage):
    build(tmp_path)
    (folder,) = tmp_path.iterdir()
    damage(folder / name)
    text, tokenized = build(tmp_path)
    assert tokenized and pairs_of(text) == codes(*PAIRS[:2])
    assert folders(tmp_path) == [folder.name]
    text, tokenized = build(tmp_path)
    assert not tokenized and pairs_of(text) == codes(*PAIRS[:2])


def test_a_cache_under_the_name_of_another_is_not_used(tmp_path):
    build(tmp_path)
    (folder,) = tmp_path.iterdir()
    about = json.loads((folder / "about.json").read_text())
    about["made_of"]["max_length"] = 99
    (folder / "about.json").write_text(json.dumps(about))
    assert build(tmp_path)[1]


def test_a_stop_in_the_middle_leaves_nothing_that_could_be_taken_for_a_cache(tmp_path):
    class Torn(ParallelText):
        def __iter__(self):
            yield from super().__iter__()
            raise DataError("the file is torn")

    with pytest.raises(DataError, match="torn"):
        TokenizedText.build(Torn(("ab",), ("c",)), Letters(), Letters(), 5, tmp_path)
    assert folders(tmp_path) == []


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError) as caught:
        build(tmp_path / "file")
    message = str(caught.value)
    assert str(tmp_path / "file") in message and "--data-cache" in message
    assert "\n" not in message


def build_at_once(cache, barrier, results):
    class Patient(Letters):
        def encode(self, texts):
            barrier.wait()  # until every process is at work on the same
            return super().encode(texts)

    text, _ = build(cache, source=Patient())
    results.put(pairs_of(text))


def test_processes_that_build_the_same_at_once_all_have_it_and_leave_one(tmp_path):
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


def test_an_epoch_takes_the_memory_that_is_promised():
    num_pairs = 200_000
    lengths = np.random.default_rng(0).integers(5, 30, 2 * num_pairs)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    text = TokenizedText(np.zeros(offsets[-1], np.uint16), offsets)
    batches = TokenBatches(text, 4096, pad_id=0, bos_id=1, eos_id=2, seed=0)
    tracemalloc.start()
    try:
        kept = batches.rows(0)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(kept) == len(batches)
    # docs/architecture.md: bytes a pair; a batch's own array of rows is not much.
    assert peak / num_pairs < 40 and held / num_pairs < 10

"""Tests of text as token ids: the same in memory and on disk, with and without noise."""

import multiprocessing
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_transformer.data.lines import DataError
from tf_transformer.data.text import ParallelText
from tf_transformer.data.tokenized_text import ChangingText, TokenizedText
from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer


class Letters:
    """A tokenizer whose token ids are the code points of the characters; it counts its calls."""

    pad_id, bos_id, eos_id = 0, 1, 2

    def __init__(self, vocab_size=2**16, model=b"letters"):
        self.vocab_size, self.model, self.calls = vocab_size, model, 0

    def encode(self, texts):
        self.calls += 1
        return [list(map(ord, text)) for text in texts]


def with_noise(text, parallel_text, tokenizer, max_length, probability):
    """The same pairs with noise in their sources."""
    tokenizers = tokenizer, tokenizer
    changing = ChangingText(text, parallel_text, tokenizers, max_length, 1, probability, 0.0, None)
    return changing(0)


def pairs_of(text):
    sides = [text.ids[slice(*text.offsets[k : k + 2])].tolist() for k in range(2 * len(text))]
    return list(zip(sides[::2], sides[1::2], strict=True))


def codes(*pairs):
    return [tuple(list(map(ord, side)) for side in pair) for pair in pairs]


def parallel(*pairs):
    return ParallelText(*zip(*pairs, strict=True))


letters = st.text(
    st.characters(codec="utf-8", min_codepoint=1, max_codepoint=2**16 - 1), min_size=1, max_size=6
)


@given(
    pairs=st.lists(st.tuples(letters, letters), min_size=1, max_size=25),
    chunk=st.integers(1, 9),
    noise=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_memory_disk_and_noise_hold_the_pairs_that_are_short_enough(
    tmp_path_factory, pairs, chunk, noise
):
    short = codes(*[pair for pair in pairs if max(map(len, pair)) < 5])
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("tf_transformer.data.tokenized_text._CHUNK_PAIRS", chunk)
        cache = tmp_path_factory.mktemp("cache")
        for cache_dir in (None, cache, cache):
            given = parallel(*pairs), (Letters(), Letters()), 5, cache_dir
            if not short:
                with pytest.raises(DataError, match="have more tokens than max_length=5 allows"):
                    TokenizedText.build(*given)
                assert not list(cache.iterdir())
                continue
            text = TokenizedText.build(*given)
            assert pairs_of(text) == short and len(text) == len(short)
            assert len(text.dropped) == len(pairs) - len(short)
            assert text.lengths.T.tolist() == [list(map(len, pair)) for pair in short]
            noisy = with_noise(text, given[0], Letters(), 5, noise)
            assert noisy.ids.dtype == text.ids.dtype
            assert noise or pairs_of(noisy) == short
            for (source, target), (as_is, its_target) in zip(pairs_of(noisy), short, strict=True):
                assert target == its_target and len(source) < 5
                assert abs(len(source) - len(as_is)) <= 4


@pytest.mark.parametrize(
    ("vocab_size", "dtype"), [(2**16, np.uint16), (2**16 + 1, np.int32), (300, np.uint16)]
)
@pytest.mark.parametrize("is_cached", [False, True])
def test_an_id_has_two_bytes_if_the_larger_vocabulary_allows(
    tmp_path, vocab_size, dtype, is_cached
):
    cache = tmp_path if is_cached else None
    tokenizers = Letters(300), Letters(vocab_size)
    text = TokenizedText.build(parallel(("a", chr(vocab_size - 1))), tokenizers, 9, cache)
    assert text.ids.dtype == dtype
    assert pairs_of(text) == [([97], [vocab_size - 1])]
    # As uint16 a larger id would be another one.
    with pytest.raises(DataError, match=f"to {vocab_size}, but its vocabulary has {vocab_size} t"):
        TokenizedText.build(parallel(("a", chr(vocab_size))), tokenizers, 9, cache)
    assert len(list(tmp_path.iterdir())) == is_cached


# The cache

PAIRS = [("ab", "c"), ("d", "ef"), ("toolong", "g")]


def build(cache, pairs=PAIRS, source=None, target=None, max_length=5):
    """Returns the pairs of ids, and whether the text was tokenized for that."""
    source, target = source or Letters(), target or Letters()
    text = TokenizedText.build(parallel(*pairs), (source, target), max_length, cache)
    return pairs_of(text), source.calls > 0


def test_the_cache_is_used_the_second_time(tmp_path):
    cache, tokenizer = tmp_path / "new" / "cache", Letters()
    assert build(cache) == (codes(*PAIRS[:2]), True)
    text = TokenizedText.build(parallel(*PAIRS), [tokenizer] * 2, 5, cache)
    assert not tokenizer.calls and text.dropped.tolist() == [2]
    # It is mapped from disk, read-only.
    for array in (text.ids, text.offsets):
        assert isinstance(array.base, np.memmap) and not array.flags.writeable
    # Noise leaves out the pair that was dropped, and changes nothing in the cache.
    noisy = with_noise(text, parallel(*PAIRS), tokenizer, 5, 1.0)
    assert [target for _, target in pairs_of(noisy)] == [codes(p)[0][1] for p in PAIRS[:2]]
    assert build(cache) == (codes(*PAIRS[:2]), False)


@pytest.mark.parametrize(
    "other",
    [
        {"pairs": [("ab", "c"), ("d", "eg"), ("toolong", "g")]},
        {"pairs": [PAIRS[1], PAIRS[0], PAIRS[2]]},
        {"source": Letters(model=b"other")},
        {"target": Letters(model=b"other")},
        {"source": Letters(2**16 + 1)},
        {"max_length": 6},
    ],
    ids=["sentence", "order", "source tokenizer", "target tokenizer", "dtype", "length"],
)
def test_ids_of_other_input_are_neither_used_nor_overwritten(tmp_path, other):
    first, _ = build(tmp_path)
    assert build(tmp_path, **other) == (build(None, **other)[0], True)
    assert len(list(tmp_path.iterdir())) == 2
    assert build(tmp_path) == (first, False)


def test_an_error_in_the_middle_leaves_no_cache(tmp_path):
    class Damaged(ParallelText):
        def __iter__(self):
            yield from super().__iter__()
            raise DataError("the file is damaged")

    damaged = Damaged(("ab",), ("c",))
    damaged.__dict__["fingerprint"] = "was read before"
    with pytest.raises(DataError, match="damaged"):
        TokenizedText.build(damaged, (Letters(), Letters()), 5, tmp_path)
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match=r"file: the ids .* cannot be kept there .* --data-cache$"):
        build(tmp_path / "file")


def build_at_once(cache, barrier, results):
    class Patient(Letters):
        def encode(self, texts):
            barrier.wait()  # until every process tokenizes the same text
            return super().encode(texts)

    results.put(build(cache, source=Patient())[0])


def test_processes_that_build_the_same_at_once_all_get_it_and_leave_one_cache(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(3, timeout=60), context.Queue()
    arguments = tmp_path, barrier, results
    processes = [context.Process(target=build_at_once, args=arguments) for _ in range(3)]
    for process in processes:
        process.start()
    assert [results.get(timeout=60) for _ in processes] == [codes(*PAIRS[:2])] * 3
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert len(list(tmp_path.iterdir())) == 1 and not build(tmp_path)[1]


# Noise


GENERATOR = random.Random(0)
WORDS = "das der Haus Hund Katze geht läuft schön größer nicht blau heute morgen und".split()
SENTENCES = [" ".join(GENERATOR.choices(WORDS, k=GENERATOR.randint(3, 12))) for _ in range(300)]
TEXT = parallel(*[(f"{sentence}.", f"{sentence}!".upper()) for sentence in SENTENCES])


@pytest.fixture(scope="module")
def tokenizer():
    return SentencePieceTokenizer.train([*TEXT.sources, *TEXT.targets], 400)


def test_a_pair_that_becomes_too_long_stays_as_it_is(tokenizer):
    def noisy_pairs(probability, max_length=200):
        plain = TokenizedText.build(TEXT, [tokenizer] * 2, max_length)
        return pairs_of(with_noise(plain, TEXT, tokenizer, max_length, probability))

    plain = noisy_pairs(0.0)
    longest = max(len(ids) for pair in plain for ids in pair)
    free = noisy_pairs(1.0)
    made = noisy_pairs(1.0, longest + 1)
    expected = [
        as_is if max(map(len, split)) > longest else split
        for as_is, split in zip(plain, free, strict=True)
    ]
    assert made == expected != free and len(made) == len(TEXT)

"""Tests of validation pairs that are held out of the training text."""

import collections
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tf_transformer.data.corpus import Remainder, hold_out, num_held_out
from tf_transformer.data.text import DataError, ParallelText, TextFiles

# No test shall fail because the machine is busy.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def text_of(sources):
    """A text of these sources, in which each target tells the pair."""
    sources = tuple(sources)
    return ParallelText(sources, tuple(f"target {i}" for i in range(len(sources))), num_blank=3)


def assert_none_held_out(text):
    with pytest.raises(DataError) as caught:
        hold_out(text, "a.tsv")
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"a.tsv: no line of {len(text)} is rare enough to be held out")


@pytest.mark.parametrize(
    ("num_pairs", "expected"),
    [
        (2, 1), (3, 1), (10, 1), (20, 2), (50, 5), (200, 20), (500, 50), (999, 50), (2_000, 100),
        (19_999, 999), (20_000, 1_000), (29_000, 1_000), (10**7, 1_000),
    ],
)  # fmt: skip
def test_how_many_pairs_are_held_out(num_pairs, expected):
    assert num_held_out(num_pairs) == expected


def test_the_held_out_pairs_are_like_the_whole_text():
    # In 20 parts of the text, each with its own templates.
    text = text_of(f"template {i // 1000} {i % 20}: {i}" for i in range(20_000))
    train, validation = hold_out(text, "")
    assert (len(train), len(validation), train.num_same_source) == (19_000, 1_000, 0)
    assert sorted([*train, *validation]) == sorted(text)
    for word in (1, 2):
        counts = collections.Counter(source.split()[word] for source in validation.sources)
        assert len(counts) == 20 and max(counts.values()) < 2 * min(counts.values())


# Few different sources, so that they repeat.
texts = st.lists(st.integers(0, 30), min_size=2, max_size=90).map(
    lambda numbers: text_of(f"source {n}" for n in numbers)
)


@unhurried
@given(text=texts)
def test_no_source_is_in_both_parts_and_half_of_the_text_is_kept(text):
    count = collections.Counter(text.sources)
    if min(count.values()) > len(text) // 2:
        assert_none_held_out(text)
        return
    train, validation = hold_out(text, "a.tsv")
    held_out = set(validation.sources)
    assert 0 < len(validation) == len(held_out) <= num_held_out(len(text))
    assert set(validation) <= set(text)
    assert list(train) == [pair for pair in text if pair[0] not in held_out]
    assert len(train) == len(list(train)) >= len(text) / 2
    assert train.num_same_source == len(text) - len(train) - len(validation)
    assert train.num_blank == text.num_blank
    assert train.fingerprint == ParallelText(*zip(*train, strict=True)).fingerprint


def test_a_frequent_sentence_stays_in_the_training_text():
    text = text_of(f"source {i}" if i % 3 else f"Yes, {i % 60}." for i in range(1_000))
    train, validation = hold_out(text, "")
    assert not any("Yes" in source for source in validation.sources)
    assert train.num_same_source == 0 and len(validation) == 50


@pytest.mark.parametrize("has_sources", [True, False])
def test_pairs_that_differ_in_white_space_are_on_one_side(has_sources):
    plain = [f"ein Satz {i}" for i in range(500)]
    text = text_of([*plain, *(f"  ein\u00a0Satz \t{i} " for i in range(500))])
    if not has_sources:
        text = ParallelText(("",) * 1000, text.sources)
    train, validation = hold_out(text, "")
    seen, held_out = ({" ".join((s or t).split()) for s, t in part} for part in (train, validation))
    assert seen | held_out == set(plain) and not seen & held_out
    assert (len(train), len(validation), train.num_same_source) == (900, 50, 50)
    assert len(list(train)) == 900


def test_the_same_text_in_files_and_in_memory_has_the_same_parts(tmp_path):
    text = text_of(f"source {i * i % 150}" for i in range(300))
    for name, side in (("source", text.sources), ("target", text.targets)):
        (tmp_path / name).write_text("".join(f"{s}\n" for s in side), encoding="utf-8")
    (first, one), (second, other), (third, again) = (
        hold_out(source, "")
        for source in (text, text, TextFiles(tmp_path / "source", tmp_path / "target"))
    )
    assert one == other == again
    assert list(first) == list(second) == list(third) == list(third)
    assert first.fingerprint == third.fingerprint and first.num_same_source > 0


def test_few_pairs_of_a_large_text_are_in_memory(tmp_path):
    path = tmp_path / "large"
    path.write_text("".join(f"sentence {i} of some words\n" for i in range(100_000)), "utf-8")
    text = TextFiles(path, path)
    tracemalloc.start()
    try:
        train, validation = hold_out(text, "")
        assert train.fingerprint.num_pairs == len(train) == 99_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(validation) == 1_000
    assert peak < 3e6  # 2,000 candidates; all pairs would be 15 MB more


def test_too_few_source_sentences():
    assert_none_held_out(text_of(["eins"]))
    for count in (2, 3, 100):
        assert_none_held_out(text_of(["Ja."] * count))
    train, validation = hold_out(text_of(["Ja.", "Nein.", "Gut."] * 40), "")
    assert (len(train), len(validation), train.num_same_source) == (80, 1, 39)
    assert isinstance(train, Remainder)

"""Tests of validation pairs that are held out of the training text."""

import collections
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tf_transformer.data.held_out import Remainder, hold_out, num_held_out
from tf_transformer.data.parallel import DataError, ParallelText
from tf_transformer.data.text_files import TextFiles

# No test shall fail because the machine is busy.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def text_of(sources):
    """A text of these sources, in which each target tells the pair."""
    sources = tuple(sources)
    return ParallelText(sources, tuple(f"target {i}" for i in range(len(sources))), num_blank=3)


def numbered(count):
    return text_of(f"source {i}" for i in range(count))


def error_of(text):
    """The message of the DataError that holding out must raise, one line."""
    with pytest.raises(DataError) as caught:
        hold_out(text, "a.tsv")
    message = str(caught.value)
    assert "\n" not in message and message.startswith("a.tsv: ")
    return message


@pytest.mark.parametrize(
    ("num_pairs", "expected"),
    [
        (2, 1), (3, 1), (10, 1), (20, 2), (50, 5), (200, 20), (500, 50), (999, 50), (2_000, 100),
        (19_999, 999), (20_000, 1_000), (29_000, 1_000), (10**7, 1_000),
    ],
)  # fmt: skip
def test_how_many_pairs_are_held_out(num_pairs, expected):
    assert num_held_out(num_pairs) == expected


def test_the_parts_of_a_text_without_repetitions():
    text = numbered(29_000)
    train, validation = hold_out(text, "")
    assert (len(train), len(validation), train.num_same_source) == (28_000, 1_000, 0)
    assert sorted([*train, *validation]) == sorted(text)
    # One of each thousandth of the text, in its order.
    positions = [int(source.split()[1]) for source in validation.sources]
    assert [position // 29 for position in positions] == list(range(1_000))


# Few different sources, so that they repeat.
texts = st.lists(st.integers(0, 30), min_size=2, max_size=90).map(
    lambda numbers: text_of(f"source {n}" for n in numbers)
)


@unhurried
@given(text=texts)
def test_no_source_is_in_both_parts_and_half_of_the_text_is_kept(text):
    count = collections.Counter(text.sources)
    if min(count.values()) > len(text) // 2:
        error_of(text)
        return
    try:
        train, validation = hold_out(text, "a.tsv")
    except DataError:
        # Rare sources may be missed where nearly all pairs have the same one.
        assert max(count.values()) > len(text) // 2
        return
    held_out = set(validation.sources)
    assert len(validation) == len(held_out) <= num_held_out(len(text))
    assert set(validation) <= set(text)
    assert list(train) == [pair for pair in text if pair[0] not in held_out]
    assert len(train) == len(list(train)) >= len(text) / 2
    assert train.num_same_source == len(text) - len(train) - len(validation)
    assert train.num_blank == text.num_blank
    assert train.fingerprint == ParallelText(*zip(*train, strict=True)).fingerprint


def test_a_frequent_sentence_stays_in_the_training_text():
    text = text_of(f"source {i}" if i % 3 else "Yes." for i in range(1_000))
    train, validation = hold_out(text, "")
    assert "Yes." not in validation.sources
    assert train.num_same_source == 0
    assert len(validation) == 50


def test_a_source_is_held_out_once():
    train, validation = hold_out(text_of(f"source {i % 250}" for i in range(500)), "")
    assert (len(train), len(validation), train.num_same_source) == (400, 50, 50)


def test_a_source_that_differs_in_white_space_is_the_same():
    plain = [f"ein Satz {i}" for i in range(500)]
    text = text_of([*plain, *(f"  ein\u00a0Satz \t{i} " for i in range(500))])
    train, validation = hold_out(text, "")
    seen, held_out = ({" ".join(s.split()) for s, _ in part} for part in (train, validation))
    assert seen | held_out == set(plain) and not seen & held_out
    assert (len(train), len(validation), train.num_same_source) == (900, 50, 50)
    assert len(list(train)) == 900


def test_a_text_that_repeats_templates_gives_some_of_each():
    # With 20 templates in turn, every twentieth pair would be of the same.
    text = text_of(f"template {i % 20}: {i}" for i in range(4_000))
    _, validation = hold_out(text, "")
    assert len({source.split(":")[0] for source in validation.sources}) == 20


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
    assert str(first.fingerprint) == str(third.fingerprint)
    assert first.num_same_source > 0


def test_few_pairs_of_a_large_text_are_in_memory(tmp_path):
    path = tmp_path / "large"
    path.write_text("".join(f"sentence {i} of some words\n" for i in range(200_000)), "utf-8")
    text = TextFiles(path, path)
    tracemalloc.start()
    try:
        train, validation = hold_out(text, "")
        assert train.fingerprint.num_pairs == len(train) == 199_000
        assert sum(1 for _ in train) == 199_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(validation) == 1_000
    # Blocks of 1 MiB as bytes and as lines, and 8,000 candidates; all pairs would be 35 MB more.
    assert peak < 25e6


def test_one_pair_is_too_few():
    assert "1 pair, of which none can be held out" in error_of(numbered(1))
    train, validation = hold_out(numbered(2), "")
    assert (len(train), len(validation)) == (1, 1)


@pytest.mark.parametrize("count", [2, 3, 100])
def test_a_text_of_one_source_sentence_is_refused(count):
    assert "most pairs have the same source sentence" in error_of(text_of(["Ja."] * count))


def test_a_text_of_few_source_sentences_keeps_half_for_training():
    train, validation = hold_out(text_of(["Ja.", "Nein.", "Gut."] * 40), "")
    assert (len(train), len(validation), train.num_same_source) == (80, 1, 39)
    assert isinstance(train, Remainder)

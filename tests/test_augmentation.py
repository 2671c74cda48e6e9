"""Tests of the text of an epoch: a function of seed and epoch, with the pairs of the plain text."""

import hashlib
import json
import random
import subprocess
import sys

import pytest
import sentencepiece
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tf_transformer.data.augmentation import Augmentation
from tf_transformer.data.batching import TokenBatches
from tf_transformer.data.parallel import ParallelText
from tf_transformer.data.text_files import TextFiles
from tf_transformer.data.tokenized_text import TokenizedText
from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer

# No test shall fail because the machine is busy.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

NOISE = Augmentation(source_noise=0.3)


def make_text():
    """Sentences of 3 to 12 words, the target in capitals."""
    generator = random.Random(0)
    words = "das der Haus Hund Katze geht läuft schön größer nicht blau heute morgen und".split()
    sources = [" ".join(generator.choices(words, k=generator.randint(3, 12))) for _ in range(300)]
    return ParallelText(tuple(f"{s}." for s in sources), tuple(f"{s}!".upper() for s in sources))


TEXT = make_text()


@pytest.fixture(scope="module")
def tokenizer():
    return SentencePieceTokenizer.train([*TEXT.sources, *TEXT.targets], 400)


def pairs_of(text):
    return [(text.source(i).tolist(), text.target(i).tolist()) for i in range(len(text))]


def epoch_of(augmentation, tokenizer, text=TEXT, max_length=200, seed=1, epoch=0):
    plain = TokenizedText.build(text, tokenizer, tokenizer, max_length)
    return pairs_of(
        augmentation.tokenize(text, plain, tokenizer, tokenizer, max_length, seed, epoch)
    )


def plain_of(tokenizer, text=TEXT, max_length=200):
    return pairs_of(TokenizedText.build(text, tokenizer, tokenizer, max_length))


# Seed and epoch


def test_the_ids_are_a_function_of_seed_and_epoch(tokenizer):
    numbers = [(seed, epoch) for seed in (1, 2) for epoch in (0, 1)]
    texts = {n: epoch_of(NOISE, tokenizer, seed=n[0], epoch=n[1]) for n in numbers}
    # In another order: no call depends on the calls before.
    for seed, epoch in reversed(numbers):
        sentencepiece.set_random_generator_seed(9)
        again = epoch_of(NOISE, tokenizer, seed=seed, epoch=epoch)
        assert again == texts[seed, epoch]
    # All differ, from each other and from the text as it is.
    different = [*texts.values(), plain_of(tokenizer)]
    assert all(a != b for n, a in enumerate(different) for b in different[:n])


FINGERPRINT = """
import hashlib, json, pathlib, sys
from tf_transformer.data.augmentation import Augmentation
from tf_transformer.data.parallel import ParallelText
from tf_transformer.data.tokenized_text import TokenizedText
from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer
folder = pathlib.Path(sys.argv[1])
text = ParallelText(*json.loads((folder / "text").read_text()))
tokenizer = SentencePieceTokenizer.load(folder / "model")
plain = TokenizedText.build(text, tokenizer, tokenizer, 200)
made = Augmentation(0.3).tokenize(text, plain, tokenizer, tokenizer, 200, 1, 2)
print(hashlib.sha256(made.ids.tobytes() + made.offsets.tobytes()).hexdigest())
"""


def test_another_process_has_the_same_ids(tokenizer, tmp_path):
    (tmp_path / "text").write_text(json.dumps([TEXT.sources, TEXT.targets]))
    tokenizer.save(tmp_path / "model")
    run = subprocess.run(
        [sys.executable, "-c", FINGERPRINT, tmp_path], capture_output=True, text=True, check=True
    )
    plain = TokenizedText.build(TEXT, tokenizer, tokenizer, 200)
    made = NOISE.tokenize(TEXT, plain, tokenizer, tokenizer, 200, seed=1, epoch=2)
    expected = hashlib.sha256(made.ids.tobytes() + made.offsets.tobytes()).hexdigest()
    assert run.stdout.split()[-1] == expected


# The same text


@pytest.mark.parametrize("max_length", [200, 20])
def test_without_noise_the_ids_are_those_of_the_plain_text(tokenizer, max_length):
    assert not Augmentation()
    plain = plain_of(tokenizer, max_length=max_length)
    assert 0 < len(plain) == (300 if max_length == 200 else len(plain))
    assert epoch_of(Augmentation(), tokenizer, max_length=max_length) == plain


def test_only_sources_get_noise(tokenizer):
    made = epoch_of(Augmentation(source_noise=0.1), tokenizer)
    assert tokenizer.decode([target for _, target in made]) == list(TEXT.targets)
    sources = tokenizer.decode([source for source, _ in made])
    changed = [(a, b) for a, b in zip(sources, TEXT.sources, strict=True) if a != b]
    assert 60 < len(changed) < 200
    # Each is still a version of its own sentence.
    versions = [b == a.rstrip(".") or abs(len(a) - len(b)) <= 4 for b, a in changed]
    assert all(versions)
    unpunctuated = [b == a[:-1] for b, a in changed]
    assert any(unpunctuated) and not all(unpunctuated)
    assert [pair[0] for pair in made] == tokenizer.encode(sources)


# Pairs that are too long


class CodePoints:
    """Token ids are code points, so that a doubled letter makes a text longer."""

    pad_id, bos_id, eos_id, vocab_size = 0, 1, 2, 2**16

    def encode(self, texts):
        return [list(map(ord, text)) for text in texts]


letters = st.text("abcdefgh", min_size=1, max_size=9)


@unhurried
@given(
    pairs=st.lists(st.tuples(letters, letters), min_size=1, max_size=30),
    max_length=st.integers(2, 14),
    chunk=st.integers(1, 9),
    noise=st.sampled_from([0.0, 0.5]),
)
def test_the_pairs_are_those_of_the_plain_text_in_their_order(pairs, max_length, chunk, noise):
    text, tokenizer = ParallelText(*zip(*pairs, strict=True)), CodePoints()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("tf_transformer.data.tokenized_text._CHUNK_PAIRS", chunk)
        made = epoch_of(Augmentation(noise), tokenizer, text, max_length)
        plain = plain_of(tokenizer, text, max_length)
    assert len(made) == len(plain)
    for (source, target), (plain_source, plain_target) in zip(made, plain, strict=True):
        assert max(len(source), len(target)) < max_length
        assert target == plain_target
        assert abs(len(source) - len(plain_source)) <= 1
        assert noise or source == plain_source


def test_a_pair_that_becomes_too_long_stays_as_it_is(tokenizer):
    longest = max(map(len, [ids for pair in plain_of(tokenizer) for ids in pair]))
    noisy = Augmentation(source_noise=1.0)
    free = epoch_of(noisy, tokenizer)
    made = epoch_of(noisy, tokenizer, max_length=longest + 1)
    plain = plain_of(tokenizer, max_length=longest + 1)
    kept = 0
    for pair, as_is, split in zip(made, plain, free, strict=True):
        is_too_long = max(map(len, split)) > longest
        assert pair == (as_is if is_too_long else split)
        kept += is_too_long
    assert 0 < kept < len(made) == len(TEXT)


@pytest.mark.parametrize("max_length", [200, 20])
def test_text_that_stays_in_its_files_gives_the_same(tokenizer, tmp_path, max_length):
    for name, side in (("source", TEXT.sources), ("target", TEXT.targets)):
        for shard, lines in enumerate((side[:120], side[120:])):
            (tmp_path / f"{name}.{shard}").write_text("\n".join([*lines, ""]), encoding="utf-8")
    files = TextFiles(tmp_path / "source.*", tmp_path / "target.*")
    for epoch in (0, 1):
        options = {"max_length": max_length, "epoch": epoch}
        made = epoch_of(NOISE, tokenizer, files, **options)
        assert made == epoch_of(NOISE, tokenizer, **options)
        assert (len(made) == 300) == (max_length == 200)


# Bad input


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_a_probability_out_of_range_is_an_error(value):
    with pytest.raises(ValueError, match=f"must be from 0 to 1; received source_noise={value}"):
        Augmentation(value)


def test_an_augmentation_without_a_seed_is_an_error(tokenizer):
    with pytest.raises(ValueError, match="an augmentation needs a seed; received seed=None"):
        TokenBatches.from_text(TEXT, tokenizer, tokenizer, augmentation=NOISE)
    # One that changes nothing needs none.
    TokenBatches.from_text(TEXT, tokenizer, tokenizer, augmentation=Augmentation())

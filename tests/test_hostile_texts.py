"""Hostile texts through every signature, in a session: no crash, valid UTF-8 out, counts kept."""

import numpy as np
import pytest
from hostile import hostile_texts

from tf_transformer.serving.session import SavedModelSession

BATCH_SIZE = 64
SIGNATURES = ("serving_default", "translate_nbest", "translate_document", "score", "align")


@pytest.fixture(scope="module")
def servable(exported_version):
    return SavedModelSession(exported_version, threads=1)


def check(servable, signature, texts):
    """Runs a signature on texts in batches and checks all that comes back."""
    inputs = servable.signatures[signature].inputs
    for start in range(0, len(texts), BATCH_SIZE):
        batch = texts[start : start + BATCH_SIZE]
        # Where a signature has two inputs, each text meets another one.
        sides = {name: batch[k:] + batch[:k] for k, name in enumerate(inputs)}
        for name, array in servable.run(signature, sides).items():
            assert len(array) == len(batch), name
            if array.dtype == object:
                for text in array.flat:
                    text.decode("utf-8")
            else:
                assert np.isfinite(array).all(), name


def test_every_signature_is_tested(servable):
    assert set(servable.signatures) == set(SIGNATURES)


@pytest.mark.parametrize("signature", SIGNATURES)
def test_some_hostile_texts(servable, signature):
    check(servable, signature, hostile_texts(300, num_long=1))


@pytest.mark.slow
@pytest.mark.parametrize("signature", SIGNATURES)
def test_ten_thousand_hostile_texts(servable, signature):
    check(servable, signature, hostile_texts(10_000, seed=1))


def test_special_subwords_spelled_out_are_text(letter_tokenizer):
    texts = [text.decode("utf-8", "replace") for text in hostile_texts(2_000, num_long=0)]
    special = {letter_tokenizer.pad_id, letter_tokenizer.bos_id, letter_tokenizer.eos_id}
    for ids in letter_tokenizer.tokenize(texts).to_list():
        assert not special & set(ids)

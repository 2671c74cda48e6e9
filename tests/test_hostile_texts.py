"""Hostile texts through every signature, in a session: no crash, valid UTF-8 out, counts kept."""

import json

import pytest
from graph_session import Server
from hostile import hostile_texts

BATCH_SIZE = 64
SIGNATURES = ("serving_default", "translate_nbest", "translate_document", "score", "align")


@pytest.fixture(scope="module")
def server(exported_version):
    server = Server(str(exported_version))
    assert set(server.signatures) == set(SIGNATURES)
    return server


def check(server, signature, texts):
    """Runs a signature on texts in batches; its answers are UTF-8, or they would not be decoded."""
    inputs = server.signatures[signature].inputs
    for start in range(0, len(texts), BATCH_SIZE):
        batch = texts[start : start + BATCH_SIZE]
        # Where a signature has two inputs, each text meets another one.
        sides = {name: batch[k:] + batch[:k] for k, name in enumerate(inputs)}
        for name, values in server.run(signature, sides).items():
            assert len(values) == len(batch), name
            json.dumps(values, allow_nan=False)


@pytest.mark.parametrize("signature", SIGNATURES)
@pytest.mark.parametrize(
    ("count", "num_long"), [(300, 1), pytest.param(10_000, 10, marks=pytest.mark.slow)]
)
def test_hostile_texts(server, signature, count, num_long):
    check(server, signature, hostile_texts(count, num_long=num_long))


def test_special_subwords_spelled_out_are_text(letter_tokenizer):
    texts = [text.decode("utf-8", "replace") for text in hostile_texts(2_000, num_long=0)]
    special = {letter_tokenizer.pad_id, letter_tokenizer.bos_id, letter_tokenizer.eos_id}
    for ids in letter_tokenizer.tokenize(texts).to_list():
        assert not special & set(ids)

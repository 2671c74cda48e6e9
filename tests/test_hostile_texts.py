"""Hostile texts through every signature, in a session: no crash, valid UTF-8 out, counts kept."""

import json
import random

import pytest
from graph_session import Server

SPECIAL = ("</s>", "<s>", "<unk>", "<pad>", "<0x0A>", "<0xFF>", "▁", "\x1e", "|||", "{{model}}")
# Not UTF-8: a byte order mark of another encoding, overlong, surrogate, beyond Unicode, truncated.
INVALID = (b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\x80")
CONTROLS = (
    "\x00", "\ufeff", "\r\n", "\n", "\r", "\x0b", "\x1b[31m", "\t", " ", "\u00a0", "\u3000",
    "\u0085",
    "\u2028", "\u2029", "\u202e", "\u2066", "\u200b", "\u200d", "\u200e", "\ufffd", "\uffff",
)  # fmt: skip
WORDS = (
    "%s%n", "';--", "<script>", "\\", '"', "ﷺ", "İıI", "ß", "ǅ", "مرحبا", "。。。", "？！", "...",
    "…",
    "1.2.3.", "Mr. A. B.", "„“", "¿¡", "a", "word", "\U0001d518", "Z\u0338\u0359\u030f",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f3f3\ufe0f\u200d\U0001f308",
)  # fmt: skip
PARTS = (*INVALID, *(text.encode() for text in (*SPECIAL, *CONTROLS, *WORDS)))
BATCH_SIZE = 64
SIGNATURES = ("serving_default", "translate_nbest", "translate_document", "score", "align")


def hostile_texts(count, num_long):
    """Random mixtures of all of these; `num_long` of them have about 100,000 bytes."""
    rng = random.Random(0)
    texts = []
    for _ in range(count - num_long):
        if rng.random() < 0.1:
            texts.append(rng.randbytes(rng.randrange(60)))
        else:
            texts.append(b"".join(rng.choices(PARTS, k=rng.randrange(12))))
    for index in range(num_long):
        some = rng.choices(PARTS, k=1 + index)
        text = b"".join(some)
        texts.append(text * (100_000 // len(text)))
    rng.shuffle(texts)
    return texts


@pytest.fixture(scope="module")
def server(exported_version):
    server = Server(str(exported_version))
    assert set(server.signatures) == set(SIGNATURES)
    return server


@pytest.mark.parametrize("signature", SIGNATURES)
@pytest.mark.parametrize(
    ("count", "num_long"), [(300, 1), pytest.param(10_000, 10, marks=pytest.mark.slow)]
)
def test_hostile_texts(server, signature, count, num_long):
    texts, inputs = hostile_texts(count, num_long), server.signatures[signature].inputs
    for start in range(0, len(texts), BATCH_SIZE):
        batch = texts[start : start + BATCH_SIZE]
        # Where a signature has two inputs, each text meets another one.
        sides = {name: batch[k:] + batch[:k] for k, name in enumerate(inputs)}
        # Its answers are UTF-8, or they would not be decoded.
        for name, values in server.run(signature, sides).items():
            assert len(values) == len(batch), name
            json.dumps(values, allow_nan=False)

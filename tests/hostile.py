"""Texts that break careless programs, as bytes: what anybody on the network may send."""

import random

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


def hostile_texts(count, seed=0, num_long=10, long_bytes=100_000):
    """Random mixtures of all of these, a few of them very long.

    Args:
        count: How many.
        seed: Of the draw.
        num_long: How many of them have about `long_bytes` bytes.
        long_bytes: Size of these.
    """
    rng = random.Random(seed)
    texts = []
    for _ in range(count - num_long):
        if rng.random() < 0.1:
            texts.append(rng.randbytes(rng.randrange(60)))
        else:
            texts.append(b"".join(rng.choices(PARTS, k=rng.randrange(12))))
    for index in range(num_long):
        some = rng.choices(PARTS, k=1 + index)
        text = b"".join(some)
        texts.append(text * (long_bytes // len(text)))
    rng.shuffle(texts)
    return texts

"""What a localisation team asks of translations, beside BLEU and chrF."""

import collections
import re
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_transformer.data.marks import Marks
from tf_transformer.data.translation_files.markup import is_balanced
from tf_transformer.evaluation import corpus_score
from tf_transformer.inference.results import Translation

_TAG = re.compile(r"</?[A-Za-z][^<>]*>")


def suite(
    sources: Sequence[str],
    found: Sequence[Translation],
    references: Sequence[str],
    terms: Mapping[str, str],
) -> dict[str, dict[str, Any]]:
    """Return counts and scores by the names of properties and of kinds of sources.

    A property has the number of cases that `pass`, and `of` how many; a flag (see
    `inference.flags.flags_of`) passes where it is absent. A kind has the number of its `sources`,
    and their `bleu` and `chrf`.
    """
    texts = [each.text for each in found]
    before, after = _pieces(sources), _pieces(texts)
    pairs = list(zip(before, after, strict=True))
    with_pieces = [(s, t) for s, t in pairs if s]
    kept = sum((s & t).total() for s, t in with_pieces)
    rows = {
        "pieces kept": _rate(kept, sum(s.total() for s, _ in with_pieces)),
        "sources whose pieces are all kept": _rate(
            sum(s == t for s, t in with_pieces), len(with_pieces)
        ),
    }
    tagged = [text for source, text in zip(sources, texts, strict=True) if _TAG.search(source)]
    nested = sum(is_balanced(_TAG.findall(text)) for text in tagged)
    rows["sources whose tags are nested"] = _rate(nested, len(tagged))
    due = [
        (target, text)
        for source, text in zip(sources, texts, strict=True)
        for term, target in terms.items()
        if re.search(rf"(?<!\w){re.escape(term)}(?!\w)", source, re.I if term.islower() else 0)
    ]
    if terms:
        rows["terms honoured"] = _rate(sum(target in text for target, text in due), len(due))
    for flag in ("truncated", "piece", "forced", "loop", "copied", "length"):
        absent = sum(flag not in each.flags for each in found)
        rows[f"without the flag {flag}"] = _rate(absent, len(found))
    kinds = {
        "with pieces": [bool(each) for each in before],
        "without pieces": [not each for each in before],
        "of one or two words": [len(source.split()) < 3 for source in sources],
        "in title case": [source.istitle() for source in sources],
        "in capitals": [source.isupper() for source in sources],
        "of more than 25 words": [len(source.split()) > 25 for source in sources],
    }
    for name, is_kind in kinds.items():
        chosen = [(t, r) for t, r, is_one in zip(texts, references, is_kind, strict=True) if is_one]
        if chosen:
            scores = corpus_score(*map(list, zip(*chosen, strict=True)))
            rows[f"sources {name}"] = {"sources": len(chosen), **scores.metrics()}
    return rows


def _rate(number: int, total: int) -> dict[str, int]:
    return {"pass": number, "of": total}


def _pieces(texts: Sequence[str]) -> list[collections.Counter]:
    """Return how often each piece is in each text."""
    rows = Marks(0).split(tf.constant(list(texts), tf.string)).rows.to_list()
    return [collections.Counter(row[1::2]) for row in rows]


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the suite as text."""
    lines = []
    for name, row in rows.items():
        if "of" in row:
            rate = f"{row['pass'] / row['of']:8.2%}" if row["of"] else f"{'-':>8}"
            lines.append(f"{name:34}{row['pass']:7,} of {row['of']:7,}{rate}")
        else:
            bleu, chrf = f"BLEU {row['bleu']:6.2f}", f"chrF {row['chrf']:6.2f}"
            lines.append(f"{name:34}{row['sources']:7,}    {bleu}   {chrf}")
    return "\n".join(lines)

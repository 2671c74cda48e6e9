"""The suite of `evaluate` counts what a localisation team asks for beside BLEU and chrF."""

import collections
import re
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_transformer.data.glossary import Glossary
from tf_transformer.data.marks import Marks
from tf_transformer.data.pieces import VERBATIM
from tf_transformer.data.translation_files.markup import is_balanced
from tf_transformer.evaluation import corpus_score
from tf_transformer.inference.results import Translation
from tf_transformer.inference.terms import insert_terms


def suite(
    sources: Sequence[str],
    found: Sequence[Translation],
    references: Sequence[str],
    terms: Mapping[str, str],
    pattern: str | None = None,
) -> dict[str, dict[str, Any]]:
    """Return counts and scores by the names of properties and of kinds of sources.

    Pieces are what the regular expression `pattern` finds, see `Marks`.

    A property has the number of cases that `pass`, and `of` how many; a flag (see
    `inference.flags.flags_of`) passes where it is absent. A kind has the number of its `sources`,
    and their `bleu` and `chrf`.
    """
    texts = [each.text for each in found]
    marks = Marks(0, pattern)
    before, after = (_pieces(side, marks) for side in (sources, texts))
    counts = [tuple(map(collections.Counter, pair)) for pair in zip(before, after, strict=True)]
    with_pieces = [pair for pair in counts if pair[0]]
    kept = sum((s & t).total() for s, t in with_pieces)
    all_kept = sum(s == t for s, t in with_pieces)
    # Tags in pairs that are nested in the source.
    tags = [([p for p in s if p[0] == "<"], t) for s, t in zip(before, after, strict=True)]
    tagged = [t for s, t in tags if is_balanced(s) and any(p.startswith("</") for p in s)]
    nested = sum(is_balanced(p for p in t if p[0] == "<") for t in tagged)
    rows = {
        "pieces kept": _rate(kept, sum(s.total() for s, _ in with_pieces)),
        "sources whose pieces are all kept": _rate(all_kept, len(with_pieces)),
        "sources whose tags are nested": _rate(nested, len(tagged)),
    }
    if terms:
        pairs = zip(_due(sources, terms, marks), texts, strict=True)
        due = [(target, text) for targets, text in pairs for target in targets]
        rows["terms honoured"] = _rate(sum(target in t for target, t in due), len(due))
    for flag in ("truncated", "piece", "forced", "loop", "copied", "empty", "length"):
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


def _pieces(texts: Sequence[str], marks: Marks) -> list[list[str]]:
    """Return the pieces of each text."""
    rows = marks.split(tf.constant(list(texts), tf.string)).rows.to_list()
    return [[piece.decode() for piece in row[1::2]] for row in rows]


def _due(sources: Sequence[str], terms: Mapping[str, str], marks: Marks) -> list[list[str]]:
    """Return what the translation of each text must contain."""
    of_each = list(map(Glossary(terms).terms_in, sources))
    inserted = insert_terms(tf.constant(list(sources)), tf.constant(of_each), marks)
    begin, end = VERBATIM
    return [re.findall(f"{begin}([^{end}]*){end}", text.decode()) for text in inserted.numpy()]


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

"""The package and its documents use the field's terms (see docs/architecture.md)."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
# Words with no legitimate use, and the terms to use instead.
PATTERNS = {
    r"\balpha\b": "length_penalty",
    r"\bmade_with\b|\bwas made with\b": "run metadata",
    r"\bRankedHypotheses\b": "Hypotheses",
    r"\bhouse\b": "package",
    r"\brooms?\b": "module, layout, space",
    r"\bpadding_share\b": "padding_fraction",
    r"\bremember(s|ed)?\b": "append, keep",
    r"\bmemories\b": "KV cache",
    r"whole or not at all": "atomically",
    r"beside its place": "atomically",
    r"patience that is over": "early stopping",
    r"\bfigures of (a|the) log\b": "metrics",
    r"what is (left out|cut)": "dropped, truncated",
}
SUFFIXES = {".py", ".md"}


def files():
    """The sources and documents, without the phrasebook, whose sentences are of houses too."""
    for name in ("tf_transformer", "benchmarks", "docs", "README.md", "CONTRIBUTING.md"):
        path = ROOT / name
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in found:
            if file.suffix in SUFFIXES and "phrasebook" not in file.parts:
                yield file


def hits(pattern, text):
    return [line for line in text.splitlines() if re.search(pattern, line, re.IGNORECASE)]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_words_of_the_field_are_used(pattern):
    found = [
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for file in files()
        for line in hits(pattern, file.read_text(encoding="utf-8"))
    ]
    assert not found, f"write {PATTERNS[pattern]} instead:\n" + "\n".join(found)


def test_the_files_are_found():
    names = {str(file.relative_to(ROOT)) for file in files()}
    assert {"README.md", "CONTRIBUTING.md", "tf_transformer/cli.py", "benchmarks/train.py"} <= names
    assert any(name.startswith("docs/") for name in names)


@pytest.mark.parametrize("line", ["The Alpha of the beam.", "a house, two rooms", "made_with = 3"])
def test_a_word_that_returns_is_found(line):
    assert any(hits(pattern, line) for pattern in PATTERNS)

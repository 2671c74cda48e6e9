"""Tests of text that stays in its files: the same pairs as in memory, shards, bad input."""

import glob
import gzip
import os
import subprocess
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tf_transformer.data.lines import stream_lines
from tf_transformer.data.parallel import (
    DataError,
    ParallelText,
    has_text,
    read_lines,
    read_parallel,
)
from tf_transformer.data.text_files import TextFiles

# No test shall fail because the machine is busy.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture
def write(tmp_path):
    """Returns a function that writes bytes to files in one folder, and returns the folder."""

    def write_files(**contents):
        for name, content in contents.items():
            (tmp_path / name).write_bytes(content)
        return tmp_path

    return write_files


def error_of(action):
    """The message of the DataError that `action` must raise, one line."""
    with pytest.raises(DataError) as caught:
        action()
    message = str(caught.value)
    assert "\n" not in message
    return message


# A line holds any character but a line feed; a return just before that would be taken for its part.
lines = st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=8)
shards = st.lists(st.lists(st.tuples(lines, lines), min_size=1, max_size=9), min_size=1, max_size=4)


@unhurried
@given(shards=shards, packed=st.booleans(), last_end=st.sampled_from(["", "\n"]))
def test_shards_hold_what_one_text_in_memory_does(tmp_path_factory, shards, packed, last_end):
    folder = tmp_path_factory.mktemp("shards")
    for number, shard in enumerate(shards):
        for side, name in enumerate(("source", "target")):
            # With a byte order mark; only a last line with text may lack its end.
            text = "\ufeff" + "\n".join(pair[side] for pair in shard)
            content = (text + (last_end if shard[-1][side] else "\n")).encode()
            (folder / f"{name}.{number}").write_bytes(gzip.compress(content) if packed else content)
    pairs = [pair for shard in shards for pair in shard]
    kept = [pair for pair in pairs if has_text(pair)]
    if not kept:
        message = error_of(lambda: TextFiles(folder / "source.*", folder / "target.*"))
        assert f"no pair is left, {len(pairs)} had a blank side" in message
        return
    text = TextFiles(folder / "source.*", folder / "target.*")
    assert list(text) == list(text) == kept
    assert len(text) == len(kept) and text.num_blank == len(pairs) - len(kept)
    # The fingerprint does not depend on how the text is split into files.
    assert text.fingerprint == ParallelText(*zip(*kept, strict=True)).fingerprint


def test_one_pair_of_files_is_what_read_parallel_reads(write):
    folder = write(source=b"eins\n\nzwei\r\n", target=gzip.compress(b"one\nx\ntwo"))
    text = TextFiles(str(folder / "source"), folder / "target")
    in_memory = read_parallel(folder / "source", folder / "target")
    assert list(text) == list(in_memory) == [("eins", "one"), ("zwei", "two")]
    assert text.num_blank == in_memory.num_blank == 1
    assert text.fingerprint == in_memory.fingerprint
    assert str(text.fingerprint).startswith("2 pairs, SHA-256 ")


def test_the_fingerprint_is_that_of_earlier_versions():
    # SHA-256 of "a\tb\nc\td\n", so that older runs can be resumed.
    text = ParallelText(("a", "c"), ("b", "d"))
    assert str(text.fingerprint) == "2 pairs, SHA-256 31530cb8906d527d"


@unhurried
@given(
    pairs=st.lists(
        st.lists(st.tuples(*[st.text("a\t\n1 ", max_size=4)] * 2), min_size=1, max_size=3),
        min_size=2, max_size=9, unique_by=tuple,
    )
)  # fmt: skip
@example(pairs=[[("a\tb", "c")], [("a", "b\tc")]])
@example(pairs=[[("a", "b\na\tb")], [("a", "b\nb\na")], [("a", "b\n1 1 a\tb")]])
def test_texts_that_differ_have_other_fingerprints(pairs):
    texts = [ParallelText(*zip(*text, strict=True)) for text in pairs]
    assert len({text.fingerprint.sha256 for text in texts}) == len(pairs)


@pytest.mark.parametrize("block", [1, 2, 3, 7])
@pytest.mark.parametrize("packed", [False, True])
def test_lines_do_not_depend_on_where_a_block_ends(write, monkeypatch, block, packed):
    monkeypatch.setattr("tf_transformer.data.lines._BLOCK", block)
    content = "\ufeffGrüße 你好 🙂\r\n\n\r\r\nab\x85c\u2028d".encode()
    folder = write(text=gzip.compress(content) if packed else content)
    assert read_lines(folder / "text") == ["Grüße 你好 🙂", "", "\r", "ab\x85c\u2028d"]
    (folder / "bad").write_bytes(content + b"\nx\ny\xff")
    assert "bad, line 6: not valid UTF-8" in error_of(lambda: read_lines(folder / "bad"))


def test_a_file_larger_than_the_allowed_memory_is_read(tmp_path):
    path = tmp_path / "large"
    with path.open("wb") as file:
        for _ in range(20):
            file.write(b"a sentence of some words\n" * 50_000)  # 1.25 MB
    tracemalloc.start()
    try:
        assert sum(1 for _ in stream_lines(path)) == 1_000_000
        assert len(TextFiles(path, path)) == 1_000_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Blocks of 1 MiB as bytes and as lines; the lines of all the file would be 74 MB.
    assert peak < 20e6


# Bad input


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (b"", "source: the file is empty"),
        (b"a\nb\nd\xfc\n", "source, line 3: not valid UTF-8"),
        (gzip.compress(b"a\n" * 99)[:-9], "source: damaged or incomplete gzip"),
        (b"a\nb\nc\nd\n", "source has 4 lines but {folder}/target has 3; line i"),
        (b"a\n", "source has 1 line but {folder}/target has 3; line i"),
        (b" \n\n\t\n", "source and {folder}/target: no pair is left, 3 had a blank side"),
    ],
    ids=["empty", "not UTF-8", "torn gzip", "longer", "shorter", "blank"],
)
def test_bad_files_are_an_error_of_the_constructor(write, source, words):
    folder = write(source=source, target=b"a\nb\nc\n")
    message = error_of(lambda: TextFiles(folder / "source", folder / "target"))
    assert words.format(folder=folder) in message


def test_missing_files_and_folders_are_named(write):
    folder = write(source=b"a\n")
    assert "target: no such file" in error_of(
        lambda: TextFiles(folder / "source", folder / "target")
    )
    assert "a directory" in error_of(lambda: TextFiles(folder, folder / "source"))


def test_a_pattern_that_matches_nothing_is_named(write):
    folder = write(source=b"a\n")
    message = error_of(lambda: TextFiles(folder / "sorce.*", folder / "source"))
    assert message == f"{folder}/sorce.*: matches no file; check the pattern (from {Path.cwd()})"


def test_unequal_numbers_of_shards_are_an_error_with_both_numbers(write):
    folder = write(s1=b"a\n", s2=b"a\n", t1=b"a\n")
    message = error_of(lambda: TextFiles(folder / "s?", folder / "t?"))
    assert f"{folder}/s? matches 2 files but {folder}/t? matches 1;" in message


def test_a_shard_of_another_length_is_named_with_its_partner(write):
    # Together both sides have three lines.
    folder = write(s1=b"a\nb\n", s2=b"c\n", t1=b"a\n", t2=b"b\nc\n")
    message = error_of(lambda: TextFiles(folder / "s?", folder / "t?"))
    assert f"{folder}/s1 has 2 lines but {folder}/t1 has 1;" in message


def test_shards_are_sorted_by_their_numbers(write):
    contents = {f"{side}{n}": f"{side}{n}\n".encode() for side in "st" for n in (3, 10, 1, 2)}
    folder = write(**contents)
    text = TextFiles(folder / "s*", folder / "t*")
    assert list(text) == [("s1", "t1"), ("s2", "t2"), ("s3", "t3"), ("s10", "t10")]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("part{}.en", "fr-{:02}.txt"),
        ("en/{}.{}", "fr/{}/lines{}"),
        ("[{}]", "x[{}"),
    ],
)
def test_shards_are_paired_by_what_their_patterns_leave_open(tmp_path, source, target):
    for folder in ("en", "fr/1", "fr/2"):
        (tmp_path / folder).mkdir(parents=True)
    for name in (source, target):
        for n in range(1, 13):
            numbers = [1 + n % 2, n] if name.count("{") == 2 else [n]
            (tmp_path / name.format(*numbers)).write_text(f"{numbers}\n")
    patterns = [
        f"{tmp_path}//./{glob.escape(name).replace('{}', '*').replace('{:02}', '[0-9]?')}"
        for name in (source, target)
    ]
    pairs = list(TextFiles(*patterns))
    assert len(pairs) == 12 and all(source == target for source, target in pairs)


@pytest.mark.parametrize(
    ("sources", "targets", "first"),
    [
        ("s1 s2 s3", "t1 t3 t4", "s2 would be paired with {}/t3"),
        ("s.a s.b", "t.a t.c", "s.b would be paired with {}/t.c"),
        ("s1.en", "t1.fr", "s1.en would be paired with {}/t1.fr"),
    ],
)
def test_shards_that_do_not_belong_together_are_named(write, sources, targets, first):
    folder = write(**dict.fromkeys([*sources.split(), *targets.split()], b"a\n"))
    message = error_of(lambda: TextFiles(folder / "s*", folder / "t*"))
    assert message.startswith(f"{folder}/{first.format(folder)}: ")


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(write):
    folder = write(**{"s[1]": b"this\n", "s1": b"that\n"})
    assert list(TextFiles(folder / "s[1]", folder / "s1")) == [("this", "that")]


def test_a_file_that_changes_in_use_is_named(write):
    folder = write(source=b"a\nb\n", target=b"a\nb\n")
    text = TextFiles(folder / "source", folder / "target")
    (folder / "target").write_bytes(b"b\na\n")
    os.utime(folder / "target", ns=(1, 1))
    assert f"{folder}/target: was changed" in error_of(lambda: list(text))


def test_a_pipe_is_an_error(write):
    folder = write(source=b"a\n")
    os.mkfifo(folder / "pipe")
    message = error_of(lambda: TextFiles(folder / "source", folder / "pipe"))
    assert f"{folder}/pipe: can be read only once" in message


def test_one_text_may_still_come_from_a_pipe():
    # Validation sentences are read once.
    process = subprocess.Popen(["printf", "a\\nb\\n"], stdout=subprocess.PIPE)
    path = f"/dev/fd/{process.stdout.fileno()}"
    assert read_lines(path) == ["a", "b"]
    process.wait()

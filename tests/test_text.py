"""Tests of text files as sentence pairs: lines, TSV, gzip, shards, and what is wrong with them."""

import codecs
import errno
import functools
import glob
import gzip
import os
import re
import subprocess

import pytest
from commands import refusal
from hypothesis import example, given
from hypothesis import strategies as st

from tf_transformer.data.lines import DataError, decode_lines, is_blank, stream_lines
from tf_transformer.data.text import ParallelText, read_parallel, read_tsv
from tf_transformer.data.text_files import TextFiles

error_of = functools.partial(refusal, kind=DataError)


@pytest.fixture
def write(tmp_path):
    """Returns a function that writes bytes to files in one folder, and returns the folder."""

    def write_files(**contents):
        for name, content in contents.items():
            (tmp_path / name).write_bytes(content)
        return tmp_path

    return write_files


@pytest.mark.parametrize("sides", [("ab", ("A", "B")), (("a", "b"), "AB"), (("a", "b"), ("A",))])
def test_sides_that_are_not_aligned_sentences_are_an_error(sides):
    with pytest.raises((TypeError, ValueError), match="give"):
        ParallelText(*sides)


@given(
    texts=st.lists(
        st.lists(st.tuples(*[st.text("a\t\n1 ", max_size=4)] * 2), min_size=1, max_size=3),
        min_size=2, max_size=9, unique_by=tuple,
    )
)  # fmt: skip
@example(texts=[[("a\tb", "c")], [("a", "b\tc")]])
@example(texts=[[("a", "b\na\tb")], [("a", "b\nb\na")], [("a", "b\n1 1 a\tb")]])
def test_texts_that_differ_have_other_fingerprints(texts):
    parallel = [ParallelText(*zip(*text, strict=True)) for text in texts]
    assert len({text.fingerprint for text in parallel}) == len(texts)


# Lines


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"one\ntwo", ["one", "two"]),
        (b"one\r\ntwo\n", ["one", "two"]),
        (b"\xef\xbb\xbfone\ntwo\n", ["one", "two"]),
        # Files that were joined have more marks, two if one was empty; inside a line they are text.
        ("\ufeffHut\n\ufeffzwei\n\ufeff\ufeffd\ufeff\n".encode(), ["Hut", "zwei", "d\ufeff"]),
        (b"one\n\n\r\n two \t\n\n", ["one", "", "", " two \t", ""]),
        (b"one\rstill one\r\r\n", ["one\rstill one\r"]),
        ("a\u2028b\nc\u2029d\x85\n\x0bf\x1c".encode(), ["a\u2028b", "c\u2029d\x85", "\x0bf\x1c"]),
        (f"{'x' * 3 * 2**20}\nü\n".encode(), ["x" * 3 * 2**20, "ü"]),
    ],
    ids=lambda value: "",
)
@pytest.mark.parametrize("packed", [False, True])
def test_only_line_feeds_end_a_line(write, content, lines, packed):
    # The content and not the name says whether a file is gzip, which may have several members.
    members = gzip.compress(content[:5]) + gzip.compress(content[5:])
    folder = write(text=members) if packed else write(**{"text.gz": content})
    (path,) = folder.iterdir()
    assert [*stream_lines(path)] == lines


# The names are the tests' ids: gzip holds the time, and an id must be the same in every process.
UNREADABLE = {
    "empty": (b"", "the file is empty"),
    "not UTF-8": (b"one\ntwo\nthr\xffee\n", "line 3: not valid UTF-8"),
    "UTF-16": ("one\ntwo\n".encode("utf-16"), "line 1: is UTF-16"),
    "UTF-16, the other order": (b"\xfe\xff" + "one\n".encode("utf-16-be"), "line 1: is UTF-16"),
    "UTF-16 in gzip": (gzip.compress("o\n".encode("utf-16"), mtime=0), "line 1: is UTF-16"),
    "NUL": (b"one\ntw\0o\n", "line 2: not valid UTF-8"),
    "cut by a line end": (codecs.BOM_UTF8 + b"one\n\xe2\x82\nthree\n", "line 2: not valid UTF-8"),
    "gzip without its end": (gzip.compress(b"one\n" * 100)[:-9], "damaged or incomplete gzip"),
    "gzip header, junk": (gzip.compress(b"1")[:10] + b"\xff" * 20, "damaged or incomplete gzip"),
    "wrong gzip checksum": (gzip.compress(b"1\n")[:-8] + bytes(8), "damaged or incomplete gzip"),
}


@pytest.mark.parametrize(("content", "words"), UNREADABLE.values(), ids=UNREADABLE)
def test_unreadable_content_is_an_error_that_says_where(write, content, words):
    path = write(bad=content) / "bad"
    message = error_of(TextFiles, path, path)
    assert message.startswith(str(path)) and words in message


def test_an_error_while_reading_names_the_file():
    def unreadable():
        yield b"one\n"
        raise OSError(errno.EIO, "broken")

    with pytest.raises(OSError, match="broken") as caught:
        list(decode_lines(unreadable(), "standard input"))
    assert caught.value.filename == "standard input"


def test_a_path_that_cannot_be_read_is_named(write):
    folder = write(text=b"one\n")
    for path, words in (("no", "no such file"), ("text/b", "not a directory")):
        assert f"{folder / path}: {words}" in error_of(list, stream_lines(folder / path))
    assert f"{folder}: is a directory" in error_of(list, stream_lines(folder))


def test_one_text_may_come_from_a_pipe():
    # Validation sentences are read once.
    process = subprocess.Popen(["printf", "a\\nb\\n"], stdout=subprocess.PIPE)
    assert [*stream_lines(f"/dev/fd/{process.stdout.fileno()}")] == ["a", "b"]
    process.wait()


# Pairs


def test_pairs_with_a_blank_side_are_dropped_and_counted(write):
    folder = write(
        source=b"eins\n\nzwei\n \t\nvier\n\n", target="one\nx\ntwo\ny\n\u2028\n\n".encode(),
        tsv=b'eins\tone\n\nzwei\t \n\tthree\n"vier"\t\\four\r\n',
    )  # fmt: skip
    expected = ParallelText(("eins", "zwei"), ("one", "two"), num_blank=4)
    assert read_parallel(str(folder / "source"), folder / "target") == expected
    assert read_tsv(folder / "tsv") == ParallelText(("eins", '"vier"'), ("one", "\\four"), 3)


def test_a_line_without_a_visible_character_is_blank():
    assert all(map(is_blank, ["\u200b", "\ufeff \u2060", "\xad", "\x1b", "\u200e\u202e"]))
    visible = ["\u200ba", "🙂\ufe0f", "\u200d्", ".", "\ue000", "\U0001faff"]
    assert not any(map(is_blank, visible))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a\tb\n\nno tab\n", "tsv, line 3: 0 tabs where 1 was expected"),
        (b"a\tb\tc\n", "tsv, line 1: 2 tabs"),
        (b"a\t\n", "tsv: no pair is left, 1 had a blank side"),
    ],
)
def test_a_bad_tsv_file_is_an_error_that_says_where(write, content, words):
    folder = write(tsv=content)
    assert error_of(read_tsv, folder / "tsv").startswith(f"{folder}/{words}")


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        ("s1", "u", "{0}/u: no such file"),
        ("s1", "t1", "{0}/s1 has 2 but {0}/t1 has 1 lines; line i of one must"),
        ("t1", "s1", "{0}/t1 has 1 but {0}/s1 has 2 lines;"),
        ("blank", "s1", "{0}/blank and {0}/s1: no pair is left, 2 had a blank side"),
        ("u*", "t1", "{0}/u*: matches no file; check the pattern (from /"),
        # In all, both sides have three lines.
        ("s?", "t?", "{0}/s1 has 2 but {0}/t1 has 1 lines;"),
        ("s?", "t*", "no file would be paired with {0}/t10: what the wildcards"),
        ("s[2]", "t[1]", "{0}/s2 would be paired with {0}/t1: what"),
        ("x.?", "y.?", "{0}/x.b would be paired with {0}/y.c: what"),
    ],
)
def test_files_that_cannot_be_paired_are_named(write, source, target, words):
    lines = {"s1": b"a\nb\n", "s2": b"c\n", "t1": b"a\n", "t2": b"b\nc\n", "blank": b" \n\t\n"}
    folder = write(**lines, **dict.fromkeys(["t10", "x.a", "x.b", "y.a", "y.c"], b"a\n"))
    for read in (TextFiles,) if re.search(r"[*?[]", source) else (TextFiles, read_parallel):
        message = error_of(read, folder / source, folder / target)
        assert message.startswith(words.format(folder))


# Shards

# A line holds any character but a line feed; a return just before that would be taken for its part.
lines = st.text(st.characters(codec="utf-8", exclude_characters="\n\r\0\ufeff"), max_size=8)
shards = st.lists(st.lists(st.tuples(lines, lines), min_size=1, max_size=9), min_size=1, max_size=4)


@given(
    shards=shards, packed=st.booleans(), end=st.sampled_from(["\n", "\r\n"]), is_ended=st.booleans()
)
def test_shards_hold_what_one_text_in_memory_does(tmp_path_factory, shards, packed, end, is_ended):
    folder = tmp_path_factory.mktemp("shards")
    for number, shard in enumerate(shards):
        for side, name in enumerate(("source", "target")):
            # With a byte order mark; only a last line with text may lack its end.
            text = "\ufeff" + end.join(pair[side] for pair in shard)
            content = (text + (end if is_ended or not shard[-1][side] else "")).encode()
            (folder / f"{name}.{number}").write_bytes(gzip.compress(content) if packed else content)
    pairs = [pair for shard in shards for pair in shard]
    kept = [pair for pair in pairs if not any(map(is_blank, pair))]
    if not kept:
        message = error_of(TextFiles, folder / "source.*", folder / "target.*")
        assert f"no pair is left, {len(pairs)} had a blank side" in message
        return
    text = TextFiles(folder / "source.*", folder / "target.*")
    assert list(text) == list(text) == kept
    assert len(text) == len(kept) and text.num_blank == len(pairs) - len(kept)
    assert [pair for part in text.parts() for pair in part] == kept
    if len(shards) == 1:
        assert text.fingerprint == ParallelText(*zip(*kept, strict=True)).fingerprint
        in_memory = read_parallel(folder / "source.0", folder / "target.0")
        assert list(in_memory) == kept and in_memory.num_blank == text.num_blank


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("s{}", "t{}"),
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
    if source == "s{}":  # by their numbers: 10 comes after 9
        assert [eval(line)[0] for line, _ in pairs] == list(range(1, 13))


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(write):
    folder = write(**{"s[1]": b"this\n", "s1": b"that\n"})
    assert list(TextFiles(folder / "s[1]", folder / "s1")) == [("this", "that")]


def test_a_file_that_changes_in_use_or_is_a_pipe_is_named(write):
    folder = write(source=b"a\nb\n", target=b"a\nb\n")
    text = TextFiles(folder / "source", folder / "target")
    (folder / "target").write_bytes(b"b\na\n")
    os.utime(folder / "target", ns=(1, 1))
    assert f"{folder}/target: was changed" in error_of(list, text)
    (folder / "target").write_bytes(b"a\nb\n")  # another time, and the same content
    assert list(text) == [("a", "a"), ("b", "b")]
    os.mkfifo(folder / "pipe")
    message = error_of(TextFiles, folder / "source", folder / "pipe")
    assert f"{folder}/pipe: can be read only once" in message

"""Tests of text files as sentence pairs: lines, TSV, gzip, shards, and what is wrong with them."""

import codecs
import glob
import gzip
import os
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tf_transformer.data.text import (
    DataError,
    ParallelText,
    TextFiles,
    is_blank,
    read_lines,
    read_parallel,
    read_tsv,
)


@pytest.fixture
def write(tmp_path):
    """Returns a function that writes bytes to files in one folder, and returns the folder."""

    def write_files(**contents):
        for name, content in contents.items():
            (tmp_path / name).write_bytes(content)
        return tmp_path

    return write_files


def error_of(action, *arguments):
    """The message of the DataError that `action` must raise, one line."""
    with pytest.raises(DataError) as caught:
        action(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


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
        ("Grüße\n\ufeffzwei\n".encode(), ["Grüße", "\ufeffzwei"]),
        (b"one\n\n\r\n two \t\n\n", ["one", "", "", " two \t", ""]),
        (b"one\rstill one\r\r\n", ["one\rstill one\r"]),
        ("a\u2028b\nc\u2029d\x85\n\x0bf\x1c".encode(), ["a\u2028b", "c\u2029d\x85", "\x0bf\x1c"]),
        (f"{'x' * 3 * 2**20}\nü\n".encode(), ["x" * 3 * 2**20, "ü"]),
    ],
    ids=lambda value: "",
)
@pytest.mark.parametrize("packed", [False, True])
def test_only_line_feeds_end_a_line(write, content, lines, packed):
    folder = write(text=gzip.compress(content) if packed else content)
    assert read_lines(folder / "text") == lines


def test_the_content_and_not_the_name_says_whether_a_file_is_gzip(write):
    members = gzip.compress(b"one\n") + gzip.compress(b"two\n")
    folder = write(**{"plain.gz": b"one\n", "packed.txt": members})
    assert read_lines(folder / "plain.gz") == ["one"]
    assert read_lines(folder / "packed.txt") == ["one", "two"]


# The names are the tests' ids: gzip holds the time, and an id must be the same in every process.
UNREADABLE = {
    "empty": (b"", "the file is empty"),
    "not UTF-8": (b"one\ntwo\nthr\xffee\n", "line 3: not valid UTF-8"),
    "NUL": (b"one\ntw\0o\n", "line 2: not valid UTF-8"),
    "cut by a line end": (codecs.BOM_UTF8 + b"one\n\xe2\x82\nthree\n", "line 2: not valid UTF-8"),
    "cut by the end of gzip": (gzip.compress(b"one\n\xc3"), "line 2: not valid UTF-8"),
    "UTF-16 without a mark": ("one\n".encode("utf-16-be"), "line 1: not valid UTF-8"),
    "gzip without its end": (gzip.compress(b"one\n" * 100)[:-9], "damaged or incomplete gzip"),
    "gzip header, junk": (gzip.compress(b"1")[:10] + b"\xff" * 20, "damaged or incomplete gzip"),
    "wrong gzip checksum": (gzip.compress(b"1\n")[:-8] + bytes(8), "damaged or incomplete gzip"),
}


@pytest.mark.parametrize(("content", "words"), UNREADABLE.values(), ids=UNREADABLE)
def test_unreadable_content_is_an_error_that_says_where(write, content, words):
    path = write(bad=content) / "bad"
    message = error_of(TextFiles, path, path)
    assert message.startswith(str(path)) and words in message


def test_a_path_that_cannot_be_read_is_named(write):
    folder = write(text=b"one\n")
    for path, words in (("no", "no such file"), ("text/b", "not a directory")):
        assert f"{folder / path}: {words}" in error_of(read_lines, folder / path)
    assert f"{folder}: is a directory" in error_of(read_lines, folder)


def test_one_text_may_come_from_a_pipe():
    # Validation sentences are read once.
    process = subprocess.Popen(["printf", "a\\nb\\n"], stdout=subprocess.PIPE)
    assert read_lines(f"/dev/fd/{process.stdout.fileno()}") == ["a", "b"]
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
    ("name", "content", "words"),
    [
        ("tsv", b"a\tb\n\nno tab\n", "tsv, line 3: 0 tabs where 1 was expected"),
        ("tsv", b"a\tb\tc\n", "tsv, line 1: 2 tabs"),
        ("tsv", b"a\t\n", "tsv: no pair is left, 1 had a blank side"),
        ("source", b"a\nb\nc\nd\n", "source has 4 but {folder}/target has 3 lines; line i"),
        ("source", b"a\n", "source has 1 but {folder}/target has 3 lines; line i"),
        ("source", b" \n\n\t\n", "source and {folder}/target: no pair is left, 3 had a blank"),
    ],
)
def test_bad_pairs_are_an_error_that_says_where(write, name, content, words):
    folder = write(**{name: content}, target=b"a\nb\nc\n")
    for read in (read_tsv,) if name == "tsv" else (read_parallel, TextFiles):
        paths = [folder / name] if name == "tsv" else [folder / name, folder / "target"]
        assert words.format(folder=folder) in error_of(read, *paths)


# Shards

# A line holds any character but a line feed; a return just before that would be taken for its part.
lines = st.text(st.characters(codec="utf-8", exclude_characters="\n\r\0"), max_size=8)
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
    # The fingerprint does not depend on how the text is split into files.
    assert text.fingerprint == ParallelText(*zip(*kept, strict=True)).fingerprint
    if len(shards) == 1:
        in_memory = read_parallel(folder / "source.0", folder / "target.0")
        assert list(in_memory) == kept and in_memory.num_blank == text.num_blank


def test_missing_partners_of_files_are_named(write):
    folder = write(s1=b"a\nb\n", s2=b"c\n", t1=b"a\n", t2=b"b\nc\n", t10=b"")

    def message(source, target):
        return error_of(TextFiles, folder / source, folder / target)

    assert f"{folder}/u: no such file" in message("s1", "u")
    assert f"{folder}/u*: matches no file; check the pattern (from /" in message("u*", "t1")
    assert f"no file would be paired with {folder}/t10: what" in message("s?", "t*")
    # Together both sides have three lines.
    assert f"{folder}/s1 has 2 but {folder}/t1 has 1 lines;" in message("s?", "t?")


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


@pytest.mark.parametrize(
    ("sources", "targets", "first"),
    [
        ("s1 s2 s3", "t1 t3 t4", "s2 would be paired with {}/t3"),
        ("s.a s.b", "t.a t.c", "s.b would be paired with {}/t.c"),
    ],
)
def test_shards_that_do_not_belong_together_are_named(write, sources, targets, first):
    folder = write(**dict.fromkeys([*sources.split(), *targets.split()], b"a\n"))
    message = error_of(TextFiles, folder / "s*", folder / "t*")
    assert message.startswith(f"{folder}/{first.format(folder)}: ")


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(write):
    folder = write(**{"s[1]": b"this\n", "s1": b"that\n"})
    assert list(TextFiles(folder / "s[1]", folder / "s1")) == [("this", "that")]


def test_a_file_that_changes_in_use_or_is_a_pipe_is_named(write):
    folder = write(source=b"a\nb\n", target=b"a\nb\n")
    text = TextFiles(folder / "source", folder / "target")
    (folder / "target").write_bytes(b"b\na\n")
    os.utime(folder / "target", ns=(1, 1))
    assert f"{folder}/target: was changed" in error_of(list, text)
    os.mkfifo(folder / "pipe")
    message = error_of(TextFiles, folder / "source", folder / "pipe")
    assert f"{folder}/pipe: can be read only once" in message


def test_the_readers_load_no_heavy_library():
    heavy = {"tensorflow", "tensorflow_datasets", "keras", "numpy"}
    code = (
        "import sys; from tf_transformer import load_tfds, read_tsv; "
        f"assert not {heavy} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

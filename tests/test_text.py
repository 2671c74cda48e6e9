"""Tests of text files as sentence pairs: lines, TSV, gzip, shards, and what is wrong with them."""

import codecs
import glob
import gzip
import os
import subprocess
import sys
import tracemalloc

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tf_transformer.data.text import (
    DataError,
    ParallelText,
    TextFiles,
    is_blank,
    read_lines,
    read_parallel,
    read_tsv,
    stream_lines,
)

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


# Parallel text


def test_parallel_text_has_a_length_and_gives_pairs():
    text = ParallelText(("a", "b"), ("A", "B"))
    assert len(text) == 2 and list(text) == [("a", "A"), ("b", "B")]
    with pytest.raises(ValueError, match="received 2 sources and 3 targets"):
        ParallelText(("a", "b"), ("A", "B", "C"))
    for sides in (("ab", ("A", "B")), (("a", "b"), "AB")):
        with pytest.raises(TypeError, match=r"must be tuples of str.*give \(text,\)"):
            ParallelText(*sides)


@unhurried
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
    assert len({text.fingerprint.sha256 for text in parallel}) == len(texts)


# Lines


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\ntwo", ["one", "two"]),
        (b"one\r\ntwo\n", ["one", "two"]),
        (b"\xef\xbb\xbfone\ntwo\n", ["one", "two"]),
        ("Grüße\n\ufeffzwei\n".encode(), ["Grüße", "\ufeffzwei"]),
        (b"one\n\n\r\ntwo\n\n", ["one", "", "", "two", ""]),
        (b" one \t\n", [" one \t"]),
        (b"one\rstill one\r\r\n", ["one\rstill one\r"]),
        ("a\u2028b\nc\u2029d\n".encode(), ["a\u2028b", "c\u2029d"]),
        ("a\x85b\nc\x0bd\x0ce\x1cf\n".encode(), ["a\x85b", "c\x0bd\x0ce\x1cf"]),
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
    "empty gzip": (gzip.compress(b""), "the file is empty"),
    "not UTF-8": (b"one\ntwo\nthr\xffee\n", "line 3: not valid UTF-8"),
    "NUL": (b"one\ntw\0o\n", "line 2: not valid UTF-8"),
    "cut by a line end": (codecs.BOM_UTF8 + b"one\n\xe2\x82\nthree\n", "line 2: not valid UTF-8"),
    "cut by the end of gzip": (gzip.compress(b"one\n\xc3"), "line 2: not valid UTF-8"),
    "UTF-16": ("one\n".encode("utf-16"), "line 1: not valid UTF-8"),
    "UTF-16 without a mark": ("one\n".encode("utf-16-be"), "line 1: not valid UTF-8"),
    "gzip without its end": (gzip.compress(b"one\n" * 100)[:-9], "damaged or incomplete gzip"),
    "start of a gzip header": (gzip.compress(b"one\n" * 100)[:5], "damaged or incomplete gzip"),
    "gzip header, junk": (gzip.compress(b"1")[:10] + b"\xff" * 20, "damaged or incomplete gzip"),
    "wrong gzip checksum": (gzip.compress(b"1\n")[:-8] + bytes(8), "damaged or incomplete gzip"),
}


@pytest.mark.parametrize(("content", "words"), UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize(
    "read", [read_lines, lambda path: TextFiles(path, path)], ids=["lines", "text"]
)
def test_unreadable_content_is_an_error_that_says_where(write, read, content, words):
    path = write(bad=content) / "bad"
    message = error_of(lambda: read(path))
    assert message.startswith(str(path)) and words in message


def test_a_path_that_cannot_be_read_is_named(write):
    folder = write(text=b"one\n")
    for path, words in (
        ("no", "no such file"),
        ("", "is a directory"),
        ("text/b", "not a directory"),
    ):
        assert f"{folder / path}: {words}" in error_of(lambda p=path: read_lines(folder / p))


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


def test_a_line_without_a_visible_character_is_blank(write):
    blank = ["\u200b", "\ufeff \u2060", "\xad", "\x1b", "\u200e\u202e"]
    visible = ["\u200ba", "🙂\ufe0f", "\u200d्", ".", "\ue000", "\U0001faff"]
    texts = ["first", *blank, *visible]
    folder = write(
        lines="".join(f"{text}\n" for text in texts).encode(),
        tsv="".join(f"{text}\t{text}\n" for text in [*texts]).encode(),
    )
    lines = folder / "lines"
    for text in (read_parallel(lines, lines), read_tsv(folder / "tsv"), TextFiles(None, lines)):
        assert [target for _, target in text] == ["first", *visible]
        assert text.num_blank == len(blank)


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
    if name == "tsv":
        actions = [lambda: read_tsv(folder / "tsv")]
    else:
        paths = folder / "source", folder / "target"
        actions = [lambda: read_parallel(*paths), lambda: TextFiles(*paths)]
    for action in actions:
        assert words.format(folder=folder) in error_of(action)


# Shards

# A line holds any character but a line feed; a return just before that would be taken for its part.
lines = st.text(st.characters(codec="utf-8", exclude_characters="\n\r\0"), max_size=8)
shards = st.lists(st.lists(st.tuples(lines, lines), min_size=1, max_size=9), min_size=1, max_size=4)


@unhurried
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
        message = error_of(lambda: TextFiles(folder / "source.*", folder / "target.*"))
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


def test_a_file_larger_than_the_allowed_memory_is_read(tmp_path):
    path = tmp_path / "large"
    with path.open("wb") as file:
        for _ in range(20):
            file.write(b"a sentence of some words\n" * 20_000)  # 0.5 MB
    tracemalloc.start()
    try:
        assert sum(1 for _ in stream_lines(path)) == 400_000
        assert len(TextFiles(path, path)) == 400_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2e6  # all lines would be 30 MB


def test_missing_files_patterns_and_partners_are_named(write):
    folder = write(s1=b"a\n", s2=b"a\n", t1=b"a\n")

    def message(source, target):
        return error_of(lambda: TextFiles(folder / source, folder / target))

    assert f"{folder}/u: no such file" in message("s1", "u")
    assert message("u*", "t1").startswith(
        f"{folder}/u*: matches no file; check the pattern (from /"
    )
    assert f"{folder}/s? matches 2 but {folder}/t? matches 1 files;" in message("s?", "t?")


def test_a_shard_of_another_length_is_named_with_its_partner(write):
    # Together both sides have three lines.
    folder = write(s1=b"a\nb\n", s2=b"c\n", t1=b"a\n", t2=b"b\nc\n")
    message = error_of(lambda: TextFiles(folder / "s?", folder / "t?"))
    assert f"{folder}/s1 has 2 but {folder}/t1 has 1 lines;" in message


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


def test_a_file_that_changes_in_use_or_is_a_pipe_is_named(write):
    folder = write(source=b"a\nb\n", target=b"a\nb\n")
    text = TextFiles(folder / "source", folder / "target")
    (folder / "target").write_bytes(b"b\na\n")
    os.utime(folder / "target", ns=(1, 1))
    assert f"{folder}/target: was changed" in error_of(lambda: list(text))
    os.mkfifo(folder / "pipe")
    message = error_of(lambda: TextFiles(folder / "source", folder / "pipe"))
    assert f"{folder}/pipe: can be read only once" in message


# Imports


def test_the_readers_load_no_heavy_library():
    heavy = {"tensorflow", "tensorflow_datasets", "keras", "numpy"}
    code = (
        "import sys, tf_transformer.data as data; assert data.read_tsv and data.load_tfds; "
        f"assert not {heavy} & set(sys.modules); "
        "assert data.TokenBatches and 'tensorflow' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

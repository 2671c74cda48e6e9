"""`tf-transformer translate`: lines in order, and errors."""

import functools
import json
import os
import threading

import pytest
from commands import assert_refused, lines_of, run, small_files

import tf_transformer as tt
from tf_transformer import cli
from tf_transformer.commands import translate
from tf_transformer.inference.results import Translation

_open = functools.cache(translate.open_translator)


@pytest.fixture(autouse=True)
def opened_once(monkeypatch):
    """Opens each model once, which takes longer than most of the tests."""
    monkeypatch.setattr(translate, "open_translator", _open)


@pytest.fixture
def arguments(echo, tmp_path):
    """Translates the file `in` of the folder into `out` by the echoing model."""
    return ["translate", str(echo), f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'out'}"]


def test_translate_answers_line_by_line_in_order(echo, tmp_path):
    done = run("translate", echo, input="a b c\n\nd e\r\n   \nf\n", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "a b c\n\nd e\n\nf\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"a b\n\nc d", b"a b\n\nc d\n"),  # no end of the last line
        ("é\u2028ü\n日本\n".encode(), "é ü\n日本\n".encode()),  # one line here, two to Python
        (b"a b\r\nc\r\n", b"a b\nc\n"),
        (b"\xef\xbb\xbfa b\nc d\n", b"a b\nc d\n"),  # a byte order mark
        (b"a b\nc\n\nd e f\n" * 9, b"a b\nc\n\nd e f\n" * 9),  # more than are read at once
    ],
)
def test_translate_reads_and_writes_files(arguments, tmp_path, capfd, text, expected):
    (tmp_path / "in").write_bytes(text)
    assert cli.main([*arguments, "--batch-size=1", "--threads=3"]) == 0
    assert (tmp_path / "out").read_bytes() == expected
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("given", "expected"),
    [([], "Ab cd.  Ef gh!\nij\n\nKl? Mn\n"), (["--n-best=1"], "Ab cd.\nij\n\nKl?\n")],
    ids=["all", "n-best"],
)
def test_every_sentence_of_a_line_is_translated(
    first_sentence_version, tmp_path, capfd, given, expected
):
    (tmp_path / "in").write_text("Ab cd.  Ef gh!\nij\n\nKl? Mn\n")
    arguments = ["translate", str(first_sentence_version), f"--input={tmp_path / 'in'}", *given]
    assert cli.main(arguments) == 0
    assert capfd.readouterr().out == expected


@pytest.mark.parametrize("lines", [600, 90_000])
def test_an_output_that_does_not_fit_on_the_disk_is_named(arguments, tmp_path, capfd, lines):
    (tmp_path / "in").write_text("a\n" * lines)
    capfd.readouterr()  # its file, too, must be small
    with small_files(1000):
        assert cli.main([*arguments, "--batch-size=4096"]) == 2
    assert capfd.readouterr() == ("", f"tf-transformer: {tmp_path / 'out'}: File too large.\n")


def test_a_line_end_in_a_translation_starts_no_line(arguments, tmp_path, monkeypatch):
    found = Translation("a\nb\u2028c", 0.0, 0.0, 3, False, False)
    monkeypatch.setattr(tt.Translator, "stream", lambda self, lines, **_: ([found] for _ in lines))
    (tmp_path / "in").write_text("x\ny\n", encoding="utf-8")
    assert cli.main(arguments) == 0
    assert (tmp_path / "out").read_text(encoding="utf-8") == "a b c\n" * 2


def test_an_output_is_written_over_only_when_told(echo, bad_files, capfd, monkeypatch):
    output = bad_files / "out"
    output.write_text("hours of work\n")
    arguments = ["translate", str(echo), f"--input={bad_files / 'two'}"]
    words = ["out: exists already.*--overwrite"]
    assert_refused([*arguments, f"--output={output}"], words, capfd, bad_files)
    assert lines_of(output) == ["hours of work"]
    # A text that is not valid, and the output itself.
    again = ["translate", str(echo), f"--output={output}", "--overwrite"]
    assert_refused(
        [*again, f"--input={bad_files / 'latin1'}"], ["latin1, line 2"], capfd, bad_files
    )
    with output.open() as file:
        monkeypatch.setattr("sys.stdin", file)
        assert_refused(again, ["out: is the input too"], capfd, bad_files)
        with output.open("a") as end, monkeypatch.context() as patch:
            patch.setattr("sys.stdout", end)
            assert_refused(again[:2], ["standard output: is the input too"], capfd, bad_files)
    assert lines_of(output) == ["hours of work"]
    for path, given in ((output, ["--overwrite"]), (bad_files / "empty", [])):
        assert cli.main([*arguments, f"--output={path}", *given]) == 0
        assert lines_of(path) == ["a b", "c d"]
    assert cli.main([*arguments, "--output=/dev/null"]) == 0


def test_an_input_that_is_not_utf8_is_refused(echo, bad_files, capfd, monkeypatch):
    path = bad_files / "latin1"
    with path.open() as file:
        monkeypatch.setattr("sys.stdin", file)
        for name, given in (("standard input", []), (path, [f"--input={path}"])):
            words = [f"{name}, line 2: not valid UTF-8, or has a NUL; convert"]
            assert_refused(["translate", echo, *given], words, capfd, bad_files)


def test_notices_say_what_was_truncated(arguments, tmp_path, capfd):
    source = tmp_path / "in"
    source.write_text("a b\n" + "c " * 50_000 + "\nd e\n", encoding="utf-8")
    assert cli.main(arguments) == 0
    first, second, third = lines_of(tmp_path / "out")
    assert (first, third) == ("a b", "d e")
    assert 0 < len(second) < 1000 and set(second) <= {"c", " "}
    assert "lost the rest: line 2." in capfd.readouterr().err
    source.write_text("a\n" + ("c " * 999 + "\n") * 7, encoding="utf-8")
    assert cli.main([*arguments, "--overwrite"]) == 0
    assert "7 source(s) were longer" in (printed := capfd.readouterr().err)
    assert printed.endswith("lost the rest: line 2, 3, 4, 5, 6 ….\n")


def test_a_pipe_is_translated(arguments, tmp_path):
    pipe = tmp_path / "in"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text("a\nb\n", encoding="utf-8"))
    writer.start()
    assert cli.main(arguments) == 0
    writer.join()
    assert (tmp_path / "out").read_text() == "a\nb\n"


def test_the_outputs_of_shards_joined_are_that_of_the_whole(arguments, tmp_path, capfd):
    lines = [f"{'abc d' * (n % 7)} {n}" for n in range(50)]
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    for options in ([], ["--flags"]):
        assert cli.main([*arguments, *options, "--overwrite"]) == 0
        whole, joined = (tmp_path / "out").read_bytes(), b""
        for index in range(1, 4):
            part = tmp_path / f"part{index}{len(options)}"
            others = [*arguments[:-1], f"--output={part}", *options, f"--shard={index}/3"]
            assert cli.main(others) == 0
            joined += part.read_bytes()
        if options:  # the sums of a score may be rounded otherwise in other batches
            joined, whole = (
                [(fact["line"], fact["translation"]) for fact in map(json.loads, text.splitlines())]
                for text in (joined, whole)
            )
        assert joined == whole
    # A job that is started again leaves what is complete, and no input is needed for that.
    part.write_bytes(b"complete")
    capfd.readouterr()
    assert cli.main(others) == 0
    assert part.read_bytes() == b"complete"
    assert "is complete already" in capfd.readouterr().err


def test_a_shard_that_fails_leaves_no_output(arguments, tmp_path, capfd):
    (tmp_path / "in").write_bytes(b"a b\n" * 50 + b"\xff\n" + b"c\n" * 50)
    assert cli.main([*arguments, "--shard=2/3", "--batch-size=1"]) == 2
    assert "line 51: not valid UTF-8" in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["in"]

"""`tf-transformer translate`: lines in order, and errors."""

import pytest
import tensorflow as tf
from commands import assert_refused, lines_of, run

import tf_transformer as tt
from tf_transformer import cli


def test_translate_answers_line_by_line_in_order(echo, tmp_path):
    done = run("translate", echo, input="a b c\n\nd e\r\n   \nf\n", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "a b c\n\nd e\n\nf\n"
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"a b\n\nc d", b"a b\n\nc d\n"),  # no end of the last line
        (b"\n\n", b"\n\n"),
        (b"", b""),
        (b"a\nb \xff\nc\n", "a\nb \ufffd\nc\n".encode()),  # not UTF-8
        ("é\u2028ü\n日本\n".encode(), "é ü\n日本\n".encode()),  # one line here, two to Python
        (b"a b\r\nc\r\n", b"a b\nc\n"),
    ],
)
def test_translate_reads_and_writes_files(echo, tmp_path, capfd, text, expected):
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_bytes(text)
    arguments = ["translate", str(echo), f"--input={source}", f"--output={output}"]
    assert cli.main([*arguments, "--batch-size=2"]) == 0
    assert output.read_bytes() == expected
    assert capfd.readouterr() == ("", "")


def test_translate_of_more_lines_than_are_read_at_once_keeps_the_order(echo, tmp_path):
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    texts = ["a", "b c d e", "", "f g", "h", "i j a b", "c"] * 9
    source.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    arguments = ["translate", str(echo), f"--input={source}", f"--output={output}"]
    assert cli.main([*arguments, "--batch-size=1", "--threads=3"]) == 0
    assert lines_of(output) == texts


@pytest.mark.parametrize("n_best", [[], ["--n-best=2", "--beam-size=3"]], ids=["best", "n-best"])
@pytest.mark.parametrize("kept", [0, 1, 3, 5], ids="kept {}".format)
def test_a_stopped_output_is_continued(echo, tmp_path, n_best, kept):
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("a b\n\nc d e\nf\n", encoding="utf-8")
    arguments = ["translate", str(echo), f"--input={source}", f"--output={output}", *n_best]
    assert cli.main(arguments) == 0
    whole = output.read_bytes()
    lines = whole.splitlines(keepends=True)
    # An incomplete line is written again.
    output.write_bytes(b"".join(lines[:kept]) + (lines[kept][:1] if kept < len(lines) else b""))
    assert cli.main([*arguments, "--continue"]) == 0
    assert output.read_bytes() == whole


def test_a_source_of_a_hundred_thousand_characters_is_truncated_and_named(echo, tmp_path, capfd):
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("a b\n" + "c " * 50_000 + "\nd e\n", encoding="utf-8")
    assert cli.main(["translate", str(echo), f"--input={source}", f"--output={output}"]) == 0
    first, second, third = lines_of(output)
    assert (first, third) == ("a b", "d e")
    assert 0 < len(second) < 1000 and set(second) <= {"c", " "}
    assert "lost the rest: line 2." in capfd.readouterr().err


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--beam-size=999", ["beam_size must be from 1 to 280", "received beam_size=999"]),
        ("--n-best=3", ["n_best must be from 1 to the size of the beam, 1", "--beam-size"]),
        ("--continue", ["--continue needs --input and --output"]),
    ],
)
def test_an_invalid_search_is_refused(echo, tmp_path, capfd, option, words):
    assert_refused(["translate", echo, option], words, capfd, tmp_path)


def test_translate_does_not_write_over_its_input(echo, bad_files, capfd):
    arguments = ["translate", echo, f"--input={bad_files / 'two'}", f"--output={bad_files / 'two'}"]
    assert_refused(arguments, ["two", "--output"], capfd, bad_files)
    assert lines_of(bad_files / "two") == ["a b", "c d"]


def test_a_line_end_in_a_translation_starts_no_line(echo_model, copy_files, tmp_path):
    tokenizer = tt.SentencePieceTokenizer.train(lines_of(copy_files / "train.source"), 280)

    class LineEndModel(echo_model):
        def decode_step(self, token_ids, index, cache):
            line_end = next(i for i in range(280) if tokenizer.subwords([i]) == ["<0x0A>"])
            says = tf.where(index == 1, line_end, tokenizer.encode(["a"])[0][0])
            ids = tf.where(index == 3, tokenizer.eos_id, says)
            return tf.one_hot(tf.fill(tf.shape(token_ids), ids), 280), cache

    translator = tt.Translator.from_model(LineEndModel(280), tokenizer, tokenizer)
    tt.export_saved_model(translator, tmp_path / "demo")
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("b\nc\n", encoding="utf-8")
    arguments = ["translate", str(tmp_path / "demo"), f"--input={source}", f"--output={output}"]
    assert cli.main(arguments) == 0
    assert output.read_bytes().count(b"\n") == 2


def test_an_output_of_another_input_is_not_continued(moved_model, tmp_path, capfd):
    (tmp_path / "in").write_text("eins\n")
    (tmp_path / "out").write_text("one\ntwo\n")
    given = [f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'out'}", "--continue"]
    words = ["out: holds translations of 2 lines, more than", "another --output"]
    assert_refused(["translate", moved_model, *given], words, capfd, tmp_path)
    assert (tmp_path / "out").read_text() == "one\ntwo\n"


def test_a_missing_input_is_named(moved_model, bad_files, capfd):
    arguments = ["translate", moved_model, f"--input={bad_files / 'missing'}"]
    assert_refused(arguments, ["missing: no such file or folder; check"], capfd, bad_files)


def test_an_output_in_a_missing_folder_is_named(bad_files, capfd):
    arguments = ["translate", "no-model", f"--output={bad_files / 'missing' / 'out'}"]
    assert_refused(arguments, ["missing: no such file or folder; check"], capfd, bad_files)


def test_a_text_as_an_argument_is_told_the_way(bad_files, capfd):
    with pytest.raises(SystemExit) as caught:
        cli.main(["translate", "no-model", "Two dogs play"])
    assert caught.value.code == 2
    assert "unknown Two dogs play; texts come from standard input" in capfd.readouterr().err


def test_an_input_that_is_a_directory_is_named(moved_model, bad_files, capfd):
    arguments = ["translate", moved_model, f"--input={bad_files / 'folder'}"]
    assert_refused(arguments, ["folder: is a directory; give a file in it"], capfd, bad_files)


def test_an_output_that_cannot_be_written_is_named(moved_model, bad_files, capfd):
    arguments = ["translate", moved_model, f"--input={bad_files / 'two'}", f"--output={bad_files}"]
    assert_refused(arguments, [f"{bad_files}: is a directory; give a file in it"], capfd, bad_files)

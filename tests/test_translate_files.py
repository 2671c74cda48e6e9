"""`tf-transformer translate` and `evaluate` with files as they are: marks, progress, notices."""

import gzip
import json
import os
import threading
import types

import pytest

from tf_transformer import cli
from tf_transformer.inference import lines
from tf_transformer.inference.translation import Translation

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def test_translate_drops_a_byte_order_mark(echo, tmp_path, capfd):
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_bytes(BYTE_ORDER_MARK + b"a b\nc d\n")
    assert cli.main(["translate", str(echo), f"--input={source}", f"--output={output}"]) == 0
    assert output.read_bytes() == b"a b\nc d\n"


@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_evaluate_drops_a_byte_order_mark(echo, tmp_path, capfd, compress):
    source, reference = tmp_path / "source", tmp_path / "reference"
    source.write_bytes(compress(BYTE_ORDER_MARK + b"a b c d e f\n"))
    reference.write_bytes(b"a b c d e f\n")
    given = [f"--source={source}", f"--reference={reference}"]
    assert cli.main(["evaluate", str(echo), *given]) == 0
    assert json.loads(capfd.readouterr().out.splitlines()[-1])["bleu"] == 100


def translate_with(tmp_path, translations):
    """Translates as many lines as there are translations, which are given."""
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("x\n" * len(translations), encoding="utf-8")

    def translate(texts):
        for _, translation in zip(texts, translations, strict=True):
            yield [translation]

    lines.translate_lines(translate, str(source), str(output), 1, False)


def test_progress_is_printed_where_there_is_no_terminal(tmp_path, monkeypatch, capfd):
    clock = iter(range(0, 1000, 20))  # 20 seconds a line
    monkeypatch.setattr(lines, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    translate_with(tmp_path, [Translation("a", -1.0, -1.0, 1, False, False)] * 6)
    printed = capfd.readouterr()
    assert printed.out == ""
    reports = printed.err.splitlines()
    assert reports and all(line.endswith(" of 6 lines") for line in reports)
    assert len(reports) < 6, "not every line"


def translation(truncated=False, source_truncated=False):
    return Translation("a", -1.0, -1.0, 1, truncated, source_truncated)


@pytest.mark.parametrize(
    ("translations", "expected"),
    [
        ([translation()] * 3, []),
        (
            [translation(), translation(source_truncated=True)],
            ["1 source was longer than the model's max_length and lost the rest: line 2."],
        ),
        (
            [translation(truncated=True)] * 7,
            [
                "7 translations were stopped by the length limit before an end: "
                "line 1, 2, 3, 4, 5 …."
            ],
        ),
        (
            [translation(True, True), translation(True)],
            [
                "1 source was longer than the model's max_length and lost the rest: line 1.",
                "1 translation was stopped by the length limit before an end: line 2.",
            ],
        ),
    ],
    ids=["nothing", "a source", "many translations", "both"],
)
def test_a_notice_says_whether_sources_or_translations_were_truncated(
    tmp_path, capfd, translations, expected
):
    translate_with(tmp_path, translations)
    assert capfd.readouterr().err.splitlines() == [f"tf-transformer: {line}" for line in expected]


def test_a_pipe_is_translated_though_its_lines_cannot_be_counted(tmp_path, monkeypatch):
    pipe, output = tmp_path / "pipe", tmp_path / "out.txt"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text("a\nb\n", encoding="utf-8"))
    writer.start()

    def translate(texts):
        return ([translation()] for _ in texts)

    lines.translate_lines(translate, str(pipe), str(output), 1, False)
    writer.join()
    assert output.read_text() == "a\na\n"


def test_a_bad_option_leaves_an_output_that_exists(echo, tmp_path, capfd):
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("a\n")
    output.write_text("precious")
    given = [f"--input={source}", f"--output={output}", "--n-best=4", "--overwrite"]
    assert cli.main(["translate", str(echo), *given]) == 2
    assert output.read_text() == "precious"

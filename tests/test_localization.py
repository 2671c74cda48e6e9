"""The commands of a localisation team: documents, glossaries, pairs of their files, the suite."""

import json
import re

import pytest
from commands import assert_one_line, config_of, refusal, run_here
from letters import EchoModel, translator_of

import tf_transformer as tt
from tf_transformer.data.corpus import load_corpus
from tf_transformer.data.glossary import Glossary, read_terms
from tf_transformer.data.lines import DataError
from tf_transformer.inference.results import Translation

PO = """msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\\n"

#: a.c:1
msgid "a b c"
msgstr ""

msgid "done"
msgstr "fertig"
"""


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "file\tDatei\n\nfile name\tDateiname\nfile\tAkte\tb\n"),
        ("a.csv", 'file,Datei,noun\n\n"file\nname","Dateiname"\n'),
        ("b.csv", "file;Datei;x, y\n;;\nfile name;Dateiname;\n"),
        ("d.csv", "Source;Target\nfile;Datei\nfile name;Dateiname\n"),
        ("c.csv", '\n"file",Datei,"x; y"\nfile name,Dateiname\n'),
        (
            "a.tbx",
            "<martif><termEntry><langSet xml:lang='en'><tig><term>file</term></tig></langSet>"
            "<langSet xml:lang='de'><ntig><termGrp><term>Datei</term></termGrp></ntig>"
            "<tig><term>File</term></tig></langSet></termEntry>"
            "<termEntry><langSet><term>lone</term></langSet></termEntry>"
            "<termEntry><langSet><term>file name</term></langSet>"
            "<langSet><term>Dateiname</term></langSet></termEntry></martif>",
        ),
        (
            "b.tbx",
            "<tbx xmlns='urn:iso:std:iso:30042:ed-2'><conceptEntry><langSec><termSec><term>file"
            "</term></termSec></langSec><langSec><termSec><term>Datei</term></termSec></langSec>"
            "</conceptEntry><conceptEntry><langSec><term>file name</term></langSec><langSec><term>"
            "Dateiname</term></langSec></conceptEntry></tbx>",
        ),
    ],
)
def test_glossaries_are_read(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    terms = read_terms(tmp_path / name)
    assert terms == {"file": "Datei", "file name": "Dateiname"}
    assert Glossary(terms).terms_in("a FILE  name") == "file\tDatei\nfile name\tDateiname"
    assert Glossary(terms).terms_in("a fil") == ""
    assert Glossary({"\u00e9tude": "x"}).terms_in("E\u0301tude") == "\u00e9tude\tx"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "file\tDatei\nname\n", "entry 2: needs a term and its translation"),
        ("a.tbx", "<martif><termEntry>", "is not valid XML"),
        ("a.tbx", "<martif/>", "has no entry in two languages"),
        ("a.tbx", '<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', "defines entities"),
        ("a.tsv", "", "the file is empty"),
        ("a.csv", " \n\n", "has no terms"),
        ("a.csv", "file,Datei\n\nname\n", "entry 2: needs"),
        ("a.csv", 'file,"' + "Datei\n" * 30_000, "is no CSV (field larger"),
    ],
)
def test_broken_glossaries_have_one_line(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    assert message in refusal(read_terms, tmp_path / name, kind=DataError)


@pytest.mark.parametrize("terms", [{"a": ""}, {" ": "a"}, {"a": "b\tc"}, {"a\nb": "c"}])
def test_terms_without_a_translation_are_refused(terms):
    with pytest.raises(DataError, match="and its translation must have text, but no tabs"):
        Glossary(terms)


def test_a_document_is_filled_and_kept(echo, tmp_path):
    (tmp_path / "a.po").write_text(PO)
    output = tmp_path / "b.po"
    done = run_here("translate", echo, "--input", tmp_path / "a.po", "--output", output)
    assert "1 of 2 units translated" in done.stderr
    expected = PO.replace('msgid "a b c"\nmsgstr ""', '#, fuzzy\nmsgid "a b c"\nmsgstr "a b c"')
    assert output.read_text() == expected
    again = run_here("translate", echo, "--input", output, "--output", output, status=2)
    assert_one_line(again.stderr, "is the input too")
    again = run_here("translate", echo, "--input", output, status=2)
    assert_one_line(again.stderr, "give --output")


def test_what_stays_in_a_document_is_named_and_other_formats_are_refused(
    echo, tmp_path, monkeypatch
):
    page = "<p>a b\n<p>b <i>c</i> a\n<p>c <code>b. a</code> b"
    (tmp_path / "a.html").write_text(page)
    options = "--output", tmp_path / "out", "--overwrite"
    run_here("translate", echo, "--input", tmp_path / "a.html", *options)
    assert (tmp_path / "out").read_text() == page

    def lose_tags(self, texts, **options):
        return ([Translation(re.sub("<.*?>", "", text), 0, 0, 1, False, False)] for text in texts)

    monkeypatch.setattr(tt.Translator, "stream", lose_tags)
    done = run_here("translate", echo, "--input", tmp_path / "a.html", *options)
    assert "1 of 3 units translated" in done.stderr
    assert (
        "2 unit(s) of the input stay, as their translation is blank or lacks a tag: line 2, 3."
        in done.stderr
    )
    (tmp_path / "a.json").write_text('{"a": "b"}')
    done = run_here("translate", echo, "--input", tmp_path / "a.json", *options, status=2)
    assert_one_line(done.stderr, "[.]json is not read; convert it")


def test_flags_are_json_lines(echo, tmp_path):
    (tmp_path / "a.txt").write_text("a b\n\na b c a b c a b c a b c\n")
    done = run_here("translate", echo, "--input", tmp_path / "a.txt", "--flags")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["translation"] for line in lines] == ["a b", "", "a b c a b c a b c a b c"]
    assert [line["line"] for line in lines] == [0, 1, 2]
    assert "copied" in lines[2]["flags"] and lines[0]["flags"] == []


def test_terms_need_a_model_with_marks(echo, tmp_path):
    (tmp_path / "terms.tsv").write_text("a\tb\n")
    done = run_here("translate", echo, "--terms", tmp_path / "terms.tsv", status=2)
    assert_one_line(done.stderr, "has no marks")


@pytest.fixture
def own_echo(letter_tokenizer, tmp_path):
    """The SavedModel of an echo whose pieces are of a kind of their own."""
    model = EchoModel(letter_tokenizer.vocab_size)
    translator = translator_of(model, letter_tokenizer, mark_pattern="B")
    tt.export_saved_model(translator, tmp_path / "own")
    return tmp_path / "own"


def test_the_suite_counts_the_pieces_of_the_model(own_echo, tmp_path):
    (tmp_path / "a.txt").write_text("a {x}\nA B B\n")
    files = "--source", tmp_path / "a.txt", "--reference", tmp_path / "a.txt"
    done = run_here("evaluate", own_echo, *files, "--suite")
    suite = json.loads(done.stdout.splitlines()[-1])["suite"]
    assert suite["pieces kept"]["of"] == 2 and suite["sources with pieces"]["sources"] == 1


def test_the_suite_reports_what_a_team_reads(echo, tmp_path):
    (tmp_path / "a.txt").write_text("a b\na {x} b\n<b>a</b>\nA B C\n")
    files = "--source", tmp_path / "a.txt", "--reference", tmp_path / "a.txt"
    done = run_here("evaluate", echo, *files, "--suite")
    suite = json.loads(done.stdout.splitlines()[-1])["suite"]
    assert suite["sources with pieces"]["sources"] == 2
    assert suite["pieces kept"]["of"] == 3
    assert suite["sources whose tags are nested"]["of"] == 1
    assert "sources of one or two words" in done.stdout


TMX = (
    "<tmx><header srclang='en'/><body>{}</body></tmx>",
    "<tu><tuv xml:lang='en'><seg>{}</seg></tuv><tuv xml:lang='de'><seg>{}</seg></tuv></tu>",
)


@pytest.mark.parametrize("command", ["evaluate {echo} --file {path}", "filter --file {path}"])
def test_a_file_without_pairs_is_one_line(echo, tmp_path, command):
    path = tmp_path / "a.po"
    path.write_text('msgid "a"\nmsgstr ""\n')
    done = run_here(*command.format(echo=echo, path=path).split(), status=2)
    assert_one_line(done.stderr, "a.po: (?:no pair is left|has no pairs)")


def test_pairs_of_a_tmx_file_are_filtered_evaluated_and_trained(echo, tmp_path):
    units = [("a b", "a b c"), ("a b", "a b c"), ("c", "c d")]
    text = TMX[0].format("".join(TMX[1].format(*unit) for unit in units))
    (tmp_path / "a.tmx").write_text(text)
    outputs = "--output-source", tmp_path / "s", "--output-target", tmp_path / "t"
    done = run_here("filter", "--file", tmp_path / "a.tmx", *outputs)
    assert "Kept 2 pairs" in done.stdout
    assert (tmp_path / "s").read_text() == "a b\nc\n"
    done = run_here("evaluate", echo, "--file", tmp_path / "a.tmx")
    assert json.loads(done.stdout.splitlines()[-1])["sentences"] == 3
    files = [f"--{part}-file={tmp_path / 'a.tmx'}" for part in ("train", "validation")]
    corpus = load_corpus(config_of(*files).data)
    assert list(corpus.train) == list(corpus.validation) == units
    done = run_here("filter", "--file", "a.tmx", "--source", "b", status=2)
    assert_one_line(done.stderr, "give --source and --target, or")

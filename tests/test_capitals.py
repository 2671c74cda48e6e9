"""A sentence mostly in capitals is read as if it were in small letters, where that is wanted."""

import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import small_runs
import tensorflow as tf
from letters import random_model

import tf_transformer as tt
from tf_transformer import cli
from tf_transformer.inference.tokens import fold_capitals

README = pathlib.Path(__file__).parents[1] / "saved_models" / "README.md"


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("EIN MANN LÄUFT.", "ein mann läuft."),
        ("DER EU-GIPFEL\tIN ROM", "der eu-gipfel\tin rom"),
        ("ΑΘΗΝΑ ΕΛΛΑΔΑ", "αθηνα ελλαδα"),
        ("ЭТО МОСКВА!", "это москва!"),
        ("ZWEI\nZEILEN", "zwei\nzeilen"),
        ("EIN\u00a0MANN", "ein\u00a0mann"),
        ("A DOG", "a dog"),
        ("DER WEG IST 5 km LANG", "der weg ist 5 km lang"),
        ("HE RAN 5 km", "he ran 5 km"),
        ("ОН ЖДЁТ 5\u00a0мин", "он ждёт 5\u00a0мин"),
        ("THE 2nd ROW", "the 2nd row"),
        ("AT McDONALD'S", "at mcdonald's"),
        ("DIE GROßE STRAßE", "die große straße"),
        ("EIN MANN und EIN HUND", "ein mann und ein hund"),
        ("J. F. KENNEDY", "j. f. kennedy"),
        ("<BT> EIN  MANN LÄUFT de_DE", "<BT> ein  mann läuft de_DE"),
        ("NATO", "NATO"),
        ("5 EURO", "5 EURO"),
        ("A B C D E", "A B C D E"),
        ("I", "I"),
        ("I AM", "I AM"),
        ("US-TV", "US-TV"),
        ("Die ARD", "Die ARD"),
        ("I love NATO", "I love NATO"),
        ("NATO und EU", "NATO und EU"),
        ("BMW, VW und ADAC", "BMW, VW und ADAC"),
        ("IBM 和 NASA 是什么", "IBM 和 NASA 是什么"),
        ("The EU and NATO", "The EU and NATO"),
        ("東京 大阪", "東京 大阪"),
        ("12 34", "12 34"),
        ("", ""),
        ("🙂 🙂", "🙂 🙂"),
    ],
)
def test_texts_mostly_in_capitals_are_folded(text, folded):
    assert fold_capitals(tf.constant([text])).numpy()[0].decode() == folded
    # So does the example of those who translate without the graph.
    example = re.search(r"(?s)def fold\(.*?\n\n\n", README.read_text("utf-8"))[0]
    exec(example, names := {"re": re})
    assert names["fold"](text) == folded


@pytest.fixture(scope="module")
def translators(echo_model):
    """Translate each text into itself, without and with folding."""
    tokenizer = tt.SentencePieceTokenizer.train(["Ein Hund. EIN HUND. ein hund."], 280)
    make = tt.Translator.from_model
    return [
        make(echo_model(280), tokenizer, tokenizer, tt.Search(fold_capitals=fold))
        for fold in (False, True)
    ]


@pytest.mark.parametrize("translate", [tt.Translator.__call__, tt.Translator.document])
def test_each_text_of_a_batch_is_folded_on_its_own(translators, translate):
    texts = ["EIN HUND.", "Ein HUND."]
    plain, folding = translators
    assert translate(plain, texts) == texts
    assert translate(folding, texts) == ["ein hund.", "Ein HUND."]


def test_score_and_align_read_a_source_as_a_search_does(randomise, letter_tokenizer):
    make = functools.partial(
        tt.Translator.from_model, random_model(randomise), letter_tokenizer, letter_tokenizer
    )
    plain, folding = make(), make(tt.Search(fold_capitals=True))
    for source, read in (("AB CD", "ab cd"), ("Ab cd", "Ab cd")):
        assert folding.score([source], ["AB CD"]) == plain.score([read], ["AB CD"])
        found, expected = folding.align([source], ["AB CD"]), plain.align([read], ["AB CD"])
        assert found[0][:2] == expected[0][:2]


@pytest.mark.parametrize("variable", ["LC_ALL=tr_TR.UTF-8", "LANG=lt_LT"])
def test_the_locale_of_a_process_changes_nothing(translators, tmp_path, variable):
    # ICU takes the locale from these names, whether or not the system has such a locale.
    words = "EIN", "KIRMIZI", "İSTANBUL", "ÌÍĨ", "J\u0300\u012e\u0301I\u0307", "ΣΟΦΟΣ", "ÄÖ"
    path = tt.export_saved_model(translators[1], tmp_path / "folding")
    script = (
        "import sys, json, tensorflow as tf, tensorflow_text\n"
        "found = tf.saved_model.load(sys.argv[1]).translate(tf.constant([sys.argv[2]]))\n"
        "print(json.dumps(found['translation'].numpy()[0].decode()))"
    )
    name, value = variable.split("=")
    others = {k: v for k, v in os.environ.items() if k not in ("LC_ALL", "LC_MESSAGES", "LANG")}
    done = subprocess.run(
        [sys.executable, "-c", script, str(path), " ".join(words)],
        env={**others, "PYTHONUTF8": "1", name: value},
        capture_output=True, encoding="utf-8", timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == " ".join(words).lower()


@pytest.fixture(scope="module")
def run_with_capitals(tmp_path_factory):
    """A run of the copy task, and files of its words in capitals and in small letters."""
    folder = tmp_path_factory.mktemp("capitals")
    small_runs.train(folder / "run", *small_runs.SETTINGS, "--steps=2", "--validation-steps=1")
    (folder / "capitals").write_text("AB CD EF\nGH IJ AC\n", encoding="utf-8")
    (folder / "small").write_text("ab cd ef\ngh ij ac\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize(("form", "fold"), [("run", False), ("saved", True)])
def test_a_run_says_whether_its_translators_fold(run_with_capitals, tmp_path, form, fold, capfd):
    folder = run_with_capitals
    run = shutil.copytree(folder / "run", tmp_path / "run")
    config = (run / "config.toml").read_text("utf-8")
    assert "fold_capitals = true" in config
    if not fold:
        (run / "config.toml").write_text(config.replace("capitals = true", "capitals = false"))
    model = run
    if form == "saved":
        model = tmp_path / "saved"
        assert cli.main(["export", str(run), str(model), "--beam-size=1"]) == 0
    capfd.readouterr()
    translations = []
    for name in ("capitals", "small"):
        assert cli.main(["translate", str(model), "--input", str(folder / name)]) == 0
        translations.append(capfd.readouterr().out)
    assert (translations[0] == translations[1]) == fold

"""A sentence mostly in capitals is read as if it were in small letters, where that is wanted."""

import json
import os
import pathlib
import re

import pytest
import tensorflow as tf
from commands import run_python
from letters import EchoModel, random_model, translator_of

import tf_transformer as tt
from tf_transformer.inference.capitals import fold_capitals
from tf_transformer.run_tables import DataConfig
from tf_transformer.runs.restore import search_of

README = pathlib.Path(__file__).parents[1] / "saved_models" / "README.md"
FOLDED = {
    "EIN MANN LÄUFT.": "ein mann läuft.",
    "DER EU-GIPFEL\tIN ROM": "der eu-gipfel\tin rom",
    "ΑΘΗΝΑ ΕΛΛΑΔΑ": "αθηνα ελλαδα",
    "ЭТО МОСКВА!": "это москва!",
    "ZWEI\nZEILEN": "zwei\nzeilen",
    "EIN\u00a0MANN": "ein\u00a0mann",
    "A DOG": "a dog",
    "HE RAN 5 km": "he ran 5 km",
    "ОН ЖДЁТ 5\u00a0мин": "он ждёт 5\u00a0мин",
    "THE 2nd ROW": "the 2nd row",
    "AT McDONALD'S": "at mcdonald's",
    "DIE GROßE STRAßE": "die große straße",
    "EIN MANN und EIN HUND": "ein mann und ein hund",
    "J. F. KENNEDY": "j. f. kennedy",
    "<BT> EIN  MANN LÄUFT de_DE": "<BT> ein  mann läuft de_DE",
    "DATEI %1$S UND $(ARG1) LÖSCHEN": "datei %1$S und $(ARG1) löschen",
    "%PRODUCTNAME WIRD JETZT NEU GESTARTET": "%PRODUCTNAME wird jetzt neu gestartet",
    "PRINTF(FMT) IN C# ODER ZIMMER B12 (ALT)": "PRINTF(FMT) in C# oder zimmer B12 (alt)",
    "SAYFA SONUNDAKİ KAYDI SİL": "sayfa sonundaki kaydı sil",
    "ILIK SULAR VE ISIK YERLER ılı": "ılık sular ve ısık yerler ılı",
}
KEPT = [
    "NATO", "5 EURO", "A B C D E", "I AM", "US-TV", "Die ARD", "I love NATO", "NATO und EU",
    "BMW, VW und ADAC", "IBM 和 NASA 是什么", "The EU and NATO", "東京 大阪",
    "%PRODUCTNAME %PRODUCTVERSION", "$(CAPACITY) KiB", "COPY(SRC) MOVE(DST)", "#ID #NAME 7 Tage",
    "12 34", "", "🙂 🙂",
]  # fmt: skip


def test_texts_mostly_in_capitals_are_folded():
    texts = [*FOLDED, *KEPT]
    expected = [*FOLDED.values(), *KEPT]
    assert [text.decode() for text in fold_capitals(tf.constant(texts)).numpy()] == expected
    # So does the example of those who translate without the graph.
    example = re.search(r"(?s)def fold\(.*?\n\n\n", README.read_text("utf-8"))[0]
    exec(example, names := {"re": re})
    assert [names["fold"](text) for text in texts] == expected


def test_small_letters_of_languages_with_a_dotless_i():
    """In a text that shows neither ı nor İ, the setting decides."""
    decomposed = fold_capitals(tf.constant(["KAYDI SI\u0307L"])).numpy()[0].decode()
    assert decomposed == "kaydı sil"
    [german] = fold_capitals(tf.constant(["DIE REISE NACH İSTANBUL"]), False).numpy()
    assert german.decode() == "die reise nach istanbul"
    texts = ["TAMAM HAYIR", "Die ARD", "SIFIR KIRMIZI"]
    folded = [text.decode() for text in fold_capitals(tf.constant(texts), True).numpy()]
    assert folded == ["tamam hayır", "Die ARD", "sıfır kırmızı"]
    data = DataConfig(corpus="phrasebook", fold_capitals=True, dotless_i=True)
    assert search_of(data).dotless_i


@pytest.fixture(scope="module")
def translators():
    """Translate each text into itself, without and with folding."""
    tokenizer = tt.SentencePieceTokenizer.train(["Ein Hund. EIN HUND. ein hund."], 280)
    return [
        translator_of(EchoModel(280), tokenizer, max_length=128, fold_capitals=fold)
        for fold in (False, True)
    ]


@pytest.mark.parametrize("translate", [tt.Translator.__call__, tt.Translator.document])
def test_each_text_of_a_batch_is_folded_on_its_own(translators, translate):
    texts = ["EIN HUND.", "Ein HUND."]
    plain, folding = translators
    assert translate(plain, texts) == texts
    assert translate(folding, texts) == ["ein hund.", "Ein HUND."]


def test_align_reads_a_source_as_a_search_does(randomise, letter_tokenizer):
    arguments = random_model(randomise), letter_tokenizer
    plain, folding = (translator_of(*arguments, fold_capitals=fold) for fold in (False, True))
    for source, read in (("AB CD", "ab cd"), ("Ab cd", "Ab cd")):
        found, expected = folding.align([source], ["AB CD"]), plain.align([read], ["AB CD"])
        assert found[0][:2] == expected[0][:2]


@pytest.mark.slow
def test_the_locale_of_a_process_changes_nothing(translators, tmp_path):
    # ICU takes the locale from these names, whether or not the system has such a locale.
    words = "EIN", "KIRMIZI", "İSTANBUL", "ÌÍĨ", "J\u0300\u012e\u0301I\u0307", "ΣΟΦΟΣ", "ÄÖ"
    path = tt.export_saved_model(translators[1], tmp_path / "folding")
    script = (
        "import sys, json, tensorflow as tf, tensorflow_text\n"
        "found = tf.saved_model.load(sys.argv[1]).translate(tf.constant([sys.argv[2]]))\n"
        "print(json.dumps(found['translation'].numpy()[0].decode()))"
    )
    others = {k: v for k, v in os.environ.items() if k not in ("LC_ALL", "LC_MESSAGES", "LANG")}
    for locale in ({"LC_ALL": "tr_TR.UTF-8"}, {"LANG": "lt_LT"}):
        env = {**others, "PYTHONUTF8": "1", **locale}
        found = run_python("-c", script, path, " ".join(words), env=env, encoding="utf-8")
        # As Turkish, because of the İ.
        assert json.loads(found) == "eın kırmızı istanbul ìíĩ j\u0300\u012f\u0301i σοφος äö"

"""A sentence all in capitals is read as if it were in small letters, where that is wanted."""

import shutil

import pytest
import small_runs
import tensorflow as tf

import tf_transformer as tt
from tf_transformer import cli
from tf_transformer.inference.tokens import fold_capitals


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("EIN MANN LÄUFT.", "ein mann läuft."),
        ("DER EU-GIPFEL\tIN ROM", "der eu-gipfel\tin rom"),
        ("ΑΘΗΝΑ ΕΛΛΑΔΑ", "αθηνα ελλαδα"),
        ("ЭТО МОСКВА!", "это москва!"),
        ("ZWEI\nZEILEN", "zwei\nzeilen"),
        ("EIN\u00a0MANN", "ein\u00a0mann"),
        ("NATO", "NATO"),
        ("A B C", "A B C"),
        ("I", "I"),
        ("The EU and NATO", "The EU and NATO"),
        ("東京 大阪", "東京 大阪"),
        ("12 34", "12 34"),
        ("", ""),
        ("🙂 🙂", "🙂 🙂"),
    ],
)
def test_only_texts_all_in_capitals_are_folded(text, folded):
    assert fold_capitals(tf.constant([text])).numpy()[0].decode() == folded


@pytest.fixture(scope="module")
def translators(echo_model):
    """Translate each text into itself, without and with folding."""
    tokenizer = tt.SentencePieceTokenizer.train(["Ein Hund. EIN HUND. ein hund."], 280)
    make = tt.Translator.from_model
    return [
        make(echo_model(280), tokenizer, tokenizer, fold_capitals=fold) for fold in (False, True)
    ]


@pytest.mark.parametrize("translate", [tt.Translator.__call__, tt.Translator.document])
def test_each_text_of_a_batch_is_folded_on_its_own(translators, translate):
    texts = ["EIN HUND.", "Ein HUND."]
    plain, folding = translators
    assert translate(plain, texts) == texts
    assert translate(folding, texts) == ["ein hund.", "Ein HUND."]


def test_a_saved_model_folds_in_the_graph(translators, tmp_path):
    tt.export_saved_model(translators[1], tmp_path / "folding")
    loaded = tt.Translator.load(tmp_path / "folding")
    assert loaded(["EIN HUND."]) == ["ein hund."]
    (hypotheses,) = loaded.n_best(["EIN HUND."], 2, beam_size=2)
    assert hypotheses[0].text == "ein hund."


@pytest.fixture(scope="module")
def run_with_capitals(tmp_path_factory):
    """A run of the copy task, and files of its words in capitals and in small letters."""
    folder = tmp_path_factory.mktemp("capitals")
    small_runs.train(folder / "run", *small_runs.SETTINGS, "--steps=2", "--validation-steps=1")
    (folder / "capitals").write_text("AB CD EF\nGH IJ AC\n", encoding="utf-8")
    (folder / "small").write_text("ab cd ef\ngh ij ac\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize("form", ["run", "saved"])
@pytest.mark.parametrize("fold", [True, False])
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

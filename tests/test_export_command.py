"""`tf-transformer export`: a SavedModel with its manifest."""

import json
import shutil

import pytest
from commands import assert_one_line, lines_of, log_of

import tf_transformer as tt
from tf_transformer import cli
from tf_transformer.data.pieces import PIECES
from tf_transformer.export.manifest import read_manifest, verify_files
from tf_transformer.export.run_export import _languages
from tf_transformer.export.search_tuning import SearchChoice
from tf_transformer.run_config import read_toml
from tf_transformer.run_tables import DataConfig

SIDES = ("source", "target")


def test_export_writes_the_next_version_with_a_manifest(trained_run, exported_run):
    saved, done = exported_run
    assert done.stdout == f"{saved / '1'}\n"
    assert done.stderr == ""
    beside = {
        "models.config", "server_batching.pbtxt", "session_config.pbtxt", "monitoring.config",
        "compose.yaml",
    }  # fmt: skip
    assert {path.name for path in saved.iterdir()} == {"1", *beside}
    manifest = read_manifest(saved / "1")
    best = max(log_of(trained_run[0]), key=lambda line: (line["val_bleu"], line["step"]))
    assert manifest["metrics"]["val_bleu"] == best["val_bleu"]
    assert manifest["step"] == best["step"]
    assert manifest["languages"] == ["source", "target"], "which are no languages"
    assert manifest["config"] == read_toml(trained_run[0] / "config.toml")
    assert {"tensorflow", "keras", "tf_transformer"} <= set(manifest["versions"])
    assert set(manifest["data"]) == {
        "training corpus", "validation corpus", "source tokenizer", "target tokenizer",
    }  # fmt: skip
    assert set(manifest["signatures"]) == {"val_bleu", "val_chrf"} < set(manifest["metrics"])
    assert verify_files(saved / "1") == []


@pytest.mark.parametrize(
    ("data", "languages"),
    [
        ({"corpus": "phrasebook"}, ["de", "en"]),
        ({"train_source": ["a.en-de.de.gz"], "train_target": ["a/en.x/b.eng"]}, ["de", "eng"]),
        ({"train_source": ["a.de", "a.fr"], "train_target": ["en", "b.en"]}, ["de", ""]),
        ({"train_tsv": ["pairs.de"]}, []),
        ({"corpus": "copy"}, []),
    ],
)
def test_the_languages_are_known_from_the_names_of_files(data, languages):
    assert _languages(DataConfig(**data)) == languages


@pytest.fixture
def export(tmp_path, monkeypatch):
    """Exports with options; returns the settings and the manifest that would be saved."""
    saved = []

    def look(module, path, version, manifest, overwrite):
        saved.append({name: value.numpy() for name, value in module.settings.items()})
        saved.append(json.loads(json.dumps(manifest)))
        export.dtypes = {weight.dtype.name for weight in module.searches.model.weights}
        return "saved"

    monkeypatch.setattr("tf_transformer.export.run_export.export_saved_model", look)

    def export(run_dir, *options):
        assert cli.main(["export", str(run_dir), str(tmp_path / "saved"), *options]) == 0
        return saved

    export.saved = saved
    return export


@pytest.mark.parametrize(
    ("options", "beam_size", "chosen"),
    [((), 4, "by default, without validation text"), (("--beam-size=1",), 1, "given")],
)
def test_without_validation_text_the_default_is_exported(
    trained_run, tmp_path, export, capfd, options, beam_size, chosen
):
    run_dir = shutil.copytree(trained_run[0], tmp_path / "run")
    config = (run_dir / "config.toml").read_text(encoding="utf-8")
    (run_dir / "config.toml").write_text(config.replace("validation.source", "gone.source"))
    settings, manifest = export(run_dir, *options)
    assert_one_line(capfd.readouterr().err, "no validation text chooses the search", "gone.source")
    assert settings["beam_size"] == beam_size
    search = manifest["search"]
    assert (search["beam_size"], search["length_penalty"]) == (beam_size, 0.6)
    assert (search["chosen"], search["scores"], search["signature"]) == (chosen, [], None)


def test_the_function_exports_what_the_command_exports(trained_run, export, tmp_path):
    command = list(export(trained_run[0], "--length-penalty=1.2"))
    assert tt.export_run(trained_run[0], tmp_path / "saved", length_penalty=1.2) == "saved"
    assert export.saved == 2 * command and "length_penalty" in command[1]["search"]


def test_an_export_computes_in_the_given_precision(trained_run, export):
    _, manifest = export(trained_run[0], "--precision=bfloat16", "--beam-size=1")
    assert manifest["precision"] == "bfloat16" and "bfloat16" in export.dtypes


@pytest.mark.parametrize(
    ("options", "beam_size", "length_penalty", "searched"),
    [
        ((), 1, 1.4, [4]),
        (("--beam-size=1",), 1, 0.6, []),
        (("--beam-size=3",), 3, 1.4, [3]),
        (("--length-penalty=0",), 4, 0.0, []),
    ],
)
def test_the_options_of_an_export_are_kept_and_the_rest_is_chosen(
    trained_run, copy_files, export, monkeypatch, options, beam_size, length_penalty, searched
):
    beam_sizes = []

    def choose_greedy(translator, validation, beam_size, metric):
        beam_sizes.append(beam_size)
        sides = (lines_of(copy_files / f"validation.{side}") for side in SIDES)
        assert list(validation) == list(zip(*sides, strict=True)) and metric.label == "BLEU"
        search = translator.module.search
        assert (search.max_length, search.repair_loops) == (32, False)
        greedy = {"beam_size": 1, "length_penalty": None, "score": 9.0}
        scores = [greedy, {"beam_size": beam_size, "length_penalty": 1.4, "score": 8.0}]
        return SearchChoice(1, 1.4, scores, metric.label, len(validation), "signature")

    monkeypatch.setattr("tf_transformer.export.run_export.choose_search", choose_greedy)
    settings, manifest = export(trained_run[0], *options)
    assert beam_sizes == searched
    penalty = pytest.approx(length_penalty)
    assert settings == {
        "beam_size": beam_size, "length_penalty": penalty, "vocab_size": 280,
        "by_sentence": True, "mark_pattern": PIECES.encode(),
    }  # fmt: skip
    search = manifest["search"]
    assert (search["beam_size"], search["length_penalty"]) == (beam_size, length_penalty)
    assert bool(search["scores"]) == bool(searched)
    assert ("validation text" in search["chosen"]) == bool(searched)
    assert (search["chosen"] == "given") == ("--beam-size" in str(options) and not searched)

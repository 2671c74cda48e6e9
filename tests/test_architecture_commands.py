"""Every architecture through the commands: trained, resumed, exported, translated with."""

import pytest
from commands import assert_refused
from small_models import GENERATING, has_setting
from small_runs import same_checkpoints, settings, train

import tf_transformer as tt
from tf_transformer import cli
from tf_transformer.config import read_toml, settings_by_table
from tf_transformer.models.architectures import ARCHITECTURES, preset
from tf_transformer.runs.restore import restore_model, translator_of
from tf_transformer.runs.run_directory import RunDirectory
from tf_transformer.settings import flag

OTHERS = [name for name in ARCHITECTURES if name != "transformer"]
EVERY_ARCHITECTURE = pytest.mark.parametrize("architecture", ARCHITECTURES)


def model_settings(architecture):
    return [field.name for field in settings_by_table(architecture)["model"]]


@pytest.mark.slow
@EVERY_ARCHITECTURE
def test_a_run_that_was_interrupted_is_the_run_that_was_not(
    architecture, tmp_path, deterministic, use_small_copy_task, capsys
):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    options = [*settings(architecture), "--warmup-steps=10", "--validation-steps=2", deterministic]
    train(whole, *options, "--dropout-rate=0.2", "--steps=4")
    train(resumed, *options, "--dropout-rate=0.2", "--steps=3")
    train(resumed, "--resume", "--steps=4")
    assert same_checkpoints(whole, resumed)

    table = read_toml(whole / "config.toml")["model"]
    assert table["architecture"] == architecture
    assert set(table) <= set(model_settings(architecture))

    if architecture not in GENERATING:
        return
    assert cli.main(["export", str(whole), str(tmp_path / "saved"), "--beam-size=1"]) == 0
    texts = ["a b c", "", "j i h g f e d c"]
    run = RunDirectory.open(whole)
    model, *tokenizers, _ = restore_model(run)
    translate = translator_of(run.config().data, model, *tokenizers)
    assert tt.Translator.load(tmp_path / "saved")(texts) == translate(texts)


@EVERY_ARCHITECTURE
def test_help_shows_the_settings_of_the_architecture_only(architecture, capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "--help", f"--architecture={architecture}"])
    shown = capsys.readouterr().out
    every = {name for other in ARCHITECTURES for name in model_settings(other)}
    for name in every:
        known = name in model_settings(architecture)
        assert (f"{flag(name)} " in shown or f"{flag(name)}," in shown) is known, name
    assert f"--preset {{{','.join(ARCHITECTURES[architecture].presets)}}}" in shown


@pytest.mark.parametrize("architecture", [n for n in OTHERS if not has_setting(n, "num_heads")])
def test_a_setting_of_another_architecture_is_an_error(architecture, tmp_path, capfd):
    train = ["train", f"--run-dir={tmp_path / 'run'}", "--corpus=copy"]
    words = [f"num.heads is no setting of the architecture {architecture}, but of transformer"]
    options = [f"--architecture={architecture}", "--num-heads=4"]
    assert_refused([*train, *options], words, capfd, tmp_path)
    assert_refused([*train, *reversed(options)], words, capfd, tmp_path)
    file = tmp_path / "run.toml"
    file.write_text(f'[model]\narchitecture = "{architecture}"\nnum_heads = 4\n', encoding="utf-8")
    assert_refused([*train, f"--config={file}"], [r"run\.toml: \[model\]", *words], capfd, tmp_path)
    file.write_text(f'[model]\narchitecture = "{architecture}"\n', encoding="utf-8")
    assert_refused([*train, f"--config={file}", options[1]], words, capfd, tmp_path)


def test_an_unknown_architecture_is_named_with_the_nearest(tmp_path, capfd):
    train = ["train", f"--run-dir={tmp_path / 'run'}", "--corpus=copy"]
    words = ["unknown architecture 'transfromer'", "transformer"]
    assert_refused([*train, "--architecture=transfromer"], words, capfd, tmp_path)


@EVERY_ARCHITECTURE
def test_tiny_models_are_of_like_sizes(architecture):
    from tf_transformer.models.architectures import build_model

    model = build_model(preset("tiny", 8000, 8000, architecture=architecture))
    assert 1.5e6 < model.count_params() < 4e6

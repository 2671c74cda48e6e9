"""An architecture of each kind is trained, resumed, exported and translated with."""

import pytest
from small_models import GENERATING
from small_runs import opened, same_checkpoints, settings, train

import tf_transformer as tt
from tf_transformer import cli
from tf_transformer.models.architectures import ARCHITECTURES, build_model, preset
from tf_transformer.run_config import read_toml


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["luong", "masked_lm"])
def test_a_run_that_was_interrupted_is_the_run_that_was_not(
    architecture, tmp_path, deterministic, use_small_copy_task
):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    options = [*settings(architecture), "--warmup-steps=10", "--validation-steps=4", deterministic]
    train(whole, *options, "--dropout-rate=0.2", "--steps=4")
    train(resumed, *options, "--dropout-rate=0.2", "--steps=3")
    train(resumed, "--resume", "--steps=4")
    assert same_checkpoints(whole, resumed)
    assert read_toml(whole / "config.toml")["model"]["architecture"] == architecture

    if architecture not in GENERATING:
        return
    assert cli.main(["export", str(whole), str(tmp_path / "saved"), "--beam-size=1"]) == 0
    texts = ["a b c", "", "j i h g f e d c"]
    assert tt.Translator.load(tmp_path / "saved")(texts) == opened(whole)[0](texts)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tiny_models_are_of_like_sizes(architecture):
    model = build_model(preset("tiny", 8000, 8000, architecture=architecture))
    assert 1.5e6 < model.count_params() < 4e6

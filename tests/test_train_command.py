"""`tf-transformer train`: the files of a run, its output, and resuming."""

import pytest
import small_runs
from commands import PERIOD, SMALL, STEPS, assert_refused, files, log_of, options_of

from tf_transformer.errors import ConfigError
from tf_transformer.runs.run_directory import RunDirectory

LENGTHS = [f"--steps={STEPS}", f"--validation-steps={PERIOD}"]


def test_a_run_has_configuration_tokenizers_checkpoints_and_log(trained_run):
    run_dir, done = trained_run
    left = {path.name for path in run_dir.iterdir()}
    assert left == {"config.toml", "tokenizers", "checkpoints", "log.jsonl", "text.json", ".lock"}
    tokenizers = {path.name for path in (run_dir / "tokenizers").iterdir()}
    assert tokenizers == {"source.model", "target.model"}
    checkpoints = {path.name for path in (run_dir / "checkpoints").iterdir()}
    assert checkpoints == {"step-00000004", "step-00000006"}
    assert [line["step"] for line in log_of(run_dir)] == [PERIOD, STEPS]
    assert {"loss", "val_loss", "val_bleu", "minutes"} <= set(log_of(run_dir)[0])
    assert done.stdout == ""
    for line in log_of(run_dir):
        assert f"{line['padding_fraction']:.1%} padding" in done.stderr
    for word in ("Training a tokenizer of 280 subwords", "300 training pairs", "Done at step 6"):
        assert word in done.stderr


def test_a_run_ends_with_the_next_commands(trained_run):
    run_dir, done = trained_run
    advice = done.stderr.splitlines()[-1]
    export, evaluate = advice.removeprefix("Next: tf-transformer ").split(", or tf-transformer ")
    assert export == f"export {run_dir} saved_models/NAME"
    assert evaluate == f"evaluate {run_dir} --source F --reference F"
    for given in (export, evaluate):
        assert options_of(*given.split())


def test_the_configuration_of_a_run_repeats_it(trained_run):
    run_dir, _ = trained_run
    options = options_of("train", f"--config={run_dir / 'config.toml'}", "--run-dir=again")
    assert options.run_config() == RunDirectory(run_dir).config()


@pytest.mark.parametrize("name", ["config.toml", "tokenizers", "test", "log.jsonl", "text.json"])
def test_what_is_of_no_run_is_not_replaced(copy_files, tmp_path, capfd, name):
    (tmp_path / "work" / name).mkdir(parents=True)
    arguments = ["train", f"--run-dir={tmp_path / 'work'}", *files(copy_files)]
    assert_refused(arguments, [f"{name}: would be replaced"], capfd, tmp_path)


def resumed_with(run_dir, *extra):
    """The configuration that a resumed run would have."""
    return options_of("train", f"--run-dir={run_dir}", "--resume", *extra).run_config()


def test_resume_begins_a_run_whose_text_is_given(copy_files, tmp_path, capfd):
    begin = ["train", f"--run-dir={tmp_path / 'new'}", "--resume"]
    assert_refused([*begin, "--steps=9"], ["new: is no folder", "Start one"], capfd, tmp_path)
    options = options_of(*begin, *files(copy_files), *SMALL)
    assert not options.is_resumed and options.run_config().model.d_model == 32


def test_resume_accepts_the_options_of_the_run(trained_run, copy_files, tmp_path):
    run_dir, _ = trained_run
    config = RunDirectory(run_dir).config()
    started_with = [*files(copy_files), *SMALL, *LENGTHS]
    assert resumed_with(run_dir) == config
    assert resumed_with(run_dir, *started_with) == config
    assert resumed_with(run_dir, *SMALL, "--preset=base") == config  # it names every size
    assert resumed_with(run_dir, f"--config={run_dir / 'config.toml'}") == config
    # The choices of a file's recipe are no settings that somebody gave, now as at the beginning.
    file = tmp_path / "run.toml"
    file.write_text("[model]\nd_ff = 65\n[chosen]\n'model.d_ff' = 'x'\n", encoding="utf-8")
    assert resumed_with(run_dir, f"--config={file}", f"--steps={STEPS}") == config
    file.write_text("[training]\nlabel_smoothing = 0.1\nminutes = 3\n", encoding="utf-8")
    assert resumed_with(run_dir, f"--config={file}").training.minutes == 3.0
    longer = resumed_with(run_dir, *started_with, "--steps=10", f"--config={file}")
    assert (longer.training.steps, longer.training.minutes) == (10, None)
    assert longer.data == config.data and longer.model == config.model
    file.write_text("[model]\nd_ff = 65\n[training]\nseed = 7\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="has --seed 0, not 7"):  # the command line has d_ff
        resumed_with(run_dir, f"--config={file}", "--d-ff=64")


@pytest.mark.slow
def test_a_run_is_prepared_here_for_the_gpus_of_another_machine(tmp_path, capfd):
    run_dir = tmp_path / "run"
    small_runs.train(run_dir, *small_runs.SETTINGS, "--steps=2", "--devices=8", "--prepare")
    run = RunDirectory.open(run_dir)
    config, files = run.config(), {path: path.stat() for path in run.ids_path.rglob("*/*")}
    assert (config.data.row_length, config.training.xla) == (256, True)
    assert config.training.precision == "mixed_bfloat16"
    assert "8 GPUs" in config.chosen["for"]
    assert len(files) == 3 and not run.checkpoints_path.exists()
    assert f"train --run-dir {run_dir} --resume" in capfd.readouterr().err
    small_runs.train(run_dir, "--resume", "--devices=cpu")
    assert [line["step"] for line in run.log()][-1] == 2
    assert {path: path.stat() for path in run.ids_path.rglob("*/*")} == files, "read, not made anew"
    assert run.config().data == config.data

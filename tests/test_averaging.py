"""`tf-transformer average`: a run directory with the mean of checkpoints."""

import json
import shutil

import numpy as np
import pytest

import tf_transformer as tt
from tf_transformer import cli
from tf_transformer.models.architectures import build_model, with_tokenizers
from tf_transformer.training.checkpoints import Checkpoints
from tf_transformer.training.restore import restore_model
from tf_transformer.training.run_directory import RunDirectory
from tf_transformer.training.train import compile_model

STEPS = (2, 5, 9, 12)


@pytest.fixture(scope="module")
def written(randomise, tmp_path_factory):
    """A run of four checkpoints with random weights, and these weights in order of steps."""
    run = RunDirectory(tmp_path_factory.mktemp("runs") / "run")
    config = tt.RunConfig.from_dict({
        "data": {"corpus": "copy"},
        "tokenizer": {"vocab_size": 272},
        "model": {"num_layers": 1, "d_model": 16, "num_heads": 2, "d_ff": 32},
        "training": {"steps": 12},
    })  # fmt: skip
    corpus = tt.copy_task(num_train=60, num_validation=4, num_test=4)
    tokenizer = tt.SentencePieceTokenizer.train(corpus.train.sources, 272)
    run.begin(config, tokenizer, tokenizer, corpus.test)
    model = build_model(with_tokenizers(config.model, tokenizer, tokenizer))
    compile_model(model, config.training)
    weights = []
    for step in STEPS:
        randomise(model, seed=step)
        weights.append([variable.numpy() for variable in model.trainable_variables])
        run_metadata = {**model.config.to_dict(), "optimizer": "Adam"}
        Checkpoints(run.checkpoints_path).write(
            model, step, {"val_bleu": 50 - step}, is_best=step == 2, run_metadata=run_metadata
        )
    return run.path, weights


@pytest.fixture
def run_dir(written, tmp_path):
    return shutil.copytree(written[0], tmp_path / "run")


def weights_in(path):
    model = restore_model(RunDirectory(path)).model
    return [variable.numpy() for variable in model.trainable_variables]


def average(*arguments):
    return cli.main(["average", *map(str, arguments)])


@pytest.mark.parametrize(("options", "averaged"), [((), 4), (("--last=3",), 3), (("--last=4",), 4)])
def test_the_weights_are_the_mean_of_the_last_checkpoints(
    written, tmp_path, capfd, options, averaged
):
    out = tmp_path / "new" / "average"
    assert average(written[0], out, *options) == 0
    expected = [
        np.mean(w, axis=0, dtype="float64") for w in zip(*written[1][-averaged:], strict=True)
    ]
    for mean, weight in zip(expected, weights_in(out), strict=True):
        np.testing.assert_array_equal(weight, mean.astype("float32"))
    printed = capfd.readouterr()
    assert printed.err == ""
    first, second = printed.out.splitlines()
    assert first == f"{out}: the average of steps {', '.join(map(str, STEPS[-averaged:]))}."
    assert second == f"Next: tf-transformer export {out} saved_models/NAME"


def test_an_average_is_a_run_directory_and_the_run_is_unchanged(written, tmp_path):
    run_dir, out = written[0], tmp_path / "average"
    before = {p: p.stat().st_mtime_ns for p in run_dir.rglob("*")}
    assert average(run_dir, out) == 0
    assert {p: p.stat().st_mtime_ns for p in run_dir.rglob("*")} == before
    assert [path.name for path in tmp_path.iterdir()] == ["average"]
    for name in ("tokenizers/source.model", "tokenizers/target.model", "test/source.txt",
                 "test/target.txt", "config.toml"):  # fmt: skip
        assert (out / name).read_bytes() == (run_dir / name).read_bytes()
    (checkpoint,) = Checkpoints(out / "checkpoints").all()
    assert (checkpoint.step, checkpoint.metrics) == (12, {})
    assert checkpoint.run_metadata["optimizer"] == "none (the average of steps [2, 5, 9, 12])"


def test_an_average_is_exported_and_evaluated(written, tmp_path, capfd):
    out, saved = tmp_path / "average", tmp_path / "saved"
    assert average(written[0], out) == 0
    assert cli.main(["export", str(out), str(saved), "--beam-size=1"]) == 0
    capfd.readouterr()
    scores = []
    for model in (out, saved):
        test = [f"--source={out / 'test/source.txt'}", f"--reference={out / 'test/target.txt'}"]
        assert cli.main(["evaluate", str(model), *test]) == 0
        scores.append(json.loads(capfd.readouterr().out.splitlines()[-1]))
    assert scores[0]["chrf"] == scores[1]["chrf"]
    assert scores[0]["sentences"] == 4


def test_a_damaged_checkpoint_is_skipped_with_a_warning(written, run_dir, tmp_path, capfd):
    damaged = run_dir / "checkpoints" / "step-00000009"
    content = (damaged / "model.weights.h5").read_bytes()
    (damaged / "model.weights.h5").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    out = tmp_path / "average"
    assert average(run_dir, out, "--last=3") == 0
    printed = capfd.readouterr()
    assert printed.err == f"tf-transformer: {damaged}: is damaged, and skipped.\n"
    assert "the average of steps 2, 5, 12." in printed.out
    kept = [written[1][index] for index in (0, 1, 3)]
    for weights, weight in zip(zip(*kept, strict=True), weights_in(out), strict=True):
        np.testing.assert_array_equal(weight, np.mean(weights, 0, "float64").astype("float32"))


def refusal(capfd, *arguments):
    assert average(*arguments) == 2
    (line,) = capfd.readouterr().err.splitlines()
    return line


def test_too_few_checkpoints_are_refused(run_dir, tmp_path, capfd):
    out = tmp_path / "average"
    assert "has 4 undamaged checkpoints, and 5 are" in refusal(capfd, run_dir, out, "--last=5")
    assert "--last must be 2 or more" in refusal(capfd, run_dir, out, "--last=1")
    for step in STEPS[1:]:
        shutil.rmtree(run_dir / "checkpoints" / f"step-{step:08d}")
    assert "has 1 undamaged checkpoints, and at least 2 are" in refusal(capfd, run_dir, out)
    assert not out.exists()


def test_a_directory_that_exists_is_not_written_to(run_dir, tmp_path, capfd):
    (tmp_path / "average").mkdir()
    assert "exists already" in refusal(capfd, run_dir, tmp_path / "average")
    assert not any((tmp_path / "average").iterdir())
    assert "holds no run" in refusal(capfd, tmp_path / "nothing", tmp_path / "other")


def test_a_checkpoint_of_another_model_is_refused(run_dir, tmp_path, capfd):
    path = run_dir / "config.toml"
    path.write_text(path.read_text("utf-8").replace("d_ff = 32", "d_ff = 48"), encoding="utf-8")
    assert "d_ff was 32 and is 48" in refusal(capfd, run_dir, tmp_path / "average")


def test_training_cannot_resume_from_an_average(run_dir, tmp_path, capfd):
    out = tmp_path / "average"
    assert average(run_dir, out) == 0
    capfd.readouterr()
    assert cli.main(["train", f"--run-dir={out}", "--resume", "--steps=20"]) == 2
    assert (
        "optimizer was none (the average of steps [2, 5, 9, 12]) and is Adam"
        in (capfd.readouterr().err.splitlines()[-1])
    )

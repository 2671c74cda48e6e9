"""At the end of training, the average of the last checkpoints takes part as a candidate."""

import dataclasses
import os
import shutil
import time
import types

import numpy as np
import pytest

import tf_transformer as tt
from tf_transformer.evaluation import BLEU as METRIC
from tf_transformer.evaluation import signatures
from tf_transformer.models.architectures import build_model, with_tokenizers
from tf_transformer.runs import averaging
from tf_transformer.runs.checkpoints import Checkpoints
from tf_transformer.runs.compilation import compile_model
from tf_transformer.runs.restore import best_checkpoint, restore_model
from tf_transformer.runs.run_directory import RunDirectory

# Step and validation BLEU of each checkpoint; None for one between validations.
BLEU = {2: 40.0, 5: 60.0, 7: None, 9: 50.0, 12: 45.0}
VALIDATED = [step for step, bleu in BLEU.items() if bleu is not None]
VALIDATION = tt.copy_task(num_train=60, num_validation=40, num_test=4).validation


@pytest.fixture(scope="module")
def written(randomise, tmp_path_factory):
    """A run of checkpoints with random weights, its tokenizer, and the weights by step."""
    run = RunDirectory(tmp_path_factory.mktemp("runs") / "run")
    config = tt.RunConfig.from_dict({
        "data": {"corpus": "copy"},
        "tokenizer": {"vocab_size": 272},
        "model": {
            "num_layers": 1, "d_model": 16, "num_heads": 2, "d_ff": 32, "dropout_rate": 0.1,
            "attention_dropout_rate": 0.0,
        },
        "training": {"steps": 12},
    })  # fmt: skip
    tokenizer = tt.SentencePieceTokenizer.train(VALIDATION.sources, 272)
    run.begin(config, tokenizer, tokenizer)
    model = build_model(with_tokenizers(config.model, tokenizer, tokenizer))
    compile_model(model, config.training, tt.NoamSchedule(16))
    weights = {}
    for step, bleu in BLEU.items():
        randomise(model, seed=step)
        weights[step] = [variable.numpy() for variable in model.trainable_variables]
        metrics = {} if bleu is None else {"val_bleu": bleu}
        Checkpoints(run.checkpoints_path).write(
            model, step, metrics, run_metadata=model.config.to_dict()
        )
    return run.path, tokenizer, weights


@pytest.fixture
def run(written, tmp_path):
    """What averaging reads of a `Run` that has ended."""
    directory = RunDirectory(shutil.copytree(written[0], tmp_path / "run"))
    write_log(directory, VALIDATED)
    _, tokenizer, _ = written
    config = directory.config()
    sizes = with_tokenizers(config.model, tokenizer, tokenizer)
    data = {"tokenizers": (tokenizer,) * 2, "corpus": types.SimpleNamespace(validation=VALIDATION)}
    return types.SimpleNamespace(
        directory=directory,
        config=dataclasses.replace(config, model=sizes),
        checkpoints=Checkpoints(directory.checkpoints_path),
        data=types.SimpleNamespace(**data),
        metric=METRIC,
        signatures=signatures(VALIDATION.targets, "val_"),
    )


def write_log(directory, steps):
    directory.log_path.write_text("".join(f'{{"step": {step}}}\n' for step in steps))


def mean(weights, steps):
    columns = zip(*(weights[step] for step in steps), strict=True)
    return [np.mean(column, axis=0, dtype="float64").astype("float32") for column in columns]


@pytest.fixture
def end_of_training(written, run, monkeypatch):
    """Ends training, where an average of so many checkpoints translates so many sentences right."""

    def end(right, tried=(2, 3, 4), **deadline):
        seen, said = [], []

        def from_model(model, *_, **__):
            def translate(texts):
                weights = model.trainable_variables[0].numpy()
                for count in range(2, len(VALIDATED) + 1):
                    if np.allclose(weights, mean(written[2], VALIDATED[-count:])[0]):
                        seen.append(count)
                number = right[seen[-1]]
                return [*VALIDATION.targets[:number], *["x"] * (len(texts) - number)]

            return translate

        monkeypatch.setattr(tt.Translator, "from_model", from_model)
        monkeypatch.setattr(averaging, "say", said.append)
        averaging.write_best_average(run, **deadline)
        assert seen == list(tried), "unvalidated checkpoints are not"
        assert said.pop(0).startswith("Trying averages of the last checkpoints")
        return said

    return end


def test_the_best_average_is_kept_and_is_what_is_exported(written, run, end_of_training):
    folder = run.directory.checkpoints_path
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    (said,) = end_of_training({2: 30, 3: 38, 4: 20})
    assert said.startswith("The average of the last 3 checkpoints is the best (2: ")
    trained = restore_model(run.directory)
    assert trained.checkpoint.path.parent == run.directory.average_path
    assert trained.checkpoint.metrics["val_bleu"] > 60
    assert trained.checkpoint.step == 12
    # `export` writes both scores with their signatures into the manifest.
    assert set(trained.checkpoint.metrics) == set(trained.checkpoint.signatures)
    averaged = mean(written[2], VALIDATED[-3:])
    for variable, value in zip(trained.model.trainable_variables, averaged, strict=True):
        np.testing.assert_allclose(variable.numpy(), value, rtol=1e-6)
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert before == after, "training continues from the checkpoints as they were"


def test_with_no_time_left_the_first_average_alone_is_tried(run, end_of_training):
    end_of_training({2: 40}, tried=[2], deadline=time.monotonic())
    assert best_checkpoint(run.directory).run_metadata["averaged steps"] == [9, 12]
    shutil.rmtree(run.directory.average_path)
    for step in VALIDATED[:-1]:
        shutil.rmtree(run.directory.checkpoints_path / f"step-{step:08d}")
    averaging.write_best_average(run)
    assert not run.directory.average_path.exists(), "one checkpoint has no average"


@pytest.mark.parametrize(
    ("pruned", "damaged", "tried"),
    [(4, None, [2, 3]), (8, None, [2]), (11, None, []), (None, 5, [2]), (15, None, [2, 3, 4])],
)
def test_only_neighbours_are_averaged(run, end_of_training, pruned, damaged, tried):
    """Pruning keeps the best checkpoint, which may be far older than the others."""
    write_log(run.directory, sorted({*VALIDATED, pruned or 2}))
    if damaged:
        os.truncate(run.directory.checkpoints_path / f"step-{damaged:08d}/model.weights.h5", 99)
    if tried:
        end_of_training({2: 36, 3: 30, 4: 30}, tried=tried)
        assert best_checkpoint(run.directory).run_metadata["averaged steps"] == [9, 12]
    else:
        averaging.write_best_average(run)
        assert not run.directory.average_path.exists()


def test_an_average_is_kept_only_if_it_is_better(run, end_of_training, capfd):
    (said,) = end_of_training({2: 3, 3: 5, 4: 2})
    assert said.startswith("Averages of the last checkpoints (2: ") and "no better" in said
    assert best_checkpoint(run.directory).step == 5
    end_of_training({2: 36, 3: 30, 4: 30})
    first = best_checkpoint(run.directory)
    (said,) = end_of_training({2: 30, 3: 35, 4: 30})
    assert "no better" in said and best_checkpoint(run.directory) == first
    end_of_training({2: 30, 3: 30, 4: 40})
    assert best_checkpoint(run.directory).metrics["val_bleu"] == 100
    assert len(list(run.directory.average_path.iterdir())) == 1
    # A damaged one is skipped with a warning.
    file = best_checkpoint(run.directory).path / "model.weights.h5"
    os.truncate(file, 99)
    assert best_checkpoint(run.directory).step == 5
    assert f"{file.parent}: is damaged, and skipped." in capfd.readouterr().err

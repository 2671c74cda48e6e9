"""Checkpoints survive kills, full disks and flipped bits, and keep the newest and the best."""

import os
import pathlib
import shutil
import types

import keras
import numpy as np
import pytest

from tf_transformer.evaluation import BLEU, CHRF, LOSS
from tf_transformer.files import remove_leftovers
from tf_transformer.runs.checkpoints import CheckpointError, Checkpoints


@pytest.fixture(scope="module")
def model():
    """A small model with weights, an optimizer and a seed."""
    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dropout(0.5, seed=1), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adam(), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path / "run" / "checkpoints", keep=3)


def set_weights(model, value):
    for variable in model.weights:
        if "seed" not in variable.path:
            variable.assign(np.full(variable.shape, value))


def has_weights(model, value):
    return all((variable.numpy() == value).all() for variable in model.weights[1:])


def steps_in(checkpoints):
    return [checkpoint.step for checkpoint in checkpoints.all()]


def names_in(checkpoints):
    return sorted(path.name for path in checkpoints.directory.iterdir())


def bleu(value):
    return {"val_bleu": float(value)}


def test_a_checkpoint_is_found_with_its_state(checkpoints, model):
    assert checkpoints.all() == list(checkpoints.intact(pytest.fail)) == []
    assert checkpoints.latest() is None
    assert not checkpoints.directory.exists(), "looking makes no folder"
    state = {
        "batches_seen": 24, "run_metadata": {"d_model": 8}, "signatures": {"val_bleu": "nrefs:1"},
        "seconds": 2.5,
    }  # fmt: skip
    checkpoints.write(model, 12, {"val_bleu": np.float32(12.5), "loss": 2}, **state)
    (found,) = checkpoints.all()
    assert found.step == 12 and found.metrics == {"val_bleu": 12.5, "loss": 2.0}
    assert {name: getattr(found, name) for name in state} == state
    assert found.seeds == [model.layers[0].variables[0].numpy().tolist()]
    checkpoints.add_metrics(bleu(2), seconds=3.0)
    assert (checkpoints.latest().metrics, checkpoints.latest().seconds) == (bleu(2), 3.0)


def test_the_best_is_that_of_the_metric_and_of_equals_the_newest(checkpoints, model):
    # Past 8 digits the names no longer sort as the numbers do.
    values = {1: (9, 1, 5), 99_999_999: (9, 2, 3), 100_000_000: (1, 7, 3)}
    for step, (first, second, loss) in values.items():
        set_weights(model, step % 7)
        checkpoints.write(model, step, {**bleu(first), "val_chrf": second, "val_loss": loss})
    best = {
        metric: next(Checkpoints(checkpoints.directory, metric).intact(pytest.fail, True)).step
        for metric in (BLEU, CHRF, LOSS)
    }
    assert best == {BLEU: 99_999_999, CHRF: 100_000_000, LOSS: 100_000_000}
    assert checkpoints.latest().step == 100_000_000
    for checkpoint in checkpoints.all():
        checkpoint.restore(model)
        assert has_weights(model, checkpoint.step % 7)


def test_the_best_and_the_newest_checkpoints_are_kept(checkpoints, model):
    for step in range(1, 21):
        checkpoints.write(model, step, bleu(-step) if step % 4 == 0 else {})
        assert step in steps_in(checkpoints)
        assert step < 4 or 4 in steps_in(checkpoints), "the best is never pruned"
    assert steps_in(checkpoints) == [4, 18, 19, 20]


def damage_weights(folder):
    """Flips a bit of the weights, which changes no file size."""
    path = folder / "model.weights.h5"
    weights = bytearray(path.read_bytes())
    weights[len(weights) // 2] ^= 1
    path.write_bytes(weights)


HARMS = {
    "flipped bit": damage_weights,
    "no weights": lambda folder: (folder / "model.weights.h5").unlink(),
    "no state": lambda folder: (folder / "state.json").unlink(),
    "torn state": lambda folder: os.truncate(folder / "state.json", 7),
    "no keys": lambda folder: (folder / "state.json").write_text("{}"),
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_another_checkpoint_is_used_where_the_first_is_damaged(checkpoints, model, harm):
    for step in (1, 2, 3):
        checkpoints.write(model, step, bleu(step))
    harm(checkpoints.directory / "step-00000003")
    for best_first in (False, True):
        warnings = []
        assert next(checkpoints.intact(warnings.append, best_first)).step == 2
        assert ["step-00000003: is damaged" in line for line in warnings] == [True]
    for step in (1, 2):
        harm(checkpoints.directory / f"step-{step:08d}")
    with pytest.raises(CheckpointError, match="none of its 3 checkpoints can be read"):
        next(checkpoints.intact(warnings.append))


def test_damaged_checkpoints_set_aside_are_no_longer_the_newest(checkpoints, model):
    for step in (1, 2, 3):
        checkpoints.write(model, step, {})
    for step in (2, 3):
        damage_weights(checkpoints.directory / f"step-0000000{step}")
    checkpoints.set_aside_after(next(checkpoints.intact(lambda line: None)))
    checkpoints.keep = 1
    checkpoints.write(model, 2, {})
    assert steps_in(checkpoints) == [2], "what was just written stays"
    assert "damaged-step-00000003" in names_in(checkpoints), "and nothing is lost"


@pytest.mark.parametrize("call", ["pathlib.Path.rename", "shutil.rmtree", "os.fsync"])
@pytest.mark.parametrize("step", [5, 6])
def test_a_kill_at_any_change_of_the_disk_loses_no_checkpoint(
    checkpoints, model, monkeypatch, call, step
):
    def die(*_, **__):
        raise KeyboardInterrupt

    checkpoints.write(model, 5, bleu(1))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(call, die)
        checkpoints.write(model, step, bleu(1))
    remove_leftovers(checkpoints.directory)
    assert next(checkpoints.intact(lambda line: None)).step in (5, step)
    checkpoints.write(model, step, bleu(2))
    assert checkpoints.latest().metrics == bleu(2), "a step written again replaces the first"
    assert names_in(checkpoints) == [f"step-0000000{number}" for number in sorted({5, step})]


def fail(path, *_, **__):
    path.write_bytes(b"half")
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("full", ["before", "within"])
def test_a_full_disk_is_one_line_and_keeps_the_checkpoints(checkpoints, model, monkeypatch, full):
    set_weights(model, 1)
    checkpoints.write(model, 1, bleu(1))
    with monkeypatch.context() as patch:
        if full == "before":
            patch.setattr(shutil, "disk_usage", lambda _: types.SimpleNamespace(free=0))
        else:
            patch.setattr(model, "save_weights", fail)
        for step in (1, 2):
            line = f"step {step} could not be written: No space left .* last good one is of step 1"
            with pytest.raises(CheckpointError, match=line):
                checkpoints.write(model, step, bleu(9))
    assert names_in(checkpoints) == ["step-00000001"]
    set_weights(model, 99)
    next(checkpoints.intact(pytest.fail)).restore(model)
    assert has_weights(model, 1)


def test_files_are_flushed_before_they_are_renamed(checkpoints, model, monkeypatch):
    """After a power cut a name may exist without its content, unless that was flushed first."""
    done, fsync, rename = [], os.fsync, pathlib.Path.rename

    def flush(descriptor):
        name = pathlib.Path(f"/proc/self/fd/{descriptor}").readlink().name
        done.append(name.partition("-00000001-")[0])  # without the random part of a name
        fsync(descriptor)

    def move(path, target):
        done.append("moved")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", flush)
    monkeypatch.setattr(pathlib.Path, "rename", move)
    checkpoints.write(model, 1, {})
    moved = done.index("moved")
    assert {"model.weights.h5", "state.json", ".writing-step"} <= {*done[:moved]}
    assert done[moved - 1] == ".writing-step"
    assert done[moved + 1 :] == ["checkpoints"]

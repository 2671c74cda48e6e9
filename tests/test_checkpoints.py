"""Checkpoints are written atomically, and the right one is found."""

import hashlib
import json
import os
import pathlib
import resource
import shutil
import socket

import keras
import numpy as np
import pytest

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


def weights_of(model):
    return [variable.numpy() for variable in model.weights]


def set_weights(model, value):
    for variable in model.weights:
        if "seed" not in variable.path:
            variable.assign(np.full(variable.shape, value))


def steps_in(checkpoints):
    return [checkpoint.step for checkpoint in checkpoints.all()]


def names_in(checkpoints):
    return sorted(path.name for path in checkpoints.directory.iterdir())


# --- Writing and finding --------------------------------------------------------------------


def test_without_checkpoints_none_is_found(checkpoints):
    assert checkpoints.all() == []
    assert checkpoints.latest() is None
    assert checkpoints.best() is None
    assert not checkpoints.directory.exists(), "looking makes no folder"


def test_a_checkpoint_is_found_with_its_step_and_metrics(checkpoints, model):
    scores = {"val_bleu": np.float32(12.5), "loss": 2}
    signatures = {"val_bleu": "nrefs:1", "val_chrf": "not a metric of this validation"}
    checkpoints.write(
        model, 12, scores, batches_seen=24, run_metadata={"d_model": 8}, signatures=signatures,
        seconds=2.5,
    )  # fmt: skip
    (found,) = checkpoints.all()
    assert found.seconds == 2.5
    assert (found.step, found.batches_seen) == (12, 24)
    assert found.metrics == {"val_bleu": 12.5, "loss": 2.0}
    assert found.signatures == {"val_bleu": "nrefs:1"}
    assert found.path == checkpoints.directory / "step-00000012"
    assert names_in(checkpoints) == ["step-00000012"]
    state = json.loads((found.path / "state.json").read_text(encoding="utf-8"))
    weights = (found.path / "model.weights.h5").read_bytes()
    assert state == {
        "step": 12,
        "batches_seen": 24,
        "metrics": {"val_bleu": 12.5, "loss": 2.0},
        "signatures": {"val_bleu": "nrefs:1"},
        "seeds": [variable.numpy().tolist() for variable in model.layers[0].variables],
        "best_step": None,
        "run_metadata": {"d_model": 8},
        "seconds": 2.5,
        "weights_bytes": len(weights),
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
    }


def test_a_checkpoint_of_an_earlier_version_has_no_signatures_and_no_time(checkpoints, model):
    checkpoints.write(model, 1, {"val_bleu": 1.0}, signatures={"val_bleu": "nrefs:1"}, seconds=3.0)
    path = checkpoints.directory / "step-00000001" / "state.json"
    state = json.loads(path.read_text(encoding="utf-8"))
    del state["signatures"], state["seconds"]
    path.write_text(json.dumps(state), encoding="utf-8")
    latest = checkpoints.latest()
    assert (latest.signatures, latest.seconds) == ({}, 0.0)


def test_each_checkpoint_keeps_its_own_weights(checkpoints, model):
    for step in (1, 2):
        set_weights(model, step)
        checkpoints.write(model, step, {})
    set_weights(model, 99)
    for checkpoint in checkpoints.all():
        checkpoint.restore(model)
        assert all((weights == checkpoint.step).all() for weights in weights_of(model)[1:])


def test_the_newest_is_the_one_of_the_highest_step(checkpoints, model):
    # Past 8 digits the names no longer sort as the numbers do.
    for step in (99_999_999, 100_000_000):
        checkpoints.write(model, step, {})
    assert checkpoints.latest().step == 100_000_000
    assert checkpoints.best().step == 100_000_000


def test_a_step_written_again_replaces_the_first(checkpoints, model):
    checkpoints.write(model, 5, {"val_bleu": 1.0})
    checkpoints.write(model, 5, {"val_bleu": 2.0}, is_best=True)
    checkpoints.write(model, 5, {"val_bleu": 3.0})
    assert [checkpoint.metrics for checkpoint in checkpoints.all()] == [{"val_bleu": 3.0}]
    assert checkpoints.best().metrics == {"val_bleu": 3.0}
    assert len(names_in(checkpoints)) == 1


def test_a_step_written_again_is_never_missing(checkpoints, model, monkeypatch):
    """A process that dies at any call that changes the disk leaves one of the two complete."""

    class KilledError(BaseException):
        pass

    def die(*_, **__):
        raise KilledError

    checkpoints.write(model, 5, {"val_bleu": 1.0})
    for call in ("pathlib.Path.rename", "shutil.rmtree", "os.fsync"):
        with monkeypatch.context() as patch, pytest.raises(KilledError):
            patch.setattr(call, die)
            checkpoints.write(model, 5, {"val_bleu": 1.0})
        assert checkpoints.latest().step == 5, call
        assert checkpoints.latest().is_intact()


@pytest.mark.parametrize("best", [1, 3, 6])
def test_the_newest_few_and_the_best_are_kept(checkpoints, model, best):
    for step in range(1, 7):
        checkpoints.write(model, step, {}, is_best=step == best)
        assert step in steps_in(checkpoints)
        assert step < best or best in steps_in(checkpoints), "never pruned, not for a moment"
    assert steps_in(checkpoints) == sorted({best, 4, 5, 6})
    assert checkpoints.best().step == best


def test_the_best_before_is_pruned_with_the_rest(checkpoints, model):
    for step in range(1, 7):
        checkpoints.write(model, step, {}, is_best=step in (1, 5))
    assert steps_in(checkpoints) == [4, 5, 6]


def test_where_the_best_is_missing_the_newest_is_the_best(checkpoints, model):
    for step in (1, 2):
        checkpoints.write(model, step, {}, is_best=step == 1)
    shutil.rmtree(checkpoints.directory / "step-00000001")
    assert checkpoints.best().step == 2


# --- Damaged --------------------------------------------------------------------------------


def tear_missing(folder):
    (folder / "state.json").unlink()


def tear_truncated(folder):
    path = folder / "state.json"
    path.write_bytes(path.read_bytes()[:7])


def tear_empty(folder):
    (folder / "state.json").write_bytes(b"")


def tear_key(folder):
    (folder / "state.json").write_text("{}", encoding="utf-8")


def tear_bytes(folder):
    (folder / "state.json").write_bytes(b"\xff\xfe\x00")


def tear_type(folder):
    (folder / "state.json").write_text("[1, 2]", encoding="utf-8")


def tear_weights(folder):
    (folder / "model.weights.h5").unlink()


def tear_half_the_weights(folder):
    weights = (folder / "model.weights.h5").read_bytes()
    (folder / "model.weights.h5").write_bytes(weights[: len(weights) // 2])


TEARS = [
    tear_missing,
    tear_truncated,
    tear_empty,
    tear_key,
    tear_bytes,
    tear_type,
    tear_weights,
    tear_half_the_weights,
]


@pytest.mark.parametrize("tear", TEARS)
def test_a_damaged_checkpoint_is_skipped(checkpoints, model, tear):
    for step in (1, 2):
        checkpoints.write(model, step, {}, is_best=step == 2)
    tear(checkpoints.directory / "step-00000002")
    assert steps_in(checkpoints) == [1]
    assert checkpoints.latest().step == 1
    assert checkpoints.best().step == 1
    checkpoints.write(model, 2, {})
    assert steps_in(checkpoints) == [1, 2]


def damage(folder):
    """Flips a bit of the weights, which changes no file size."""
    path = folder / "model.weights.h5"
    weights = bytearray(path.read_bytes())
    weights[len(weights) // 2] ^= 1
    path.write_bytes(weights)


@pytest.mark.parametrize("harm", [damage, *TEARS])
@pytest.mark.parametrize("which", ["latest_intact", "best_intact"])
def test_the_older_checkpoint_is_used_where_the_newer_is_damaged(checkpoints, model, harm, which):
    for step in (1, 2):
        checkpoints.write(model, step, {})
    harm(checkpoints.directory / "step-00000002")
    warnings = []
    assert getattr(checkpoints, which)(warnings.append).step == 1
    if which == "latest_intact":
        assert ["step-00000002: is damaged" in line for line in warnings] == [True]


@pytest.mark.parametrize("harm", [damage, *TEARS])
def test_where_all_checkpoints_are_damaged_is_an_error(checkpoints, model, harm):
    for step in (1, 2):
        checkpoints.write(model, step, {})
        harm(checkpoints.directory / f"step-{step:08d}")
    with pytest.raises(CheckpointError, match="none of its 2 checkpoints can be read"):
        checkpoints.latest_intact(lambda line: None)


def test_without_checkpoints_none_is_intact(checkpoints):
    assert checkpoints.latest_intact(pytest.fail) is None
    assert checkpoints.best_intact(pytest.fail) is None


def test_all_differences_to_the_run_metadata_are_named(checkpoints, model):
    checkpoints.write(model, 1, {}, run_metadata={"d_model": 8, "num_heads": 2, "seed": 0})
    latest = checkpoints.latest()
    latest.require({"d_model": 8, "seed": 0, "of later versions": True})
    with pytest.raises(CheckpointError) as refusal:
        latest.require({"d_model": 16, "num_heads": 4, "seed": 0})
    for part in ("step-00000001", "d_model was 8 and is 16", "num_heads was 2 and is 4"):
        assert part in str(refusal.value)
    assert "seed" not in str(refusal.value)


def test_a_full_disk_is_one_line_and_keeps_the_last_good_checkpoint(checkpoints, model):
    """Lets no file grow, as on a full disk."""
    set_weights(model, 1)
    checkpoints.write(model, 1, {}, is_best=True)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(CheckpointError) as refusal:
            checkpoints.write(model, 2, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "step 2 could not be written" in str(refusal.value)
    assert "last good one is of step 1" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert names_in(checkpoints) == ["step-00000001"]
    checkpoints.latest_intact(pytest.fail).restore(model)
    assert all((weights == 1).all() for weights in weights_of(model)[1:])


def test_incomplete_checkpoints_of_a_killed_process_are_ignored(checkpoints, model):
    checkpoints.write(model, 1, {})
    leftover = checkpoints.directory / f".writing-step-00000002-{socket.gethostname()}-0123"
    shutil.copytree(checkpoints.directory / "step-00000001", leftover)
    assert steps_in(checkpoints) == [1]
    checkpoints.write(model, 2, {}, is_best=True)
    assert names_in(checkpoints) == ["step-00000001", "step-00000002"]


@pytest.mark.parametrize("half_written", [False, True])
def test_a_failed_write_leaves_the_earlier_checkpoints(
    checkpoints, model, monkeypatch, half_written
):
    set_weights(model, 1)
    checkpoints.write(model, 1, {"val_bleu": 1.0}, is_best=True)

    def fail(path, *_, **__):
        if half_written:
            path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(model, "save_weights", fail)
        for step in (1, 2):
            with pytest.raises(CheckpointError, match="No space"):
                checkpoints.write(model, step, {"val_bleu": 9.0}, is_best=True)
    assert steps_in(checkpoints) == [1]
    assert checkpoints.best().metrics == {"val_bleu": 1.0}
    set_weights(model, 99)
    checkpoints.latest().restore(model)
    assert all((weights == 1).all() for weights in weights_of(model)[1:])
    checkpoints.write(model, 2, {})
    assert steps_in(checkpoints) == [1, 2]


def test_killed_before_the_rename_the_earlier_checkpoint_is_found(checkpoints, model, monkeypatch):
    checkpoints.write(model, 1, {}, is_best=True)

    class KilledError(BaseException):
        pass

    def die(*_):
        raise KilledError

    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr("pathlib.Path.rename", die)
        checkpoints.write(model, 2, {}, is_best=True)
    assert steps_in(checkpoints) == [1]
    assert checkpoints.best().step == 1


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
    assert {*done[:moved]} == {"model.weights.h5", "state.json", ".writing-step"}
    assert done[moved - 1] == ".writing-step"
    assert done[moved + 1 :] == ["checkpoints"]


def test_a_model_of_other_sizes_is_refused(checkpoints, model):
    checkpoints.write(model, 1, {})
    other = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])
    with pytest.raises(ValueError):
        checkpoints.latest().restore(other)


def test_a_damaged_best_is_named_where_the_newest_takes_its_place(checkpoints, model):
    for step in (1, 2):
        checkpoints.write(model, step, {}, is_best=step == 1)
    damage(checkpoints.directory / "step-00000001")
    warnings = []
    assert checkpoints.best_intact(warnings.append).step == 2
    assert ["step-00000001: is damaged" in line for line in warnings] == [True]


def test_a_torn_best_is_named_too(checkpoints, model):
    for step in (1, 2):
        checkpoints.write(model, step, {}, is_best=step == 1)
    tear_half_the_weights(checkpoints.directory / "step-00000001")
    warnings = []
    assert checkpoints.best_intact(warnings.append).step == 2
    assert ["best checkpoint, step 1, is damaged" in line for line in warnings] == [True]


def test_damaged_checkpoints_set_aside_are_no_longer_the_newest(checkpoints, model):
    for step in (1, 2, 3):
        checkpoints.write(model, step, {}, is_best=step == 1)
    for step in (2, 3):
        damage(checkpoints.directory / f"step-0000000{step}")
    restored = checkpoints.latest_intact(lambda line: None)
    checkpoints.set_aside_after(restored)
    assert steps_in(checkpoints) == [1]
    checkpoints.keep = 1
    checkpoints.write(model, 2, {})
    assert steps_in(checkpoints) == [1, 2], "what was just written stays"
    assert "damaged-step-00000003" in names_in(checkpoints), "and nothing is lost"


def test_checkpoints_between_validations_leave_the_validated_ones(checkpoints, model):
    for step in range(1, 41):
        metrics = {"val_bleu": float(step)} if step % 10 == 0 else {}
        checkpoints.write(model, step, metrics, is_best=step == 10)
    assert [checkpoint.step for checkpoint in checkpoints.all()] == [10, 20, 30, 38, 39, 40]

"""Early stopping: patience counts validations without a better BLEU, while the rate falls."""

import types

import pytest
from small_runs import train

from tf_transformer.evaluation import BLEU, LOSS
from tf_transformer.runs.run_directory import RunDirectory
from tf_transformer.training import stopping


def test_patience_counts_validations_since_the_best():
    def validations_until_stop(patience, *values):
        optimizer = types.SimpleNamespace()
        model = types.SimpleNamespace(stop_training=False, optimizer=optimizer)
        callback = stopping.EarlyStopping(patience)
        callback.set_model(model)
        for number, value in enumerate(values, 1):
            optimizer.learning_rate = 1 / number
            callback.on_epoch_end(0, {"val_bleu": value})
            assert model.stop_training == callback.is_due
            if model.stop_training:
                return number
        return None

    assert validations_until_stop(1, 1.0, 2.0, 2.0, 3.0) == 3
    assert validations_until_stop(2, 5.0, 1.0, 6.0, 2.0, 3.0, 4.0) == 5
    assert validations_until_stop(3, 5.0, 1.0, 2.0) is None

    def is_due(criterion, *values):
        earlier = [(value, 1 / number) for number, value in enumerate(values, 1)]
        return stopping.EarlyStopping(2, criterion, earlier).is_due

    assert is_due(BLEU, 5.0, 1.0, 2.0)
    assert not is_due(BLEU, 5.0, 1.0, 5.5)
    assert is_due(LOSS, 5.0, 1.0, 1.5, 1.0)
    assert not is_due(LOSS, 5.0, 6.0, 1.0)


@pytest.mark.parametrize(
    ("rates", "is_due"),
    [
        ((1.0, 2.0, 3.0, 3.0, 3.0), False),  # warm-up and plateau
        ((3.0, 3.0, 3.0, 2.0), False),
        ((3.0, 3.0, 3.0, 2.0, 1.0), True),
        ((3.0, 2.0, 3.0, 3.0, 2.0), False),  # a larger budget raises the rate again
    ],
)
def test_patience_does_not_count_before_the_rate_falls(rates, is_due):
    values = [5.0, 4.0, 3.0, 2.0, 1.0]
    earlier = list(zip(values, rates, strict=False))
    assert stopping.EarlyStopping(2, earlier=earlier).is_due == is_due


@pytest.mark.usefixtures("use_small_copy_task")
def test_early_stopping_ends_a_run_and_counts_earlier_validations_when_it_resumes(
    early_stopped_run, capfd
):
    assert [line["step"] for line in RunDirectory(early_stopped_run).log()] == [2, 4, 6]
    before = {p: p.stat().st_mtime_ns for p in early_stopped_run.rglob("*")}
    train(early_stopped_run, "--resume", "--steps=1000")
    printed = capfd.readouterr().err
    assert "Nothing to do: the last 2 validations up to step 6" in printed
    assert "without --patience" in printed
    assert {p: p.stat().st_mtime_ns for p in early_stopped_run.rglob("*")} == before

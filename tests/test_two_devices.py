"""Two devices give the weights and metrics of one, accumulated batches those of their union."""

import numpy as np
import pytest
import replicas

from tf_transformer.runs.restore import restore_model
from tf_transformer.runs.run_directory import RunDirectory

pytestmark = pytest.mark.slow

METRICS = {f"{part}{name}" for part in ("", "val_") for name in ("loss", "accuracy", "perplexity")}


def test_two_devices_give_the_weights_and_metrics_of_one(result_of):
    result = result_of(replicas.script(replicas.on_two_devices))
    assert len(result) == 6
    for name, case in result.items():
        assert case["moved"] > 0.01 and case["apart"] < 1e-6, name
        one, two = case["metrics"]
        assert {*one} == {*two} == METRICS
        for metric in one:
            assert two[metric] == pytest.approx(one[metric], rel=1e-5), (name, metric)


def test_each_replica_draws_its_own_dropout_and_the_first_that_of_one_device(result_of):
    on_two, on_one = result_of(replicas.script(replicas.dropout_on_two_devices))
    (first, other), (first_again, other_again) = on_two
    assert first != other
    assert first_again not in (first, other) and other_again not in (first, other, first_again)
    assert [first, first_again] == [found[0] for found in on_one]


def test_the_command_trains_alike_on_two_devices(result_of, write_copy_task, tmp_path):
    write_copy_task(tmp_path)
    result_of(replicas.script(replicas.command_on_two_devices, tmp_path))
    runs = [RunDirectory.open(tmp_path / devices) for devices in ("cpu:0", "cpu:0,cpu:1")]
    one, two = (
        [[line[name] for name in ("step", "loss", "val_bleu")] for line in run.log()]
        for run in runs
    )
    assert [step for step, *_ in one] == [2, 3]
    np.testing.assert_allclose(one, two, rtol=1e-5)
    one, two = (restore_model(run).model.get_weights() for run in runs)
    for weight, other in zip(one, two, strict=True):
        np.testing.assert_allclose(weight, other, atol=1e-5)

"""Batches that are computed in parts give the weights and metrics of whole batches."""

import types

import keras
import numpy as np
import pytest
import replicas
import small_runs
from small_models import has_setting, small_config

import tf_transformer as tt
from tf_transformer.machine import plain_graphs, prepare_cpu
from tf_transformer.models.architectures import build_model
from tf_transformer.runs import training_run
from tf_transformer.runs.run_directory import RunDirectory
from tf_transformer.training.batch_parts import train_in_parts

SIZES = {"source_vocab_size": replicas.VOCAB_SIZE, "target_vocab_size": replicas.VOCAB_SIZE}


def trained(
    num_parts,
    data,
    architecture="transformer",
    optimizer=replicas.sgd,
    **rates,
):  # fmt: skip
    keras.utils.set_random_seed(0)
    sizes = SIZES | ({"num_layers": 1} if has_setting(architecture, "num_layers") else {})
    model = build_model(small_config(architecture, **{"dropout_rate": 0.0, **rates, **sizes}))
    metrics = [tt.TokenLoss(), tt.TokenAccuracy(), tt.Perplexity()]
    model.compile(optimizer(), tt.SmoothedCrossEntropy(), metrics=metrics)
    model.optimizer.build(model.trainable_variables)
    if num_parts > 1:
        train_in_parts(model, metrics, num_parts)
    with plain_graphs():
        return model, model.fit(data, epochs=2, shuffle=False, verbose=0).history


@pytest.mark.parametrize(
    ("architecture", "steps"),
    [("transformer", 1),
     *(pytest.param(*case, marks=pytest.mark.slow) for case in
       [("transformer", 2), ("bahdanau", 1)])],
)  # fmt: skip
def test_parts_give_the_weights_and_metrics_of_whole_batches(architecture, steps):
    # Uneven numbers of tokens, and a part without a sentence.
    batches = [replicas.batch(9, 1, 9, 2, 8), replicas.batch(5), replicas.batch(1, 2, 1, 10)] * 2
    optimizer = replicas.sgd if steps == 1 else replicas.accumulated(steps)
    data = replicas.dataset(batches, steps)
    (whole, expected), (model, found) = (
        trained(parts, data, architecture, optimizer) for parts in (1, 2)
    )
    assert {*found} == {*expected} == {"loss", "accuracy", "perplexity"}
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, rel=1e-5), name
    for weight, other in zip(whole.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(other, weight, atol=1e-5)


@pytest.mark.slow
def test_each_part_has_its_own_dropout_which_goes_on_from_step_to_step():
    inputs, labels = replicas.batch(9, 9)
    for array in (*inputs.values(), labels):
        array[1] = array[0]
    alone = {name: ids[:1] for name, ids in inputs.items()}, labels[:1]
    (_, both), (model, first) = (
        trained(2, replicas.dataset([batch]), dropout_rate=0.5)
        for batch in ((inputs, labels), alone)
    )
    assert both["loss"][0] != pytest.approx(first["loss"][0], rel=1e-4)
    states = [v.numpy() for v in model.variables if v.path.endswith("seed_generator_state")]
    assert states and all(state[1] == 2 for state in states), "as many as steps"


@pytest.mark.slow
def test_a_run_keeps_its_parts_on_another_number_of_cores(tmp_path, monkeypatch):
    run_dir, seen = tmp_path / "run", []
    monkeypatch.setattr(training_run, "prepare_cpu", lambda *numbers: seen.append(numbers))
    monkeypatch.setattr("tf_transformer.runs.data.num_cores", lambda: 2)
    small_runs.train(run_dir, *small_runs.SETTINGS, "--steps=1")
    assert RunDirectory.open(run_dir).config().training.batch_parts == 2
    monkeypatch.setattr(training_run, "num_cores", lambda: 1)
    small_runs.train(run_dir, "--resume", "--steps=2")
    assert seen[-1] == (1, 2)
    assert RunDirectory.open(run_dir).config().training.batch_parts == 2


def test_a_variable_of_the_environment_that_a_user_set_stays(monkeypatch):
    environment = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "7"}
    monkeypatch.setattr("os.environ", environment)
    prepare_cpu(1, 1)
    assert environment["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "7"
    assert environment["TF_CPU_ALLOCATOR_USE_BFC"] == "1"


def test_a_run_on_the_cpu_of_a_machine_with_gpus_has_parts_too(tmp_path, monkeypatch):
    seen, gpu = [], types.SimpleNamespace(device_type="GPU", name="/physical_device:GPU:0")
    monkeypatch.setattr(training_run, "prepare_cpu", lambda *numbers: seen.append(numbers))
    monkeypatch.setattr("tensorflow.config.list_physical_devices", lambda *kind: [gpu])
    small_runs.train(tmp_path / "run", *small_runs.SETTINGS, "--steps=1", "--devices=cpu")
    assert len(seen) == 1

"""The training step gives the weights and metrics of Keras' own: in parts, by XLA, on devices."""

import copy
import functools
import types

import keras
import numpy as np
import pytest
import replicas
import small_runs
import tensorflow as tf

import tf_transformer as tt
from tf_transformer.machine import plain_graphs, prepare_cpu
from tf_transformer.runs import training_run
from tf_transformer.runs.run_directory import RunDirectory

# Uneven numbers of tokens, and a part without a sentence.
BATCHES = [replicas.batch(9, 1, 9, 2, 8), replicas.batch(5), replicas.batch(1, 2, 1, 10)] * 2


def trained(data, architecture="transformer", optimizer=replicas.sgd, step=None, **settings):
    """A model after two epochs, and its history; `step` has the arguments of `TrainingStep`."""
    keras.utils.set_random_seed(0)
    model = replicas.small_model(architecture, **settings)
    metrics = [tt.TokenLoss(), tt.TokenAccuracy(), tt.Perplexity()]
    model.compile(optimizer(), tt.SmoothedCrossEntropy(), metrics=metrics)
    model.optimizer.build(model.trainable_variables)
    if step is not None:
        model.train_step = tt.TrainingStep(model, metrics, **step)
    steps = None
    if (number := (step or {}).get("accumulation", 1)) > 1:
        steps, data = len(data) // number, data.repeat()
    with plain_graphs():
        options = {"steps_per_epoch": steps, "shuffle": False, "verbose": 0}
        return model, model.fit(data, epochs=2, **options).history


@pytest.mark.parametrize(
    ("metrics", "options", "words"),
    [
        ([keras.metrics.Mean(name="loss")], {}, "needs a TokenLoss"),
        ([tt.TokenLoss()], {"accumulation": 0}, "must be at least 1.*accumulation=0"),
        ([tt.TokenLoss()], {}, "must be those that `compile` received"),
    ],
)
def test_a_step_without_a_loss_or_a_batch_is_refused(metrics, options, words):
    model = replicas.small_model("transformer")
    model.compile(tt.Adam(), tt.SmoothedCrossEntropy(), metrics=[tt.TokenLoss()])
    with pytest.raises(ValueError, match=words):
        tt.TrainingStep(model, metrics, **options)


def assert_same(one, other):
    (whole, expected), (model, found) = one, other
    assert {*found} == {*expected} == {"loss", "accuracy", "perplexity"}
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, rel=1e-5), name
    for weight, other in zip(whole.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(other, weight, atol=1e-5)


@pytest.mark.parametrize(
    "step", [{"num_parts": 2}, pytest.param({"jit_compile": True}, marks=pytest.mark.slow)]
)
def test_a_batch_without_a_finite_loss_is_no_part_of_weights_and_means(step):
    rare = replicas.VOCAB_SIZE - 1

    class Poisoned(tt.Adam):
        def build(self, variables):
            super().build(variables)
            (table,) = (v for v in variables if "source_embedding" in v.path)
            table.assign(tf.tensor_scatter_nd_update(table, [[rare, 0]], [np.nan]))

    good = [({k: v % rare for k, v in x.items()}, y % rare) for x, y in BATCHES[:2]]
    inputs, labels = copy.deepcopy(good[0])
    inputs["source_ids"][0, 0] = rare
    optimizer = functools.partial(Poisoned, 0.01)
    results = [
        trained(replicas.dataset(batches), optimizer=optimizer, step=step, tie_embeddings=False)
        for batches in (good, [good[0], (inputs, labels), good[1]])
    ]
    assert [int(model.optimizer.iterations.numpy()) for model, _ in results] == [4, 4]
    assert_same(*results)


@pytest.mark.parametrize(
    ("architecture", "accumulation", "num_parts", "jit_compile"),
    [("transformer", 1, 2, False),
     *(pytest.param(*case, marks=pytest.mark.slow) for case in
       [("transformer", 2, 2, False), ("transformer", 1, 1, True), ("transformer", 2, 2, True),
        ("bahdanau", 1, 2, False), ("masked_lm", 1, 2, False), ("masked_lm", 1, 1, True)])],
)  # fmt: skip
def test_the_step_gives_the_weights_and_metrics_of_keras(
    architecture, accumulation, num_parts, jit_compile
):
    """Accumulated batches give those of their union."""
    size = accumulation
    unions = [replicas.union(BATCHES[n : n + size]) for n in range(0, len(BATCHES), size)]
    step = {"num_parts": num_parts, "accumulation": accumulation, "jit_compile": jit_compile}
    results = [
        trained(replicas.dataset(batches), architecture, replicas.scaled_sgd, step=each)
        for batches, each in ((unions, None), (BATCHES, step))
    ]
    assert_same(*results)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("num_parts", [1, 2])
def test_the_end_of_data_of_unknown_size_is_no_update(num_parts):
    data = replicas.dataset(BATCHES[:3]).filter(lambda *_: True)
    optimizer = functools.partial(tt.Adam, 0.01, epsilon=1e-3, weight_decay=0.5)
    model, _ = trained(data, optimizer=optimizer, step={"num_parts": num_parts})
    whole, _ = trained(data, optimizer=optimizer)
    assert int(model.optimizer.iterations.numpy()) == 6
    for weight, other in zip(whole.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(other, weight, atol=1e-5)


# The masked model predicts a random number of tokens, so the devices must agree on their sum.
@pytest.mark.parametrize(
    "architecture", ["masked_lm", pytest.param("transformer", marks=pytest.mark.slow)]
)
def test_two_devices_with_xla_give_the_weights_and_metrics_of_one(architecture, result_of):
    result = result_of(replicas.script(replicas.xla_on_two_devices, architecture))
    assert result["moved"] > 0.01 and result["apart"] < 1e-5
    two, one = result["metrics"]
    assert {*one} == {*two}
    for metric in one:
        assert two[metric] == pytest.approx(one[metric], rel=1e-5), metric


@pytest.mark.slow
@pytest.mark.parametrize("step", [{"num_parts": 2}, {"accumulation": 2}])
def test_parts_and_batches_have_their_own_dropout_which_goes_on_from_step_to_step(step):
    inputs, labels = replicas.batch(9, 9)
    for array in (*inputs.values(), labels):
        array[1] = array[0]
    alone = {name: ids[:1] for name, ids in inputs.items()}, labels[:1]
    (_, both), (model, first) = (
        trained(replicas.dataset(batches), dropout_rate=0.5, step=each)
        for batches, each in (
            ([(inputs, labels)] if "num_parts" in step else [alone, alone], step),
            ([alone], {"num_parts": step.get("num_parts", 1)}),
        )
    )
    assert both["loss"][0] != pytest.approx(first["loss"][0], rel=1e-4)
    states = [v.numpy() for v in model.variables if v.path.endswith("seed_generator_state")]
    assert states and all(state[1] == 2 for state in states), "as many as steps"


@pytest.mark.slow
def test_a_run_on_the_cpu_has_parts_and_keeps_them_on_another_number_of_cores(
    tmp_path, monkeypatch
):
    """Also on a machine with GPUs."""
    run_dir, seen = tmp_path / "run", []
    gpu = types.SimpleNamespace(device_type="GPU", name="/physical_device:GPU:0")
    monkeypatch.setattr("tensorflow.config.list_physical_devices", lambda *kind: [gpu])
    monkeypatch.setattr(training_run, "prepare_cpu", lambda *numbers: seen.append(numbers))
    monkeypatch.setattr("tf_transformer.runs.data.num_cores", lambda: 2)
    small_runs.train(run_dir, *small_runs.SETTINGS, "--steps=1", "--devices=cpu")
    assert len(seen) == 1
    assert RunDirectory.open(run_dir).config().training.batch_parts == 2
    monkeypatch.setattr(training_run, "num_cores", lambda: 1)
    small_runs.train(run_dir, "--resume", "--steps=2", "--devices=cpu")
    assert seen[-1] == (1, 2)
    assert RunDirectory.open(run_dir).config().training.batch_parts == 2


def test_a_variable_of_the_environment_that_a_user_set_stays(monkeypatch):
    environment = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "7"}
    monkeypatch.setattr("os.environ", environment)
    prepare_cpu(1, 1)
    assert environment["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "7"
    assert environment["TF_CPU_ALLOCATOR_USE_BFC"] == "1"

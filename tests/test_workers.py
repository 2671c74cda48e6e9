"""Several machines, played by two processes of this one."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
import tensorflow as tf
import uneven

from tf_transformer import cli
from tf_transformer.errors import ConfigError
from tf_transformer.training.checkpoints import Checkpoints
from tf_transformer.training.cluster import Cluster, WorkerError, worker_failures_named
from tf_transformer.training.distribution import Workers, strategy_for

LONG = 300  # seconds; each process traces its own graphs


def free_ports(number=2):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def tf_config(ports, index):
    workers = [f"127.0.0.1:{port}" for port in ports]
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})


def start_pair(*commands):
    ports = free_ports()
    return [
        subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CONFIG": tf_config(ports, index)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for index, command in enumerate(commands)
    ]  # fmt: skip


def end(process, code):
    try:
        printed, errors = process.communicate(timeout=LONG)
    except subprocess.TimeoutExpired:  # a worker that goes on alone waits forever
        process.kill()
        printed, errors = process.communicate()
    assert process.returncode == code, printed + errors[-3000:]
    return printed, errors


# Each worker trains with the other, and then alone; all batches are the same.
EXACT = (
    """
import json, keras, numpy as np, tensorflow as tf
from tf_transformer.training.cluster import Cluster
from tf_transformer.training.distribution import Workers, strategy_for
cluster = Cluster.from_environment()
cluster.wait_for_workers()
workers = Workers(strategy_for(None, cluster))
import tf_transformer as tt
index = workers.index
"""
    + uneven.TARGETS
    + """

# Uneven tokens, uneven rows, a worker without any, a last smaller batch.
batches = [targets(*lengths) for lengths in ([9, 1, 8, 1, 9, 2], [2, 2, 8], [7], [4, 9])]
ids = tf.TensorSpec([None, None], tf.int32)
data = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=(ids, ids))
data = data.apply(tf.data.experimental.assert_cardinality(len(batches)))

# As `TokenBatches` weights two batches that make one update.
counts = [int((labels > 0).sum()) for _, labels in batches]
of_pair = np.repeat(np.add.reduceat(counts, [0, 2]), 2)
weights = [np.full(len(b[1]), 2 * n / m, "float32")
           for b, n, m in zip(batches, counts, of_pair)]
weighted = tf.data.Dataset.from_generator(
    lambda: ((*b, w) for b, w in zip(batches, weights)),
    output_signature=(ids, ids, tf.TensorSpec([None], tf.float32)))
weighted = weighted.apply(tf.data.experimental.assert_cardinality(len(batches)))

class Small(keras.Sequential):
    # As a Transformer has it; the smaller the model, the sooner traced.
    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        pass

def fit(strategy, optimizer=lambda: keras.optimizers.SGD(0.5), data=data):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = Small([keras.Input([None]), keras.layers.Embedding(30, 8), keras.layers.Dense(30)])
        model.compile(optimizer(), tt.SmoothedCrossEntropy(), jit_compile=False,
                      metrics=[tt.TokenLoss(), tt.Perplexity()])
    start = [v.numpy() for v in model.trainable_variables]
    history = model.fit(data, shuffle=False, verbose=0, epochs=2, validation_data=data).history
    return start, [v.numpy() for v in model.trainable_variables], history

def in_pairs(strategy):
    sgd = lambda: tt.GradientAccumulation(keras.optimizers.SGD(0.5), 2)
    return fit(strategy, sgd, weighted)

start, together, history = fit(workers.strategy)
_, accumulated, _ = in_pairs(workers.strategy)
mine = iter(workers.strategy.experimental_distribute_dataset(data))
local = workers.strategy.experimental_local_results
mine = [local(next(mine)[1])[0].numpy().tolist() for _ in batches]
agreed = [workers.all_reduce_max([3, 7][index]), workers.broadcast([b"chief", b""][index])]
with tf.device("CPU:0"):
    _, alone, of_one = fit(tf.distribute.get_strategy())
    _, accumulated_alone, _ = in_pairs(tf.distribute.get_strategy())
apart = lambda some, others: max(float(abs(a - b).max()) for a, b in zip(some, others))
print(json.dumps({
    "moved": {1: apart(start, alone), 2: apart(start, accumulated_alone)}, "agreed": str(agreed),
    "apart": {1: apart(together, alone), 2: apart(accumulated, accumulated_alone)},
    "figures": [history, of_one], "mine": mine, "all": [b[1].tolist() for b in batches],
    "weights": {n: [w.tobytes().hex() for w in found]
                for n, found in ((1, together), (2, accumulated))}}))
workers.all_reduce_max(0)
"""
)


@pytest.fixture(scope="module")
def exact():
    pair = start_pair(["-c", EXACT], ["-c", EXACT])
    return [json.loads(end(process, 0)[0].splitlines()[-1]) for process in pair]


batches_in_update = pytest.mark.parametrize("batches_in_update", ["1", "2"])


@batches_in_update
def test_workers_have_identical_weights(exact, batches_in_update):
    one, other = (worker["weights"][batches_in_update] for worker in exact)
    assert one == other


@batches_in_update
def test_workers_have_the_weights_of_one_process(exact, batches_in_update):
    for worker in exact:
        assert worker["moved"][batches_in_update] > 0.01
        assert worker["apart"][batches_in_update] < 1e-5


def test_each_sentence_is_one_workers(exact):
    # If each had all of them the weights were the same, for twice the work.
    (one, other), batches = (worker["mine"] for worker in exact), exact[0]["all"]
    assert [sorted(a + b) for a, b in zip(one, other, strict=True)] == list(map(sorted, batches))
    assert [len(rows) for rows in one] == [3, 2, 1, 1]


def test_workers_report_the_figures_of_one_process(exact):
    for worker in exact:
        together, alone = worker["figures"]
        assert sorted(together) == ["loss", "perplexity", "val_loss", "val_perplexity"]
        for name, values in alone.items():
            assert together[name] == pytest.approx(values, abs=1e-4)


def test_workers_agree_on_the_highest_number_and_on_what_the_chief_says(exact):
    assert [worker["agreed"] for worker in exact] == ["[7, b'chief']"] * 2


TRAIN = ["-m", "tf_transformer.cli", "train"]


def settings(folder, *others):
    """A training of a second or two, beside the tracing."""
    return [
        "--corpus=tsv", f"--train-tsv={folder / 'train'}",
        f"--validation-tsv={folder / 'validation'}", "--num-layers=1", "--d-model=16",
        "--num-heads=2", "--d-ff=32", "--vocab-size=272", "--batch-tokens=60", "--max-length=30",
        *others,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def story(tmp_path_factory, write_copy_task):
    """A worker is killed while two train; both go on; SIGTERM to the one that is not the chief."""
    folder = tmp_path_factory.mktemp("story")
    write_copy_task(folder)
    without_end = settings(
        folder, "--minutes=30", "--validation-steps=100000", "--checkpoint-steps=3"
    )
    run, elsewhere = folder / "run", folder / "elsewhere"

    def newest():
        latest = Checkpoints(run / "checkpoints").latest()
        return latest.step if latest else 0

    def wait_for_step(step, pair):
        deadline = time.monotonic() + LONG
        while newest() < step:
            ended = [process for process in pair if process.poll() is not None]
            assert not ended, ended[0].stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.05)

    # The other worker is given a folder of its own, to see whether it writes.
    pair = start_pair(
        [*TRAIN, f"--run-dir={run}", *without_end],
        [*TRAIN, f"--run-dir={elsewhere}", *without_end],
    )
    wait_for_step(3, pair)
    pair[1].send_signal(signal.SIGKILL)
    killed = time.monotonic()
    _, lost = end(pair[0], 2)
    seconds, stood = time.monotonic() - killed, newest()

    pair = start_pair(*[[*TRAIN, f"--run-dir={run}", "--resume"]] * 2)
    wait_for_step(stood + 3, pair)
    pair[1].send_signal(signal.SIGTERM)
    stopped = [end(process, 128 + signal.SIGTERM)[1] for process in pair]
    return {
        "lost": lost, "seconds": seconds, "stood": stood, "stopped": stopped,
        "elsewhere": elsewhere, "checkpoints": Checkpoints(run / "checkpoints").all(),
    }  # fmt: skip


def test_a_workers_death_ends_the_others_with_one_line(story):
    assert "another worker failed" in story["lost"].splitlines()[-1]
    assert "--resume" in story["lost"] and "Traceback" not in story["lost"]
    assert story["seconds"] < 120


def test_the_chief_alone_writes(story):
    assert not story["elsewhere"].exists()
    assert "the chief writes the run" in story["stopped"][1]


def test_workers_go_on_where_they_stood(story):
    for checkpoint in story["checkpoints"]:
        assert checkpoint.batches_seen == checkpoint.step
        assert checkpoint.is_intact()
    assert story["checkpoints"][-1].step >= story["stood"] + 3


def test_a_signal_to_one_worker_stops_all_at_the_same_step(story):
    steps = [
        line.split()[3]
        for printed in story["stopped"]
        for line in printed.splitlines()
        if line.startswith("Stopped at step")
    ]
    assert steps[0] == steps[1]
    assert int(steps[0].replace(",", "")) == story["checkpoints"][-1].step


# The command line, with a clock that goes by updates: by half as many minutes on the chief. It
# notes where this worker translates, and what training leaves here.
BY_THE_CLOCK = """
import json, sys, time, types
from tf_transformer import cli
from tf_transformer.training import callbacks, stopping, train
from tf_transformer.training.checkpoints import seeds_of
compile_model, bleu, seen = train.compile_model, callbacks.TranslationBleu.on_epoch_end, {}
seen["translated"] = []

def spied(model, config):
    compile_model(model, config)
    updates = model.optimizer.iterations
    pace = 30 if sys.argv[1] == "chief" else 60  # seconds an update
    started = time.monotonic()
    clock = lambda: started + pace * int(updates.numpy())
    stopping.time = types.SimpleNamespace(monotonic=clock)
    seen["model"] = model

def note_and_translate(self, epoch, logs=None):
    seen["translated"].append(int(self.model.optimizer.iterations.numpy()))
    bleu(self, epoch, logs)

train.compile_model = spied
callbacks.TranslationBleu.on_epoch_end = note_and_translate
status = cli.main(sys.argv[2:])
model = seen.pop("model")
variables = [*model.trainable_variables, *model.optimizer.variables]
print(json.dumps({
    **seen, "status": status, "step": int(model.optimizer.iterations.numpy()),
    "policy": model.dtype_policy.name, "seeds": [v.numpy().tolist() for v in seeds_of(model)],
    "variables": {v.path: v.numpy().tobytes().hex() for v in variables}}))
"""


@pytest.fixture(scope="module")
def by_the_clock(tmp_path_factory, write_copy_task):
    """Two train in bfloat16, accumulating and averaging, until seven minutes are over for one."""
    folder = tmp_path_factory.mktemp("clock")
    write_copy_task(folder)
    run = folder / "run"
    train = ["train", f"--run-dir={run}", *settings(
        folder, "--minutes=7", "--validation-steps=3", "--accumulation-steps=2",
        "--precision=mixed_bfloat16", "--ema-momentum=0.9",
    )]  # fmt: skip
    pair = start_pair(*[["-c", BY_THE_CLOCK, name, *train] for name in ("chief", "other")])
    workers = [json.loads(end(process, 0)[0].splitlines()[-1]) for process in pair]
    log = (run / "log.jsonl").read_text("utf-8").splitlines()
    return workers, [json.loads(line) for line in log]


def test_the_first_worker_whose_time_is_over_ends_all_after_the_same_update(by_the_clock):
    for worker in by_the_clock[0]:
        assert (worker["status"], worker["step"]) == (0, 7)


def test_workers_in_bfloat16_have_identical_variables(by_the_clock):
    (one, other), _ = by_the_clock
    assert one["policy"] == other["policy"] == "mixed_bfloat16"
    assert one["variables"].keys() == other["variables"].keys()
    assert not [v for v in one["variables"] if one["variables"][v] != other["variables"][v]]


def test_each_worker_draws_its_own_dropout(by_the_clock):
    (one, other), _ = by_the_clock
    assert len(one["seeds"]) > 3
    for (seed, drawn), (other_seed, drawn_there) in zip(one["seeds"], other["seeds"], strict=True):
        assert seed != other_seed and drawn == drawn_there == 14


def test_the_chief_alone_measures_bleu_and_logs_it(by_the_clock):
    (chief, other), log = by_the_clock
    assert chief["translated"] == [3, 6, 7]
    assert other["translated"] == []
    assert [line["step"] for line in log if "val_bleu" in line] == [3, 6, 7]


@pytest.mark.parametrize(
    "text",
    [
        "host:1234",
        "[]",
        '{"cluster": {"worker": ["a:1", "b:1"]}}',
        '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker"}}',
        '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 2}}',
        '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "chief", "index": 0}}',
        '{"cluster": {"worker": ["a", "b"]}, "task": {"type": "worker", "index": 0}}',
        '{"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": {"type": "worker", "index": 0}}',
    ],
)
def test_a_tf_config_that_names_no_cluster_is_refused(text):
    with pytest.raises(ConfigError, match="TF_CONFIG must be JSON like") as error:
        Cluster.from_environment({"TF_CONFIG": text})
    assert "\n" not in str(error.value)


def test_a_bad_tf_config_ends_training_with_status_2(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{")
    assert cli.main(["train", "--corpus=copy", f"--run-dir={tmp_path / 'run'}"]) == 2
    assert "TF_CONFIG must be JSON like" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_a_chief_is_the_first_worker():
    cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}
    places = [
        Cluster.from_environment(
            {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}
        )
        for kind, index in (("chief", 0), ("worker", 0), ("worker", 1))
    ]
    assert places == [Cluster(("a:1", "b:1", "c:1"), index) for index in range(3)]


def test_one_worker_is_no_cluster():
    assert Cluster.from_environment({}) is None
    assert Cluster.from_environment({"TF_CONFIG": tf_config([1], 0)}) is None
    assert Cluster.from_environment({"SLURM_PROCID": "0"}) is None


def set_variables(monkeypatch, variables):
    # TensorFlow's resolver reads the environment itself.
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_slurm_tasks_are_a_cluster(monkeypatch):
    variables = {
        "SLURM_PROCID": "2",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_STEP_NODELIST": "node[2,10]",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    }
    set_variables(monkeypatch, variables)
    addresses = ("node2:8888", "node2:8889", "node10:8888", "node10:8889")
    assert Cluster.from_environment(variables) == Cluster(addresses, 2)


def test_a_step_of_one_slurm_task_is_no_cluster(monkeypatch):
    variables = {
        "SLURM_PROCID": "0",
        "SLURM_STEP_NUM_TASKS": "1",
        "SLURM_STEP_NODELIST": "node1",
        "SLURM_STEP_TASKS_PER_NODE": "1",
    }
    set_variables(monkeypatch, variables)
    assert Cluster.from_environment(variables) is None


def test_slurm_without_its_variables_is_refused(monkeypatch):
    monkeypatch.setenv("SLURM_PROCID", "0")
    with pytest.raises(ConfigError, match="Slurm"):
        Cluster.from_environment({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"})


def test_a_worker_that_does_not_answer_ends_training_within_a_minute(tmp_path, capsys, monkeypatch):
    ports = free_ports()
    monkeypatch.setenv("TF_CONFIG", tf_config(ports, 0))
    started = time.monotonic()
    assert cli.main(["train", "--corpus=copy", f"--run-dir={tmp_path / 'run'}"]) == 2
    assert time.monotonic() - started < 60
    message = capsys.readouterr().err.splitlines()[-1]
    assert f"could not reach 127.0.0.1:{ports[1]} within 45 seconds" in message
    assert not (tmp_path / "run").exists()


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(WorkerError, match=f"{port}: this worker cannot listen there"):
            Cluster((f"127.0.0.1:{port}", "127.0.0.1:1"), 0).meet(seconds=0)


def test_a_lost_worker_is_named_in_one_line():
    with pytest.raises(WorkerError, match=r"another worker .* --resume .* in run\.") as error:
        with worker_failures_named("run"):
            raise tf.errors.UnavailableError(None, None, "Connection\nreset")
    assert "\n" not in str(error.value)


def test_other_errors_of_tensorflow_keep_their_names():
    with pytest.raises(tf.errors.InvalidArgumentError), worker_failures_named("run"):
        raise tf.errors.InvalidArgumentError(None, None, "a bug")


def test_one_process_agrees_with_itself():
    workers = Workers(strategy_for())
    assert (workers.index, workers.count, workers.is_chief) == (0, 1, True)
    assert workers.all_reduce_max(5) == 5
    assert workers.broadcast(b"chief") == b"chief"


@pytest.mark.parametrize("devices", ["7", "0", "gpu:9", "cpu,gpu:9", "tpu", ""])
def test_devices_that_are_not_there_are_refused(devices):
    with pytest.raises(ConfigError, match=r"--devices: no .* here, only cpu:0") as error:
        strategy_for(devices)
    assert "\n" not in str(error.value)


def test_the_cpu_can_be_chosen():
    assert strategy_for("cpu").num_replicas_in_sync == 1
    assert strategy_for("CPU:0").num_replicas_in_sync == 1

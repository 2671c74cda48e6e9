"""Two workers train exactly what one process does, played by two processes of this machine."""

import json
import re

import pytest
import replicas
from commands import refusal
from worker_processes import end, start_pair

from tf_transformer.training.distribution import strategy_for


@pytest.fixture(scope="module")
def exact():
    command = ["-c", replicas.script(replicas.as_worker)]
    return [
        json.loads(end(process, 0)[0].splitlines()[-1]) for process in start_pair(*[command] * 2)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("batches_in_update", ["1", "2"])
def test_workers_have_the_weights_and_metrics_of_one_process(exact, batches_in_update):
    one, other = (worker[batches_in_update] for worker in exact)
    assert one["weights"] == other["weights"]
    for worker in (one, other):
        assert worker["moved"] > 0.01 and worker["apart"] < 1e-5
        together, alone = worker["metrics"]
        assert {"loss", "perplexity", "val_loss", "val_perplexity"} <= {*together} == {*alone}
        for name, values in alone.items():
            assert together[name] == pytest.approx(values, abs=1e-4), name


@pytest.mark.slow
def test_workers_share_the_sentences_and_agree_on_values(exact):
    # If both trained all of them, the weights would be the same, for twice the work.
    (one, other), batches = (worker["mine"] for worker in exact), exact[0]["all"]
    assert [sorted(a + b) for a, b in zip(one, other, strict=True)] == list(map(sorted, batches))
    assert [len(sentences) for sentences in one] == [3, 2, 1, 1]
    assert [worker["agreed"] for worker in exact] == [[7, "chief"]] * 2


@pytest.mark.parametrize("devices", ["7", "0", "cpu,gpu:9", "tpu", ""])
def test_missing_devices_are_refused(devices):
    assert re.search(r"--devices: no .* here, only cpu:0", refusal(strategy_for, devices))

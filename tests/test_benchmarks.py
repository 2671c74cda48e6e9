"""The benchmarks run with the smallest sizes, and print their line of JSON."""

import importlib
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import last_json, run_python

from tf_transformer.models.architectures import build_model
from tf_transformer.models.model_configs import TransformerConfig

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks"
SMALLEST = ["--num-layers", "1", "--d-model", "16", "--d-ff", "32", "--num-heads", "2"]


def measured(script, *options):
    """The JSON that a benchmark prints."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return last_json(run_python(FOLDER / script, *options, env=env, timeout=None))


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A folder of two files of parallel text, with few and short sentences."""
    folder = tmp_path_factory.mktemp("text")
    words = "the a cat dog sees hears small old red house".split()
    random = np.random.default_rng(0)
    sentences = [" ".join(random.choice(words, size=4 + i % 5)) for i in range(120)]
    for name, lines in (("source", sentences), ("target", [s.upper() for s in sentences])):
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def test_text_of_many_pairs():
    results = measured("data.py", "--pairs=3000", "--shards=2", "--batches=5", "--noisy-pairs=999")
    ways = [results[way] for way in ("cache_written", "cache_found", "in_memory")]
    assert len({way["padding_fraction"] for way in ways}) == 1
    for way in ways:
        assert min(way["pairs_per_second"], way["batches_per_second"], way["peak_mib"]) > 0
    for way in ("noise_in_a_thread", "noise_in_a_process"):
        assert results[way]["pairs_per_second"] > 0 <= results[way]["late_ms"]
    # The offsets alone take 16.
    assert results["cache_bytes_per_pair"] > 16


@pytest.fixture
def module(monkeypatch):
    """A function that imports a module of the benchmarks."""
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module


PEER = """
import sys
sys.path.append({folder!r})
import engine

def made(job):
    print("a library talks")
    return lambda x: job["factor"] * x if x else 1 / 0

engine.answer(made)
"""


def test_an_engine_answers_from_another_interpreter(module, tmp_path):
    peer = tmp_path / "peer.py"
    peer.write_text(PEER.format(folder=str(FOLDER)))
    with module("engine").script(sys.executable, str(peer), {"factor": 3}) as ask:
        assert [ask(1), ask(2)] == [3, 6]
        with pytest.raises(SystemExit, match=r"peer\.py failed"):
            ask(0)


@pytest.mark.parametrize("norm_first", [True, False])
def test_marian_gets_every_weight_once(module, norm_first):
    config = TransformerConfig(
        num_layers=2, d_model=8, num_heads=2, d_ff=12, source_vocab_size=20, target_vocab_size=20,
        norm_first=norm_first,
    )  # fmt: skip
    model = build_model(config)
    weights = module("peer_models").marian_weights(model)
    no_output_bias = weights.pop("decoder_ff_logit_out_b")
    assert no_output_bias.shape == (1, 20) and not no_output_bias.any()
    assert sum(array.size for array in weights.values()) == model.count_params()
    key = model.decoder.layers[1].cross_attention.key_value_projection
    np.testing.assert_array_equal(weights["decoder_l2_context_Wk"], key.kernel[:, :8])
    np.testing.assert_array_equal(weights["decoder_l2_context_bv"][0], key.bias[8:])


def test_decoding_reports_the_faster_use_of_threads(module):
    cell = module("decode").summary(
        {
            "ours 1x2": [(10, 1.0), (10, 2.0), (10, 1.0)],
            "ours 2x1": [(10, 0.5), (10, 0.5), (10, 2.0)],
            "ours_bfloat16 1x2": [(10, 0.1), (10, 1.0), (10, 10.0)],
            "ctranslate2 1x2": [(10, 0.25)] * 3,
            "marian 2x1": [(9, 1.0)] * 3,
        },
        5,
    )
    assert (cell["ours"], cell["threads"]["ours"]) == (20, "2x1")
    assert (cell["ratio"], cell["ratio_marian"]) == (0.5, 2.22)
    assert cell["ratio_spread"] == [0.125, 0.5]
    assert (cell["ratio_bfloat16"], cell["ratio_bfloat16_spread"]) == (None, [0.025, 2.5])
    assert (cell["tokens"]["ours"], cell["tokens"]["marian"]) == (2, 1.8)


def test_an_imported_model_makes_equally_many_tokens(text):
    results = measured(
        "pretrained.py", "--vocab-size", "400", "--rounds", "1", "--batch-sizes", "1", "4",
        "--tokens", "7", "--source", text / "source", *SMALLEST,
    )  # fmt: skip
    assert results.keys() == {"base_beam4_b1", "base_beam4_b4"}
    for cell in results.values():
        assert cell["ours"] > 0 and cell["tokens"] == {"ours": 7}


LENGTHS = (1, *range(20, 281, 20))


def times(cost_of_late, noise, random, rounds=14):
    """The seconds of translations of `LENGTHS`, whose token 250 costs more than token 10."""
    growth = (cost_of_late - 1) / 240  # a token
    exact = [3 + sum(1 + growth * (n - 10) for n in range(length)) for length in LENGTHS]
    factors = 1 + noise * random.exponential(size=(rounds, len(LENGTHS)))
    return exact * factors


@pytest.mark.parametrize("cost_of_late", [0.6, 1.0, 3.0])
def test_the_growth_of_a_cost_is_within_its_spread(module, cost_of_late):
    spread, found = module("spread"), 0
    for seed in range(10):
        seconds = times(cost_of_late, 0.1, np.random.default_rng(seed))
        first, last, growth = spread.marginal_costs(LENGTHS, seconds, (10, 250))
        assert first.is_resolved and last.is_resolved and growth.is_resolved
        assert growth.value == pytest.approx(cost_of_late, rel=0.35)
        found += growth.low <= cost_of_late <= growth.high
    assert found >= 7  # of 9 that are expected


def test_no_growth_is_found_in_noise(module):
    spread = module("spread")
    for seed in range(10):
        seconds = 100 + np.random.default_rng(seed).exponential(size=(14, len(LENGTHS)))
        *_, growth = spread.marginal_costs(LENGTHS, seconds, (10, 250))
        assert not growth.is_resolved and str(growth).startswith("not resolved")
        assert spread.fields({"growth": growth})["growth"] is None


def test_a_figure_is_printed_with_its_spread_or_not_at_all(module):
    ratio = module("spread").ratio
    assert str(ratio([2, 4, 6], [2, 2, 2])) == "2 (1 to 3)"
    assert module("spread").fields({"r": ratio([2, 4, 6], [2, 2, 2])}) == {
        "r": 2.0,
        "r_spread": [1.0, 3.0],
    }
    assert str(ratio([2, 4, 8], [2, 2, 2])) == "not resolved (1 to 4)"
    assert str(ratio([4], [2])) == "not resolved (one round)"


def test_the_growth_with_the_length_has_a_spread(module):
    complexity = module("complexity")
    lengths = np.array(complexity.LENGTHS)
    seconds = lengths**1.5 * np.random.default_rng(0).uniform(0.95, 1.05, (9, len(lengths)))
    exponent = complexity.exponent(seconds)
    assert exponent.low < 1.5 < exponent.high and exponent.is_resolved


@pytest.fixture
def synthetic(module):
    return module("synthetic_batches")


def test_synthetic_batches_look_like_real_ones(synthetic):
    batches = synthetic.synthetic_batches({"seed": 0, "batch_tokens": 640, "vocab_size": 50})
    assert [labels.shape for _, _, labels in batches] == [(40, 16), (20, 32), (10, 64)]
    for source_ids, target_ids, labels in batches:
        real = labels != 0
        assert 0.9 < real.mean() < 1
        assert 0.9 < (source_ids != 0).mean() < 1
        assert (np.diff(real.astype(int), axis=1) <= 0).all()  # padding comes last
        assert ((target_ids != 0) == real).all()
        # Each input is the label before it, so no input is the label to predict.
        assert (np.where(real[:, 1:], labels[:, :-1], 0) == target_ids[:, 1:]).all()


def test_operations_are_those_of_the_matrix_products(synthetic):
    layers, width, hidden, vocabulary, source, target = 2, 8, 24, 11, 5, 3
    ids = [np.ones((1, length), int) for length in (source, target, target)]
    # Query, key, value and output; scores and weighted values, half of them where attention is
    # causal; the feed-forward network.
    encoder = source * (4 * width**2 + 2 * source * width + 2 * width * hidden)
    decoder = target * (4 * width**2 + target * width + 2 * width * hidden)
    cross = 2 * target * width**2 + 2 * source * width**2 + 2 * target * source * width
    forward = 2 * (layers * (encoder + decoder + cross) + target * width * vocabulary)
    assert synthetic.training_flops(ids, vocabulary, layers, width, hidden) == 3 * forward


def test_the_lineage_is_measured_again_and_never_mixed(text, tmp_path):
    files = [
        f"--{part}-{side}={text / side}"
        for part in ("train", "validation")
        for side in ("source", "target")
    ]
    options = [*files, f"--output={tmp_path}", "--architectures", "cho", "masked_lm"]
    first = measured("lineage.py", "--steps=2", *options)
    assert first["cho"]["updates"] == 2 and first["cho"]["val_perplexity"] > 1
    assert first["cho"]["bleu"] >= 0 and "bleu" not in first["masked_lm"]
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.h5")}
    assert len(before) >= 2
    again = measured("lineage.py", "--steps=2", *options)
    expected = pytest.approx(first["cho"]["val_perplexity"], rel=1e-5)
    assert again["cho"]["val_perplexity"] == expected
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.h5")} == before
    (tmp_path / "cho" / "done").unlink()  # as if it had been interrupted
    with pytest.raises(AssertionError, match="is of another budget, other files"):
        measured("lineage.py", "--steps=3", *options)


def test_a_masked_model_starts_a_prefix_model(tmp_path):
    results = measured(
        "warm_start.py", "--steps=4", "--validations=2",
        "--pairs=600", "--vocab-size=400", "--batch-tokens=1024",
        f"--output={tmp_path / 'results.json'}", f"--figure={tmp_path / 'curves.svg'}",
        *SMALLEST,
    )  # fmt: skip
    warm, cold = results["val_loss"].values()
    assert [step for step, _ in warm] == [step for step, _ in cold] == [0, 2, 4]
    # The masked model has learned something: its weights are not those of the other beginning.
    assert warm[0][1] < cold[0][1]
    assert json.loads((tmp_path / "results.json").read_text()) == results
    assert "<svg" in (tmp_path / "curves.svg").read_text()


def test_the_product_on_a_gpu_where_there_is_none():
    way = "and 10 in a call"
    results = measured(
        "gpu.py", "--presets", "tiny", *SMALLEST, "--ways", way, "--updates", "10",
        "--batch-tokens", "512", "--vocab-size", "300", "--batch-sizes",
    )  # fmt: skip
    cell = results["tiny"]["train"][way]
    assert cell["device"] == "CPU" and cell["padding"] < 0.1
    assert cell["tokens_per_second"] > 0 and 5.0 < cell["loss"] < 6.5  # log(300) is 5.7

"""The export to CTranslate2, which gives the same scores, and translations of greedy search."""

import dataclasses
import json
import re
import sys

import commands
import ctranslate2
import keras
import numpy as np
import pages
import pytest
import tensorflow as tf
from commands import run_python
from phrase_models import MAX_LENGTH, VOCAB_SIZE, model_of, our_greedy, padded
from small_runs import write_run

import tf_transformer as tt
from tf_transformer.export.ctranslate2 import export_ctranslate2
from tf_transformer.export.manifest import ExportError, read_manifest, verify_files
from tf_transformer.run_tables import DataConfig
from tf_transformer.runs.restore import translator_of
from tf_transformer.runs.run_directory import RunDirectory


@pytest.fixture(scope="module")
def separate(phrases):
    """A tokenizer for each side, of different sizes."""
    return (
        tt.SentencePieceTokenizer.train(phrases.train.sources, VOCAB_SIZE),
        tt.SentencePieceTokenizer.train(phrases.train.targets, VOCAB_SIZE - 60),
    )


@pytest.fixture(scope="module")
def random_models(phrase_tokenizer, separate, randomise):
    """Models with random weights, biases and norms included: `(model, tokenizers)` of each."""

    def make(norm_first, tied, **changes):
        tokenizers = (phrase_tokenizer, phrase_tokenizer) if tied else separate
        model = model_of(tokenizers, norm_first, tied)
        if changes:
            model = tt.Transformer(dataclasses.replace(model.config, **changes))
        return randomise(model), tokenizers

    return make


def opened(path, compute_type="float32"):
    return ctranslate2.Translator(str(path), compute_type=compute_type, intra_threads=1)


def written(model, tokenizers, tmp_path, **options):
    return export_ctranslate2(model, *tokenizers, tmp_path / "demo", **options)


def log_probs(model, sources, targets, tokenizers):
    """Log-probabilities under teacher forcing `(B, T + 1, V)`, those of the end included."""
    source, target = tokenizers
    logits = model(
        {
            "source_ids": padded([[*ids, source.eos_id] for ids in sources], source.pad_id),
            "target_ids": padded([[target.bos_id, *ids] for ids in targets], target.pad_id),
        }
    )
    return tf.nn.log_softmax(logits).numpy()


@pytest.mark.parametrize(
    ("norm_first", "tied", "changes"),
    [
        (True, True, {}),
        (False, False, {}),
        (True, True, {
            "activation": "gelu", "positions": "learned", "max_positions": MAX_LENGTH + 1,
        }),
        (True, True, {"activation": "swish", "tie_embeddings": False, "tie_output": True}),
        (False, True, {
            "decoder_layers": 1, "output_bias": True, "scale_embeddings": False,
            "layer_norm_epsilon": 0.1, "positions": "sinusoidal_tensor2tensor", "first_position": 1,
        }),
    ],
    ids=str,
)  # fmt: skip
def test_log_probabilities_are_those_of_teacher_forcing(
    random_models, phrases, tmp_path, norm_first, tied, changes
):
    model, tokenizers = random_models(norm_first, tied, **changes)
    path = written(model, tokenizers, tmp_path, max_length=MAX_LENGTH)
    # The models with learned positions have no more.
    sources, targets = (
        [ids[:MAX_LENGTH] for ids in tokenizer.encode(side[:30])]
        for tokenizer, side in zip(
            tokenizers, (phrases.test.sources, phrases.test.targets), strict=True
        )
    )
    scored = opened(path).score_batch(
        [tokenizers[0].subwords(ids) for ids in sources],
        [tokenizers[1].subwords(ids) for ids in targets],
    )
    forced = log_probs(model, sources, targets, tokenizers)
    for rows, target, result in zip(forced, targets, scored, strict=True):
        expected = rows[np.arange(len(target) + 1), [*target, tokenizers[1].eos_id]]
        np.testing.assert_allclose(result.log_probs, expected, atol=1e-3, rtol=0)


def test_a_model_in_half_precision_is_exported_in_float32(random_models, randomise, tmp_path):
    model, tokenizers = random_models(False, False)
    mixed = randomise(model_of(tokenizers, False, False, dtype="mixed_bfloat16"))
    found, expected = (written(each, tokenizers, tmp_path) / "model.bin" for each in (mixed, model))
    assert found.read_bytes() == expected.read_bytes()


# How far rounding may change a log-probability of these models, whose weights are large.
@pytest.mark.parametrize(
    ("quantization", "rounding"),
    [("int8", 1.0), ("bfloat16", 0.4), ("int16", 0.2), ("float16", 0.05)],
)
def test_quantized_weights_are_smaller_and_give_nearly_the_same_scores(
    random_models, phrases, tmp_path, quantization, rounding
):
    model, (tokenizer, _) = random_models(True, True)
    before = [keras.ops.convert_to_numpy(weight).copy() for weight in model.weights]
    full = written(model, (tokenizer, tokenizer), tmp_path)
    options = {"quantization": quantization, "manifest": {"step": 7}}
    path = written(model, (tokenizer, tokenizer), tmp_path, **options)
    assert path == tmp_path / "demo" / "2"
    assert read_manifest(path)["step"] == 7 and verify_files(path) == []
    for side in ("source", "target"):
        assert (path / f"{side}.model").read_bytes() == tokenizer.model
    ratio = (path / "model.bin").stat().st_size / (full / "model.bin").stat().st_size
    # The table of positions stays float32 where weights are integers.
    assert ratio < 0.95
    for weight, kept in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(weight), kept)
    sides = (phrases.test.sources[:20], phrases.test.targets[:20])
    pairs = [[tokenizer.subwords(ids) for ids in tokenizer.encode(side)] for side in sides]
    exact, rounded = (opened(folder).score_batch(*pairs) for folder in (full, path))
    differences = [
        np.abs(np.subtract(a.log_probs, b.log_probs)).max()
        for a, b in zip(exact, rounded, strict=True)
    ]
    assert 1e-4 < max(differences) < rounding


def test_what_cannot_be_exported_is_one_line(random_models, tmp_path, monkeypatch):
    model, tokenizers = random_models(True, True)

    def refused(model, **options):
        with pytest.raises(ExportError) as caught:
            written(model, tokenizers, tmp_path, **options)
        assert list(tmp_path.iterdir()) == []
        (line,) = str(caught.value).splitlines()
        return line

    class Other(tt.Transformer):
        pass

    assert "this model is a Other" in refused(Other(model.config))
    quantized = tt.Transformer(model.config)
    quantized.encoder.layers[0].feed_forward.expand.quantize("int8")
    assert "quantized already" in refused(quantized)
    short = dataclasses.replace(model.config, positions="learned", max_positions=9)
    assert "positions, but the model has max_positions=9" in refused(tt.Transformer(short))
    for name in [name for name in sys.modules if name.split(".")[0] == "ctranslate2"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    assert "pip install ctranslate2" in refused(model)


# The command, and the example of saved_models/README.md


@pytest.fixture(scope="module")
def run_dir(phrase_model, phrase_tokenizer, tmp_path_factory):
    """A run directory with the trained model."""
    path = tmp_path_factory.mktemp("runs") / "run"
    data = DataConfig(corpus="phrasebook", max_length=MAX_LENGTH, fold_capitals=True)
    return write_run(path, phrase_model, [phrase_tokenizer] * 2, data)


@pytest.mark.slow
def test_the_readme_translates_as_we_do_and_without_tensorflow(
    run_dir, phrase_model, phrase_tokenizer, phrases, tmp_path
):
    done = commands.run_here("export", run_dir, tmp_path / "fast", "--format=ctranslate2")
    assert (done.stdout, done.stderr) == (f"{tmp_path / 'fast' / '1'}\n", "")
    data = RunDirectory(run_dir).config().data
    translate = translator_of(data, phrase_model, phrase_tokenizer, phrase_tokenizer)
    # Only those that end by themselves, because the engines have different limits.
    candidates = [s.lower() for s in phrases.test.sources[:60] if "ß" not in s and s.count(" ") > 1]
    _, truncated = our_greedy(phrase_model, phrase_tokenizer.encode(candidates), phrase_tokenizer)
    lines = [line for line, cut in zip(candidates, truncated, strict=True) if not cut][:15]
    assert len(lines) == 15
    lines[::2] = map(str.upper, lines[::2])

    readme = (pages.ROOT / "saved_models" / "README.md").read_text("utf-8")
    (example,) = [b for b in pages.blocks_of(readme, "python") if "import ctranslate2" in b]
    *setup, last = example.splitlines()
    code = "\n".join(["import json, sys", "sys.modules['tensorflow'] = None", *setup])
    code = re.sub(r'"saved_models/[^"]*"', repr(str(tmp_path / "fast" / "1")), code)
    code, replaced = re.subn(r'\["Wo [^\]]*\]', "json.load(sys.stdin)", code)
    assert replaced == 1
    code += f"\nprint(json.dumps({last}))"
    assert json.loads(run_python("-c", code, input=json.dumps(lines))) == translate(lines)

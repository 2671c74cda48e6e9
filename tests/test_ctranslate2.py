"""The export to CTranslate2, which gives the same scores and translations."""

import dataclasses
import sys

import ctranslate2
import keras
import numpy as np
import pytest
import tensorflow as tf
from phrase_models import MAX_LENGTH, VOCAB_SIZE, model_of, our_greedy, padded

import tf_transformer as tt
from tf_transformer.export.ctranslate2 import QUANTIZATIONS, export_ctranslate2
from tf_transformer.export.manifest import ExportError, read_manifest, verify_files

# The engines add in different orders. Of two best tokens nearer than this, either may win.
TIE = 1e-4
ARCHITECTURES = [
    pytest.param(norm_first, tied, id=f"{'pre' if norm_first else 'post'}-norm, {words}")
    for norm_first in (True, False)
    for tied, words in ((True, "tied"), (False, "separate"))
]


@pytest.fixture(scope="module")
def separate(phrases):
    """A tokenizer for each side, of different sizes."""
    return (
        tt.SentencePieceTokenizer.train(phrases.train.sources, VOCAB_SIZE),
        tt.SentencePieceTokenizer.train(phrases.train.targets, VOCAB_SIZE - 60),
    )


CHOICES = [
    {"activation": "gelu", "positions": "learned", "max_positions": MAX_LENGTH + 1},
    {"activation": "swish", "tie_embeddings": False, "tie_output": True},
]


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


def their_greedy(path, source_ids, tokenizers):
    source, target = tokenizers
    ids_of = {target.subwords([i])[0]: i for i in range(target.vocab_size)}
    results = opened(path).translate_batch(
        [source.subwords(ids) for ids in source_ids],
        beam_size=1,
        min_decoding_length=0,  # the default is 1
        max_decoding_length=MAX_LENGTH,
        max_batch_size=32,
    )
    return [[ids_of[subword] for subword in result.hypotheses[0]] for result in results]


def is_a_tie(model, source, ours, theirs, tokenizers):
    """Whether two translations first differ where our model has two almost equal tokens."""
    eos = tokenizers[1].eos_id
    pairs = zip([*ours, eos], [*theirs, eos], strict=False)
    index = next(i for i, (a, b) in enumerate(pairs) if a != b)
    scores = log_probs(model, [source], [ours[:index]], tokenizers)[0, index]
    a, b = [*ours, eos][index], [*theirs, eos][index]
    return abs(scores[a] - scores[b]) < TIE


def assert_same_greedy_tokens(model, tokenizers, sources, path):
    source_ids = tokenizers[0].encode(sources)
    ours, truncated = our_greedy(model, source_ids, tokenizers[1])
    theirs = their_greedy(path, source_ids, tokenizers)
    assert len({tuple(row) for row in ours}) > 20, "translations that differ, or it says little"
    # At the limit one may end where the other is truncated; the tokens before must be the same.
    rows = zip(source_ids, ours, theirs, strict=True)
    parted = [row for row in rows if row[1] != row[2]]
    assert len(parted) <= 2, "ties are rare"
    for source, our, their in parted:
        assert is_a_tie(model, source, our, their, tokenizers)
    return truncated


@pytest.mark.parametrize(
    ("norm_first", "tied", "changes"),
    [
        *(pytest.param(*row.values, {}, id=row.id) for row in ARCHITECTURES),
        *(pytest.param(True, True, row, id=", ".join(map(str, row.values()))) for row in CHOICES),
    ],
)
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


def test_translations_of_random_weights_are_the_same(random_models, phrases, tmp_path):
    model, tokenizers = random_models(False, False)
    path = written(model, tokenizers, tmp_path)
    assert_same_greedy_tokens(model, tokenizers, phrases.test.sources, path)


def test_translations_of_a_trained_model_are_the_same_and_end_alike(
    phrase_model, phrase_tokenizer, phrases, tmp_path
):
    path = written(phrase_model, (phrase_tokenizer, phrase_tokenizer), tmp_path)
    truncated = assert_same_greedy_tokens(
        phrase_model, (phrase_tokenizer, phrase_tokenizer), phrases.test.sources, path
    )
    assert truncated.mean() < 0.2, "most end by themselves, or their ends are not compared"


def test_a_model_of_mixed_precision_is_exported_in_float32(
    phrase_tokenizer, phrases, randomise, tmp_path
):
    tokenizers = (phrase_tokenizer, phrase_tokenizer)
    mixed = randomise(model_of(tokenizers, True, True, dtype="mixed_bfloat16"))
    plain = randomise(model_of(tokenizers, True, True))
    path = written(mixed, tokenizers, tmp_path)
    assert (path / "model.bin").read_bytes() == (
        written(plain, tokenizers, tmp_path) / "model.bin"
    ).read_bytes()


# How far rounding may change a log-probability of these models, whose weights are large.
ROUNDING = {"int8": 1.0, "int16": 0.2, "float16": 0.05, "bfloat16": 0.4}


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_quantized_weights_are_smaller_and_give_nearly_the_same_scores(
    random_models, phrases, tmp_path, quantization
):
    model, tokenizers = random_models(True, True)
    before = [keras.ops.convert_to_numpy(weight).copy() for weight in model.weights]
    full = written(model, tokenizers, tmp_path)
    path = written(model, tokenizers, tmp_path, quantization=quantization)
    assert path.name == "2"
    ratio = (path / "model.bin").stat().st_size / (full / "model.bin").stat().st_size
    # The table of positions stays float32 where weights are integers.
    assert ratio < 0.95
    for weight, kept in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(weight), kept)
    subwords = [
        tokenizers[0].subwords(ids) for ids in tokenizers[0].encode(phrases.test.sources[:20])
    ]
    targets = [
        tokenizers[1].subwords(ids) for ids in tokenizers[1].encode(phrases.test.targets[:20])
    ]
    exact = opened(full).score_batch(subwords, targets)
    rounded = opened(path).score_batch(subwords, targets)
    differences = [
        np.abs(np.subtract(a.log_probs, b.log_probs)).max()
        for a, b in zip(exact, rounded, strict=True)
    ]
    assert 1e-4 < max(differences) < ROUNDING[quantization]


# --- The folder -----------------------------------------------------------------------------


def test_the_folder_holds_model_tokenizers_and_manifest(random_models, tmp_path):
    model, tokenizers = random_models(True, tied=False)
    path = written(model, tokenizers, tmp_path, manifest={"step": 7})
    assert path == tmp_path / "demo" / "1"
    assert {file.name for file in path.iterdir()} == {
        "model.bin", "config.json", "source_vocabulary.json", "target_vocabulary.json",
        "source.model", "target.model", "tf_transformer.json",
    }  # fmt: skip
    assert read_manifest(path)["step"] == 7 and verify_files(path) == []
    for side, tokenizer in zip(("source", "target"), tokenizers, strict=True):
        assert (path / f"{side}.model").read_bytes() == tokenizer.model
    assert written(model, tokenizers, tmp_path).name == "2"


# --- Errors ---------------------------------------------------------------------------------


def refused(model, tokenizers, folder, **options):
    """The one-line error of an export, which leaves nothing behind."""
    with pytest.raises(ExportError) as caught:
        written(model, tokenizers, folder, **options)
    assert list(folder.iterdir()) == []
    (line,) = str(caught.value).splitlines()
    return line


def test_without_the_library_the_error_says_how_to_install_it(random_models, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "ctranslate2"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    assert "pip install ctranslate2" in refused(*random_models(True, True), tmp_path)


def test_what_the_library_cannot_compute_is_refused(random_models, tmp_path):
    model, tokenizers = random_models(True, True)
    line = refused(model, tokenizers, tmp_path, quantization="int9")
    assert "'int9': did you mean 'int8'?" in line

    class Other(tt.Transformer):
        pass

    assert "this model is a Other" in refused(Other(model.config), tokenizers, tmp_path)

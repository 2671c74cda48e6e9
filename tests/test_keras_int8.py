"""A Transformer quantized by Keras: translated with, exported and run in a session."""

import pytest
from letters import MAX_LENGTH, VOCAB_SIZE
from test_saved_model_session import in_session

import tf_transformer as tt

pytestmark = pytest.mark.slow


@pytest.fixture
def trained(phrase_model, phrase_tokenizer, phrases):
    """A model that shares one matrix, what it translates, and its tokenizer."""
    model = tt.Transformer(phrase_model.config)
    model.set_weights(phrase_model.get_weights())
    return model, phrases.test.sources[:60], phrase_tokenizer


@pytest.fixture
def untied(randomise, letter_tokenizer, sentences):
    """A model with an output projection of its own, which Keras does not quantize."""
    config = tt.TransformerConfig(
        VOCAB_SIZE,
        VOCAB_SIZE,
        num_layers=1,
        d_model=128,
        num_heads=2,
        d_ff=256,
        tie_embeddings=False,
    )
    return randomise(tt.Transformer(config)), sentences, letter_tokenizer


# Keras says of each layer that it has no int8 form.
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize")
@pytest.mark.parametrize(("fixture", "largest"), [("trained", 0.35), ("untied", 0.45)])
def test_a_session_translates_as_the_quantized_translator(fixture, largest, request, tmp_path):
    model, texts, tokenizer = request.getfixturevalue(fixture)
    texts = [*texts, "", "a " * 200]

    def translator():
        return tt.Translator.from_model(
            model, tokenizer, tokenizer, tt.Search(max_length=MAX_LENGTH)
        )

    def agreement(translations):
        return sum(map(str.__eq__, translations, expected)) / len(texts)

    tt.export_saved_model(translator(), tmp_path / "float32")
    model.quantize("int8")
    in_memory = translator()
    expected = in_memory(texts)
    assert len(set(expected)) > 40, "translations that differ, or equality says little"
    tt.export_saved_model(in_memory, tmp_path / "int8")
    found = in_session(tmp_path / "int8" / "1", texts)
    assert found["unset"] == []
    # The order of a sum changes a last bit, that the rounding to int8, and this a near tie.
    assert agreement(found["outputs"]["serving_default"]["translation"]) > 0.95
    assert agreement(tt.Translator.load(tmp_path / "int8")(texts)) > 0.95

    def size(name):
        folder = tmp_path / name / "1" / "variables"
        return sum(file.stat().st_size for file in folder.glob("variables.data-*"))

    assert size("int8") < largest * size("float32")

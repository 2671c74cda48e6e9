"""Tests of the contract between a translation model and what decodes with it."""

from types import SimpleNamespace

import pytest
import tensorflow as tf
from step_models import MODELS, STEP_MODELS, make_case, param

from tf_transformer.decoding import TranslationModel, require_translation_model
from tf_transformer.decoding.contract import has_attention_scores, has_teacher_forcing
from tf_transformer.models.transformer import Transformer


def start_decoding(source_ids, num_steps=None, beam_size=None):
    pass


def decode_step(token_ids, index, cache):
    pass


def model_with(**attributes):
    known = {"weights": [], "start_decoding": start_decoding, "decode_step": decode_step}
    given = {name: value for name, value in {**known, **attributes}.items() if value != "missing"}
    return SimpleNamespace(**given)


@pytest.mark.parametrize("name", [param(name) for name in (*STEP_MODELS, *MODELS)])
def test_the_models_of_the_tests_keep_the_contract(name):
    model = make_case(name).model
    if name in STEP_MODELS:
        assert not isinstance(model, TranslationModel)
        with pytest.raises(TypeError, match="needs the attribute weights"):
            require_translation_model(model)
        model.weights = []
    assert isinstance(model, TranslationModel)
    require_translation_model(model)


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"weights": ()},
        {"start_decoding": lambda x, *, beam_size=None, num_steps=None, other=3: None},
        {"start_decoding": lambda source_ids, **kwargs: None},
        {"decode_step": lambda *args: None},
        {"decode_step": lambda a, b, c, training=False: None},
        {"start_decoding": tf.function(start_decoding), "decode_step": tf.function(decode_step)},
        {"decode_step": max},  # has no signature
    ],
)
def test_other_signatures_that_can_be_called_alike_are_accepted(attributes):
    require_translation_model(model_with(**attributes))


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"weights": "missing"}, "needs the attribute weights; SimpleNamespace has none"),
        ({"start_decoding": "missing"}, "needs the method start_decoding"),
        ({"decode_step": "missing"}, "needs the method decode_step"),
        ({"decode_step": 3}, "needs the method decode_step"),
        ({"start_decoding": lambda: None}, r"start_decoding must take source_ids as .* 1; .*\(\)"),
        ({"start_decoding": lambda x: None}, "start_decoding must take the keyword .* num_steps"),
        (
            {"start_decoding": lambda x, num_steps=None: None},
            r"SimpleNamespace.start_decoding must take the keyword argument beam_size; "
            r"received start_decoding\(x, num_steps=None\)",
        ),
        (
            {"start_decoding": lambda source_ids, num_steps, beam_size=None: None},
            "start_decoding must need no arguments but source_ids;",
        ),
        ({"decode_step": lambda token_ids, cache: None}, "must take cache as positional .* 3"),
        ({"decode_step": lambda token_ids, index, *, cache: None}, "must take cache as positional"),
        (
            {"decode_step": lambda a, b, c, d: None},
            "must need no arguments but token_ids, index, c",
        ),
    ],
)
def test_what_is_missing_is_named_in_one_line(attributes, message):
    with pytest.raises(TypeError, match=message) as raised:
        require_translation_model(model_with(**attributes))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (None, "needs the method start_decoding; NoneType has none"),
        (tf.keras.layers.Dense(3), "needs the method start_decoding; Dense has none"),
        (Transformer, "must be an instance; received the class Transformer"),
    ],
)
def test_what_is_no_translation_model_is_a_type_error(model, message):
    with pytest.raises(TypeError, match=message):
        require_translation_model(model)


class WithoutCall(tf.keras.Model):
    """Keras gives it a call that only raises."""


class WithCall(tf.keras.Model):
    def call(self, inputs, training=None):
        pass


@pytest.mark.parametrize(
    ("model", "forces", "attends"),
    [
        (make_case(MODELS[0]).model, True, True),
        (model_with(), False, False),
        (WithoutCall(), False, False),
        (WithCall(), True, False),
        (lambda inputs, training: None, True, False),
        (lambda inputs, training, return_attention_scores=False: None, True, True),
        (lambda inputs: None, False, False),
        (lambda inputs, return_attention_scores=False: None, False, False),
        (max, False, False),  # has no signature
    ],
)
def test_the_optional_call_is_known_by_its_arguments(model, forces, attends):
    assert (has_teacher_forcing(model), has_attention_scores(model)) == (forces, attends)

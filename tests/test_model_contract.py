"""The contract between a translation model and what decodes with it."""

import pytest
from small_models import CONFIGS, GENERATING, small_model
from step_models import MODELS, make_case, param

from tf_transformer.decoding import TranslationModel
from tf_transformer.inference.scoring import has_attention_scores, has_teacher_forcing


@pytest.mark.parametrize("name", [param(name) for name in MODELS])
def test_models_that_generate_keep_the_contract(name):
    assert isinstance(make_case(name).model, TranslationModel)


@pytest.mark.parametrize("name", ["masked_lm", "sutskever", "transformer"])
def test_what_a_model_can_do_is_read_from_its_call(name):
    model = small_model(name)
    assert has_teacher_forcing(model) and name in CONFIGS
    assert has_attention_scores(model) == (name == "transformer")
    assert (name in GENERATING) == isinstance(model, TranslationModel) == (name != "masked_lm")

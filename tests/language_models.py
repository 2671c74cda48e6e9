"""Stand-ins for language models: a Transformer whose source is the end alone, and one that cannot
be decoded."""

import dataclasses

from tf_transformer.config import ModelChoice
from tf_transformer.models.architectures import ARCHITECTURES, Architecture
from tf_transformer.models.configs import TransformerConfig
from tf_transformer.models.transformer import Transformer

SIZES = {"num_layers": 1, "d_model": 16, "d_ff": 32, "num_heads": 2}


class CompleterConfig(TransformerConfig):
    pass


class ScorerConfig(TransformerConfig):
    pass


class Completer(Transformer):
    config_class = CompleterConfig


class Scorer(Transformer):
    config_class = ScorerConfig
    start_decoding = decode_step = None


def register(monkeypatch):
    """Makes `completer` and `scorer` architectures for the time of a test."""
    for config, model in ((CompleterConfig, Completer), (ScorerConfig, Scorer)):
        row = Architecture(config, lambda model=model: model, {"tiny": SIZES}, trains_on_text=True)
        monkeypatch.setitem(ARCHITECTURES, model.__name__.lower(), row)
    (field,) = (f for f in dataclasses.fields(ModelChoice) if f.name == "architecture")
    metadata = {**field.metadata, "choices": tuple(ARCHITECTURES)}
    monkeypatch.setattr(field, "metadata", metadata)

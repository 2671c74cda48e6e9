"""The speed of training is measured without a trace."""

import dataclasses

import numpy as np
import pytest

import tf_transformer as tt
from tf_transformer.runs.compile import seconds_per_batch


@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_model_is_as_it_was(copy_corpus, accumulation, monkeypatch):
    tokenizer = tt.SentencePieceTokenizer.train(copy_corpus.train.sources, 280)
    batches = tt.TokenBatches.from_text(copy_corpus.train, tokenizer, tokenizer, seed=0)
    sizes = {"num_layers": 1, "d_model": 16, "num_heads": 2, "d_ff": 16}
    model = tt.Transformer(dataclasses.replace(tt.preset("tiny", 280, 280), **sizes))
    optimizer = tt.Adam(0.01)
    if accumulation > 1:
        optimizer = tt.GradientAccumulation(optimizer, accumulation)
    model.compile(optimizer, tt.SmoothedCrossEntropy())
    model.optimizer.build(model.trainable_variables)
    variables = [*model.variables, *model.optimizer.variables]
    before = [variable.numpy() for variable in variables]
    trained = []
    step = type(model).train_step

    def train_step(self, data):
        trained.append(data)
        return step(self, data)

    monkeypatch.setattr(type(model), "train_step", train_step)
    assert seconds_per_batch(model, batches.dataset(accumulation=accumulation), 4) > 0
    assert len(trained) == 1, "a graph was built"
    for variable, value in zip(variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value, err_msg=variable.path)
    model.fit(
        batches.dataset(accumulation=accumulation), steps_per_epoch=4, shuffle=False, verbose=0
    )
    assert len(trained) == 1, "and is not built again"
    assert model.optimizer.iterations.numpy() == 4 // accumulation

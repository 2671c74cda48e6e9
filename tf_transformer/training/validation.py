"""Validation of a model without translating: loss, accuracy and perplexity of a text."""

from collections.abc import Iterable

import keras

from tf_transformer.config import RunConfig
from tf_transformer.data.batching import TokenBatches
from tf_transformer.tokenizers.sentencepiece import SentencePieceTokenizer
from tf_transformer.training.compilation import compile_for_validation

Tokenizers = tuple[SentencePieceTokenizer, SentencePieceTokenizer]


class Validation:
    """Computes the metrics of a text that training logs as `val_loss` and so on.

    Args:
        config: The complete configuration of the run.
        model: Its model, which is compiled anew; the present weights are always used.
        tokenizers: Those of source and target.
        text: The sentence pairs, as `TokenBatches.from_text` takes them; sources may be empty.

    Attributes:
        batches: The text.

    Raises:
        DataError: No pair is short enough.
    """

    def __init__(
        self,
        config: RunConfig,
        model: keras.Model,
        tokenizers: Tokenizers,
        text: Iterable[tuple[str, str]],
    ) -> None:
        compile_for_validation(model, config.training)
        self._model = model
        self._labels_as_input = config.training.chunked_logits
        self.batches = TokenBatches.from_text(
            text,
            *tokenizers,
            batch_tokens=config.data.batch_tokens,
            max_length=config.data.max_length,
        )

    def __call__(self) -> dict[str, float]:
        """`loss`, `accuracy` and `perplexity`: means over all tokens, the ends included."""
        dataset = self.batches.dataset(num_epochs=1, labels_as_input=self._labels_as_input)
        return self._model.evaluate(dataset, verbose=0, return_dict=True)

"""A callback for any `fit` that scores translations of validation text."""

from collections.abc import Callable
from typing import Any

import keras

from tf_transformer.data.text import ParallelText
from tf_transformer.evaluation import corpus_score

Logs = dict[str, Any] | None


class TranslationBleu(keras.callbacks.Callback):
    """Callback that translates validation sentences and scores the translations.

    It adds `val_bleu`, `val_chrf` and `val_length_ratio` (tokens in the translations over tokens in
    the references) to the logs. Put it before callbacks that read the logs.

    Args:
        translate: Function that translates a list of str with the current weights of the model,
            such as the result of `Translator.from_model`.
        parallel_text: Sentences to translate, and their references.
        num_samples: Number of translations to show.
        show: Function that shows a line.
        suffix: End of the names in the logs, such as `_2` for a second validation set.

    Example:
        >>> pairs = tt.ParallelText(["Wo ist der Bahnhof?"], ["Where is the station?"])
        >>> callback = tt.TranslationBleu(lambda texts: list(pairs.targets), pairs, num_samples=1)
        >>> callback.on_epoch_end(0, logs := {})
          Wo ist der Bahnhof?  →  Where is the station?
        >>> round(logs["val_bleu"]), logs["val_length_ratio"]
        (100, 1.0)
    """

    def __init__(
        self,
        translate: Callable[[list[str]], list[str]],
        parallel_text: ParallelText,
        num_samples: int = 0,
        show: Callable[[str], None] = print,
        suffix: str = "",
    ) -> None:
        super().__init__()
        self._translate, self._text = translate, parallel_text
        self._num_samples, self._show, self._suffix = num_samples, show, suffix

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        translations = self._translate(list(self._text.sources))
        scores = corpus_score(translations, list(self._text.targets))
        if logs is not None:
            found = {**scores.metrics("val_"), "val_length_ratio": scores.length_ratio}
            logs.update({f"{name}{self._suffix}": value for name, value in found.items()})
        samples = list(zip(self._text.sources, translations, strict=True))[: self._num_samples]
        for source, translation in samples:
            self._show(f"  {source}  →  {translation.strip() or '(nothing)'}")

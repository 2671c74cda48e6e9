"""Translation with a SavedModel as a server does it."""

import pathlib
from collections.abc import Sequence

from tf_transformer.machine import num_cores, only_errors_of_tensorflow

_BATCH_SIZE = 64  # sentences, as `Translator` has them


def translate_in_session(folder: pathlib.Path, texts: Sequence[str]) -> list[str]:
    """Translate lines as a server does."""
    from tf_transformer.inference.streams import translate_in_order
    from tf_transformer.serving.session import SavedModelSession

    def translate(batch: list[str]) -> list[str]:
        found = model.run("serving_default", {"text": [text.encode() for text in batch]})
        return [text.decode() for text in found["translation"]]

    with only_errors_of_tensorflow():  # one of the functions that load is deprecated
        model = SavedModelSession(folder)
    return list(translate_in_order(iter(texts), translate, _BATCH_SIZE, num_cores()))

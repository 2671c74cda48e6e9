"""The choice of the layer whose attention aligns best, without alignments made by hand."""

from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from tf_transformer.decoding import TranslationModel
from tf_transformer.inference.scoring import (
    Alignment,
    TeacherForcing,
    can_align,
    default_alignment,
)
from tf_transformer.inference.tokens import TextReader
from tf_transformer.tokenizers import GraphTokenizer

_MAX_PAIRS = 1000
_BATCH_SIZE = 32
_TEXT = tf.TensorSpec([None], tf.string)


def choose_alignment(
    model: TranslationModel,
    source_tokenizer: GraphTokenizer,
    target_tokenizer: GraphTokenizer,
    pairs: Iterable[tuple[str, str]],
    max_length: int = 128,
) -> Alignment | None:
    """Chooses the layer whose attention agrees best on tokens that source and target share.

    Names, numbers and punctuation translate to themselves. A token that its sentence has more than
    once does not count.

    Args:
        model: The model, built.
        source_tokenizer: Tokenizer of the source.
        target_tokenizer: Tokenizer of the target.
        pairs: Sources and their translations, such as validation text. Of more than a thousand a
            sample from all parts of the text is used.
        max_length: Tokens that each side may have, its end included.

    Returns:
        The alignment; `default_alignment` where the pairs share no token; None where model or
        tokenizers lack something, see `can_align`.
    """
    readers = [TextReader(each, max_length) for each in (source_tokenizer, target_tokenizer)]
    if not can_align(model, *readers):
        return None
    forced = TeacherForcing(model, *readers)
    most_attended = tf.function(forced.most_attended, [_TEXT, _TEXT], autograph=False)
    pairs = list(pairs)
    sample = np.linspace(0, len(pairs), min(len(pairs), _MAX_PAIRS), endpoint=False).astype(int)
    # Like lengths go together; an empty pair tells the number of layers, too.
    sample = sorted((pairs[index] for index in sample), key=lambda pair: len(pair[0]))
    sample = sample or [("", "")]
    right, num_tokens = 0, 0
    for start in range(0, len(sample), _BATCH_SIZE):
        sources, targets = zip(*sample[start : start + _BATCH_SIZE], strict=True)
        found = most_attended(tf.constant(sources), tf.constant(targets))
        found = {name: tensor.numpy() for name, tensor in found.items()}
        for row, source_index in enumerate(found["source_index"]):
            source, target = (
                found[f"{side}_subwords"][row, : found[f"{side}_lengths"][row]].tolist()
                for side in ("source", "target")
            )
            for place, token in enumerate(target):
                if source.count(token) == target.count(token) == 1:
                    # The attention that predicts the token, and the one that reads it.
                    right += source_index[place : place + 2] == source.index(token)
                    num_tokens += 1
    if not num_tokens:
        return default_alignment(found["source_index"].shape[2])
    agreement = right.T / num_tokens
    layer, shifted = np.unravel_index(agreement.argmax(), agreement.shape)
    best = round(float(agreement[layer, shifted]), 4)
    return Alignment(int(layer), bool(shifted), best, num_tokens)

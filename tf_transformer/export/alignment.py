"""Choice of the layer whose attention aligns best, without alignments made by hand."""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf

from tf_transformer.decoding.translation_model import TranslationModel
from tf_transformer.inference.scoring import Alignment, TeacherForcing, can_align, default_alignment
from tf_transformer.inference.text_reader import TextReader
from tf_transformer.tokenizers import GraphTokenizer

_MAX_PAIRS = 1000  # as many as a run holds out at most
_BATCH_SIZE = 32  # of which the attention of all layers is in memory
_TEXT = tf.TensorSpec([None], tf.string)


def choose_alignment(
    model: TranslationModel,
    source_tokenizer: GraphTokenizer,
    target_tokenizer: GraphTokenizer,
    pairs: Iterable[tuple[str, str]],
    max_length: int = 128,
    source_tag: str = "",
) -> Alignment | None:
    """Choose the layer whose attention agrees best with `linked_tokens`.

    At most a thousand of the `pairs` of sources and translations are used. `source_tag` stands in
    front of each source, and each side is cut to `max_length` tokens, its end included. Returns
    `default_alignment` if no tokens are linked, and None if the model or a tokenizer cannot align
    (see `can_align`).
    """
    source_reader = TextReader(source_tokenizer, max_length, tag=source_tag)
    readers = source_reader, TextReader(target_tokenizer, max_length)
    if not can_align(model, *readers):
        return None
    forced = TeacherForcing(model, *readers)
    attend = tf.function(forced.attend, [_TEXT, _TEXT], autograph=False)
    pairs = list(pairs)
    sample = np.linspace(0, len(pairs), min(len(pairs), _MAX_PAIRS), endpoint=False).astype(int)
    # Pairs of similar length share a batch; an empty pair still shows the number of layers.
    sample = sorted((pairs[index] for index in sample), key=lambda pair: len(pair[0]))
    sample = sample or [("", "")]
    sources, targets, indices = [], [], []
    for start in range(0, len(sample), _BATCH_SIZE):
        batch = zip(*sample[start : start + _BATCH_SIZE], strict=True)
        found, layers = attend(*(tf.constant(side) for side in batch))
        # Leave out the end token of the source.
        lengths = found["source_lengths"] - 1
        sources += tf.RaggedTensor.from_tensor(found["source_subwords"], lengths).to_list()
        lengths = found["target_lengths"]
        targets += tf.RaggedTensor.from_tensor(found["target_subwords"], lengths).to_list()
        # For each pair, the source token that each layer attends to most, `(T + 1, layers)`.
        indices += list(np.stack([layer.numpy().argmax(axis=2) for layer in layers], axis=2))
    # Compare both the attention that predicts a link's target token and the one that reads it.
    right = [
        source_index[target : target + 2] == source
        for source_index, links in zip(indices, linked_tokens(sources, targets), strict=True)
        for source, target in links
    ]
    if not right:
        return default_alignment(indices[0].shape[1])
    agreement = np.mean(right, axis=0).T
    layer, shifted = np.unravel_index(agreement.argmax(), agreement.shape)
    best = round(float(agreement[layer, shifted]), 4)
    return Alignment(int(layer), bool(shifted), best, len(right))


def linked_tokens(
    sources: Sequence[Sequence[bytes]], targets: Sequence[Sequence[bytes]]
) -> list[list[tuple[int, int]]]:
    """Link the tokens of each pair that are each other's best match.

    Matches are measured by Dice's coefficient: twice the number of pairs that have both tokens,
    divided by the sum of the numbers of pairs that have each. A token that occurs more than once
    in its sentence gets no link. Returns the indices `(source, target)` of the links in each pair.
    """
    num_sources, num_targets, num_both = Counter(), Counter(), Counter()
    for source, target in zip(map(set, sources), map(set, targets), strict=True):
        num_sources.update(source)
        num_targets.update(target)
        num_both.update(itertools.product(source, target))

    def dice(source: bytes, target: bytes) -> float:
        both = num_both[source, target]
        return 2 * both / (num_sources[source] + num_targets[target]) if both > 1 else 0.0

    links = []
    for source, target in zip(sources, targets, strict=True):
        table = np.array([[dice(s, t) for t in target] for s in source])
        best = table.argmax(0) if table.size else []
        links.append(
            [
                (int(i), j)
                for j, i in enumerate(best)
                if table[i].argmax() == j and table[i, j] > 0
                if source.count(source[i]) == target.count(target[j]) == 1
            ]
        )
    return links

"""The choice of the attention heads that align best, without alignments made by hand."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from tf_transformer.decoding.contract import TranslationModel
from tf_transformer.inference.ibm_model import reliable_links
from tf_transformer.inference.scoring import (
    Alignment,
    TeacherForcing,
    can_align,
    default_alignment,
)
from tf_transformer.tokenizers import GraphTokenizer

_MAX_PAIRS = 1000
_MAX_CELLS = 2_000_000  # pairs of tokens that IBM Model 1 compares
_BATCH_SIZE = 32
_TEXT = tf.TensorSpec([None], tf.string)


def choose_alignment(
    model: TranslationModel,
    source_tokenizer: GraphTokenizer,
    target_tokenizer: GraphTokenizer,
    pairs: Iterable[tuple[str, str]],
    max_length: int = 128,
) -> Alignment | None:
    """Chooses a layer and heads whose attention agrees with the links of IBM Model 1.

    The same model and pairs give the same choice.

    Args:
        model: The model, built.
        source_tokenizer: Tokenizer of the source.
        target_tokenizer: Tokenizer of the target.
        pairs: Sources and their translations, such as validation text. Of more than a thousand,
            or of very long ones, a sample is used.
        max_length: Tokens that each side may have, its end included.

    Returns:
        The alignment; `default_alignment` where the pairs have no link, as when there is no pair;
        None where model or tokenizers lack something, see `can_align`.
    """
    if not can_align(model, source_tokenizer, target_tokenizer):
        return None
    forced = TeacherForcing(model, source_tokenizer, target_tokenizer, max_length)
    # Of a pair without tokens the number of layers and heads is known, too.
    found = _attention(forced, [*_sample(list(pairs)), ("", "")])
    sources, targets, attention = zip(*found, strict=True)
    chosen = choose_heads(attention, reliable_links(sources, targets))
    return chosen or default_alignment(*attention[0].shape[1:3])


def choose_heads(attention: Sequence[np.ndarray], links: Sequence[np.ndarray]) -> Alignment | None:
    """Chooses by agreement: on what fraction of the links the linked source token is the highest.

    For each layer, shifted and not, the heads are added to their mean from the best one on, as
    long as the agreement rises. The layer that comes highest is taken.

    Args:
        attention: For each pair, of which there is one at least, `(T + 1, layers, H, S)`; row t
            predicts target token t.
        links: For each pair ints `(links, 2)`, indices of a source and a target token.

    Returns:
        The alignment; None where there is no link.
    """
    length = max(weights.shape[-1] for weights in attention)
    rows, expected = [], []
    for weights, (sources, targets) in zip(attention, (ls.T for ls in links), strict=True):
        both = np.stack([weights[targets], weights[targets + 1]], axis=1)
        padding = [(0, 0)] * 4 + [(0, length - weights.shape[-1])]
        rows.append(np.pad(both, padding).astype(np.float16))
        expected.append(sources)
    if not sum(map(len, expected)):
        return None
    num_pairs = sum(len(indices) > 0 for indices in expected)
    rows, expected = np.concatenate(rows), np.concatenate(expected)

    def agreement(shifted, layer, heads):
        mean = rows[:, int(shifted), layer, heads].mean(axis=1, dtype=np.float32)
        return round(float(np.mean(mean.argmax(axis=1) == expected)), 4)

    best = None
    for layer in range(rows.shape[2]):
        for shifted in (False, True):
            alone = [agreement(shifted, layer, [head]) for head in range(rows.shape[3])]
            heads, reached = [], -1.0
            for head in np.argsort(np.negative(alone), kind="stable").tolist():
                together = agreement(shifted, layer, [*heads, head])
                if together > reached:
                    heads, reached = [*heads, head], together
            if best is None or reached > best.agreement:
                best = Alignment(layer, tuple(sorted(heads)), shifted, reached, num_pairs)
    return best


def _sample(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """At most so many pairs, from all parts of the text, the short ones first."""
    chosen = np.linspace(0, len(pairs), min(len(pairs), _MAX_PAIRS), endpoint=False).astype(int)
    return sorted((pairs[index] for index in chosen), key=lambda pair: len(pair[0]))


def _attention(
    forced: TeacherForcing, pairs: list[tuple[str, str]]
) -> Iterator[tuple[list[bytes], list[bytes], np.ndarray]]:
    """Subwords of source and target, without ends, and the attention of all heads of pairs."""
    all_heads = tf.function(forced.all_heads, input_signature=[_TEXT, _TEXT], autograph=False)
    num_cells = 0
    for start in range(0, len(pairs), _BATCH_SIZE):
        batch = pairs[start : start + _BATCH_SIZE]
        found = all_heads(*(tf.constant(side) for side in zip(*batch, strict=True)))
        found = {name: tensor.numpy() for name, tensor in found.items()}
        for row, attention in enumerate(found["attention"]):
            length, target_length = found["source_lengths"][row], found["target_lengths"][row]
            source = found["source_subwords"][row, : length - 1].tolist()
            target = found["target_subwords"][row, :target_length].tolist()
            yield source, target, attention[: target_length + 1, ..., :length]
            num_cells += length * target_length
        if num_cells > _MAX_CELLS:
            return

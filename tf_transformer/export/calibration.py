"""An export measures on its validation text how long and how good translations usually are."""

import numpy as np
import sacrebleu
import tensorflow as tf

from tf_transformer.data.text import ParallelText
from tf_transformer.inference.flags import SMOOTHING, Usual
from tf_transformer.inference.translator import Translator
from tf_transformer.normalization import composed

_FEWEST_PAIRS = 50
_BINS = 20
_PERCENTILES = 0.5, 99.5


def calibrate(translator: Translator, validation: ParallelText, **options: float) -> Usual | None:
    """Measure the ratios of lengths and the chrF of translations; None for fewer than 50 pairs.

    The `options` are those of the search, see `Translator.stream`. The chrF of a translation rises
    with its log-probability per token, or stays, by isotonic regression over twenty bins of equally
    many sentences.
    """
    if len(validation) < _FEWEST_PAIRS:
        return None
    sources = tf.constant(validation.sources)
    source_lengths = translator.module.tokenize(sources)[3].numpy() + SMOOTHING
    probabilities = translator.score(validation.sources, validation.targets)
    target_lengths = np.array([each.num_tokens - 1 + SMOOTHING for each in probabilities])
    ratios = np.percentile(target_lengths / source_lengths, _PERCENTILES)
    found = [best for (best,) in translator.stream(validation.sources, **options)]
    per_token = np.array([best.log_prob / (best.length + 1) for best in found])
    metric = sacrebleu.CHRF()
    chrf = np.array([
        metric.sentence_score(composed(best.text), [composed(reference)]).score
        for best, reference in zip(found, validation.targets, strict=True)
    ])  # fmt: skip
    order = np.argsort(per_token)
    bins = np.array_split(order, min(_BINS, len(order) // 10))
    xs, ys = ([float(values[rows].mean()) for rows in bins] for values in (per_token, chrf))
    return Usual(tuple(map(float, ratios)), tuple(zip(xs, isotonic(ys), strict=True)))


def isotonic(values: list[float]) -> list[float]:
    """Return the rising values nearest to the given ones.

    A value becomes the largest, over all beginnings up to it, of the smallest mean to an end from
    it on: the max-min formula of isotonic regression.
    """

    def smallest_mean(begin: int, place: int) -> float:
        return min(float(np.mean(values[begin:end])) for end in range(place + 1, len(values) + 1))

    return [max(smallest_mean(b, place) for b in range(place + 1)) for place in range(len(values))]

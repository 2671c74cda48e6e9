"""The graph of a translator, as it is saved: tokenize, encode, search, detokenize."""

import keras
import tensorflow as tf

# Registers the ops of SentencePiece; a SavedModel that holds them does not load without.
import tensorflow_text  # noqa: F401

from tf_transformer.decoding.beam import beam_search, length_penalty
from tf_transformer.decoding.greedy import greedy_search
from tf_transformer.decoding.hypotheses import RankedHypotheses, output_limits

_LARGEST_BEAM = 1024
# The score where a text has fewer hypotheses than asked for: below all others, and finite, since
# JSON has no infinity and servers write `-Infinity`, which clients refuse.
MISSING_SCORE = -1e9
_TEXT = tf.TensorSpec([None], tf.string, name="text")
_SOURCE = (
    tf.TensorSpec([None, None], tf.int32, name="source_ids"),
    tf.TensorSpec([None], tf.int32, name="limits"),
)
_BEAM = (
    tf.TensorSpec([], tf.int32, name="beam_size"),
    tf.TensorSpec([], tf.float32, name="alpha"),
    tf.TensorSpec([], tf.int32, name="n_best"),
)
# What a search compiled by XLA takes, whose beams have constant sizes, and what holds it.
SEARCH_SPECS = (*_SOURCE, _BEAM[1])
COMPILED_SPECS = (_TEXT, _BEAM[1], tf.TensorSpec([], tf.int32, name="batch_size"))


class ExportTranslator(tf.Module):
    """The functions of a translator. All are saved; two of them are signatures.

    It holds the model's weights and nothing else of Keras, so that a SavedModel of it loads
    wherever TensorFlow and the ops of TensorFlow Text are.

    Args:
        model: a translation model with `start_decoding` and `decode_step`.
        source_tokenizer, target_tokenizer: tokenizers with `tokenize` and `detokenize`.
        max_length: int, pieces a source may have (the rest is cut off), the end id included, and
            the limit of any translation.
        beam_size: int, hypotheses that the signature `serving_default` follows; 1 is greedy.
        alpha: float, its length penalty.

    Attributes:
        settings: dict of scalar variables `beam_size`, `alpha` and `vocab_size` (the target's).

    Raises:
        ValueError: `max_length` is less than 2, or no search can be made with `beam_size` and
            `alpha`.
    """

    def __init__(
        self, model, source_tokenizer, target_tokenizer, max_length=128, beam_size=1, alpha=0.6
    ):
        super().__init__(name="translator")
        if max_length < 2:
            raise ValueError(
                f"max_length must be at least 2, a piece and the end id; "
                f"received max_length={max_length}."
            )
        check_search(beam_size, alpha, target_tokenizer.vocab_size)
        # The variables of TensorFlow: beside a `keras.Variable` that a module holds Keras saves
        # a second one, and a server would restore that and not the one that the graph reads.
        self.weights = [w.value if isinstance(w, keras.Variable) else w for w in model.weights]
        self.assets = [source_tokenizer.graph_resource, target_tokenizer.graph_resource]
        self.settings = {
            "beam_size": tf.Variable(beam_size, trainable=False),
            "alpha": tf.Variable(float(alpha), trainable=False),
            "vocab_size": tf.Variable(target_tokenizer.vocab_size, trainable=False),
        }
        special = {name: getattr(target_tokenizer, name) for name in ("pad_id", "bos_id", "eos_id")}

        def function(*specs):
            return lambda f: tf.function(f, input_signature=specs, autograph=False)

        @function(_TEXT)
        def tokenize(text):
            """`source_ids (B, S)`, `limits (B,)`, and `cut (B,)`, whether the source was."""
            pieces = source_tokenizer.tokenize(_valid_utf8(text))
            cut = pieces.row_lengths() > max_length - 1
            pieces = pieces[:, : max_length - 1]
            lengths = tf.cast(pieces.row_lengths(), tf.int32)
            ends = tf.fill([pieces.nrows(), 1], source_tokenizer.eos_id)
            source_ids = tf.concat([pieces, ends], axis=1).to_tensor(source_tokenizer.pad_id)
            # What has no piece has no translation.
            limits = tf.where(lengths == 0, 0, output_limits(lengths, max_length))
            return source_ids, limits, cut

        def detokenize(hypotheses, cut):
            """The texts of ranked hypotheses, `(B, n)`, and what is to be known of them."""
            batch_size, n_best = tf.unstack(tf.shape(hypotheses.lengths))
            ids = tf.reshape(hypotheses.ids, [batch_size * n_best, tf.shape(hypotheses.ids)[2]])
            rows = tf.RaggedTensor.from_tensor(ids, tf.reshape(hypotheses.lengths, [-1]))
            truncated = hypotheses.truncated & (hypotheses.lengths > 0)
            return {
                "translations": tf.reshape(target_tokenizer.detokenize(rows), [batch_size, n_best]),
                "scores": tf.maximum(hypotheses.scores, MISSING_SCORE),
                "log_probs": tf.maximum(hypotheses.log_probs, MISSING_SCORE),
                "lengths": hypotheses.lengths,
                "truncated": truncated | cut[:, None],
            }

        def search_greedily(source_ids, limits, alpha, num_steps=None):
            cache = model.start_decoding(source_ids, num_steps=num_steps)
            found = greedy_search(model.decode_step, cache, limits, num_steps=num_steps, **special)
            factors = found.lengths + tf.cast(~found.truncated, tf.int32)
            scores = found.log_probs / length_penalty(factors, alpha)
            found = RankedHypotheses(
                found.ids, found.lengths, found.log_probs, scores, found.truncated
            )
            return RankedHypotheses(*(field[:, None] for field in found))

        def search_with_beam(source_ids, limits, beam_size, alpha, n_best, num_steps=None):
            cache = model.start_decoding(source_ids, num_steps=num_steps, beam_size=beam_size)
            return beam_search(
                model.decode_step, cache, limits, beam_size=beam_size, alpha=alpha,
                n_best=n_best, num_steps=num_steps, **special,
            )  # fmt: skip

        def most_steps(source_ids):
            """Known from the shape, as XLA needs it."""
            return output_limits(tf.shape(source_ids)[1], max_length) + 1

        @function(_TEXT, _BEAM[1])
        def greedy(text, alpha):
            source_ids, limits, cut = tokenize(text)
            return detokenize(search_greedily(source_ids, limits, alpha), cut)

        @function(_TEXT, *_BEAM)
        def beam(text, beam_size, alpha, n_best):
            source_ids, limits, cut = tokenize(text)
            found = search_with_beam(source_ids, limits, beam_size, alpha, n_best)
            return detokenize(found, cut)

        @function(*SEARCH_SPECS)
        def fixed_greedy(source_ids, limits, alpha):
            return search_greedily(source_ids, limits, alpha, most_steps(source_ids))._asdict()

        @function(*_SOURCE, *_BEAM)
        def fixed_beam(source_ids, limits, beam_size, alpha, n_best):
            return search_with_beam(
                source_ids, limits, beam_size, alpha, n_best, most_steps(source_ids)
            )._asdict()

        @function(
            tf.TensorSpec([None, None, None], tf.int32),
            tf.TensorSpec([None, None], tf.int32),
            tf.TensorSpec([None, None], tf.float32),
            tf.TensorSpec([None, None], tf.float32),
            tf.TensorSpec([None, None], tf.bool),
            tf.TensorSpec([None], tf.bool),
        )
        def finish(ids, lengths, log_probs, scores, truncated, cut):
            return detokenize(RankedHypotheses(ids, lengths, log_probs, scores, truncated), cut)

        @function(_TEXT)
        def translate(text):
            """The signature `serving_default`, with the one output that servers return flat."""
            found = greedy(text, alpha) if beam_size == 1 else beam(text, beam_size, alpha, 1)
            return {"translation": found["translations"][:, 0]}

        n_best = beam_size if beam_size > 1 else min(4, target_tokenizer.vocab_size)

        @function(_TEXT)
        def translate_nbest(text):
            """The signature `translate_nbest`: the best hypotheses, best first."""
            found = beam(text, n_best, alpha, n_best)
            return {name: found[name] for name in ("translations", "scores", "lengths")} | {
                "truncated": tf.reduce_any(found["truncated"], axis=1)
            }

        self.translate, self.translate_nbest = translate, translate_nbest
        # For those who call the loaded object: any beam, and the parts that XLA can compile.
        self.greedy, self.beam = greedy, beam
        self.tokenize, self.finish = tokenize, finish
        self.fixed_greedy, self.fixed_beam = fixed_greedy, fixed_beam

    def signatures(self):
        """The signatures of its SavedModel."""
        return {"serving_default": self.translate, "translate_nbest": self.translate_nbest}


def check_search(beam_size, alpha, vocab_size):
    """Refuses what no search can be made with.

    Raises:
        ValueError: `beam_size` is not from 1 to the size of the vocabulary or beyond all sense,
            or `alpha` is negative or beyond all sense.
    """
    largest, what = min((_LARGEST_BEAM, "the most there can be"), (vocab_size, "the vocabulary"))
    if not 1 <= beam_size <= largest:
        raise ValueError(
            f"beam_size must be from 1 to {largest}, {what}; received beam_size={beam_size}. "
            f"Usual is 4."
        )
    if not 0 <= alpha <= 10:
        raise ValueError(
            f"the length penalty must be from 0 to 10; received {alpha}. Usual is 0.6."
        )


def _valid_utf8(text):
    """Replaces bytes that are not UTF-8 by U+FFFD, so that one bad text harms no other."""
    return tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")

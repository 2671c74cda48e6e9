"""The translator: text in, text out, from a model in memory or a SavedModel on disk."""

import tensorflow as tf

# Registers the ops of SentencePiece; a SavedModel that holds them does not load without.
import tensorflow_text  # noqa: F401

from tf_transformer.decoding.greedy import greedy_search
from tf_transformer.decoding.hypotheses import output_limits
from tf_transformer.export.saved_model import (
    find_saved_model,
    load_saved_model,
    write_saved_model,
)
from tf_transformer.export.versions import ExportError


class ExportTranslator(tf.Module):
    """The graph of a translator, as it is saved: tokenize, encode, decode, detokenize.

    It holds the model's weights and nothing else of Keras, so that a SavedModel of it loads
    wherever TensorFlow and the ops of TensorFlow Text are.

    Args:
        model: a translation model with `start_decoding` and `decode_step`.
        source_tokenizer, target_tokenizer: tokenizers with `tokenize` and `detokenize`.
        max_length: int, pieces a source may have (the rest is cut off), the end id included, and
            the limit of any translation.

    Raises:
        ValueError: `max_length` is less than 2.
    """

    def __init__(self, model, source_tokenizer, target_tokenizer, max_length=128):
        super().__init__(name="translator")
        if max_length < 2:
            raise ValueError(
                f"max_length must be at least 2, a piece and the end id; "
                f"received max_length={max_length}."
            )
        self.weights = model.weights
        self.assets = [source_tokenizer.graph_resource, target_tokenizer.graph_resource]
        self.translate = _translate_function(model, source_tokenizer, target_tokenizer, max_length)


def _translate_function(model, source_tokenizer, target_tokenizer, max_length):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")], autograph=False)
    def translate(text):
        pieces = source_tokenizer.tokenize(_valid_utf8(text))[:, : max_length - 1]
        lengths = tf.cast(pieces.row_lengths(), tf.int32)
        ends = tf.fill([pieces.nrows(), 1], source_tokenizer.eos_id)
        source_ids = tf.concat([pieces, ends], axis=1).to_tensor(source_tokenizer.pad_id)
        # What has no piece has no translation.
        limits = tf.where(lengths == 0, 0, output_limits(lengths, max_length))
        hypotheses = greedy_search(
            model.decode_step,
            model.start_decoding(source_ids),
            limits,
            pad_id=target_tokenizer.pad_id,
            bos_id=target_tokenizer.bos_id,
            eos_id=target_tokenizer.eos_id,
        )
        ids = tf.RaggedTensor.from_tensor(hypotheses.ids, hypotheses.lengths)
        return {"translation": target_tokenizer.detokenize(ids)}

    return translate


def _valid_utf8(text):
    """Replaces bytes that are not UTF-8 by U+FFFD, so that one bad text harms no other."""
    return tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")


class Translator:
    """Translates a string or a list of strings.

    Make one with `Translator.load(path)` from a SavedModel, or with `Translator.from_model` from
    a model in memory; both run the same graph.

    Args:
        signature: `(text=string tensor (B,)) -> {"translation": string tensor (B,)}`.
        module: the object whose signature it is. It is kept alive, and saved by `save`.
    """

    def __init__(self, signature, module):
        self._signature = signature
        self._module = module

    @classmethod
    def from_model(cls, model, source_tokenizer, target_tokenizer, max_length=128):
        """A translator of a model in memory; it always uses the model's present weights.

        Args: as `ExportTranslator`.
        """
        module = ExportTranslator(model, source_tokenizer, target_tokenizer, max_length)
        return cls(module.translate, module)

    @classmethod
    def load(cls, path):
        """Loads a SavedModel.

        Args:
            path: a version, such as `saved_models/de_en/1`, or the folder of versions, of which
                the highest is taken.

        Raises:
            ExportError: there is no SavedModel, it is damaged, or it has no `serving_default` for
                text.
        """
        directory = find_saved_model(path)
        loaded = load_saved_model(directory)
        if "serving_default" not in loaded.signatures:
            raise ExportError(
                f"{directory}: the SavedModel has no signature serving_default; "
                f"write one with tf-transformer export."
            )
        return cls(loaded.signatures["serving_default"], loaded)

    def save(self, path, version=None, manifest=None, overwrite=False):
        """Writes a SavedModel; the arguments, result and errors are `write_saved_model`'s.

        Raises:
            ExportError: this translator was itself loaded from a SavedModel.
        """
        if not isinstance(self._module, ExportTranslator):
            raise ExportError("this translator came from a SavedModel; copy that folder instead.")
        return write_saved_model(self._module, path, version, manifest, overwrite)

    def __call__(self, texts, batch_size=64):
        """Translates.

        Args:
            texts: str or list of str; an empty one has an empty translation.
            batch_size: int, how many texts go through the graph at once. Texts of like length go
                together and come back in their order.

        Returns:
            str for a str, list of str for a list.

        Raises:
            TypeError: something in `texts` is not a str.
            ValueError: `batch_size` is less than 1.
        """
        if isinstance(texts, str):
            return self([texts], batch_size)[0]
        texts = list(texts)
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(
                    f"texts must be a str or a list of str; item {index} is {type(text).__name__}."
                )
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1; received batch_size={batch_size}.")
        by_length = sorted(range(len(texts)), key=lambda index: len(texts[index]), reverse=True)
        translations = [""] * len(texts)
        for start in range(0, len(texts), batch_size):
            rows = by_length[start : start + batch_size]
            batch = tf.constant([texts[row].encode("utf-8", "replace") for row in rows])
            translated = self._signature(text=batch)["translation"].numpy()
            for row, translation in zip(rows, translated, strict=True):
                translations[row] = translation.decode("utf-8")
        return translations

"""BERT's tokenizer, run inside the graph by TensorFlow Text."""

import functools
import json
from collections.abc import Iterable, Sequence

import tensorflow as tf
import tensorflow_text

from tf_transformer.tokenizers.sentencepiece import FileTokenizer, TokenizerError

SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "bos": "[CLS]", "eos": "[SEP]", "mask": "[MASK]"}
CONTINUED = "##"  # the beginning of a subword that continues a word
_MAX_CHARACTERS = 100  # of a word; a longer word is unknown

# Classes of characters in the syntax of RE2.
_CHINESE = (
    r"\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2B73F}\x{2B740}-\x{2B81F}"
    r"\x{2B920}-\x{2CEAF}\x{F900}-\x{FAFF}\x{2F800}-\x{2FA1F}"
)
_WIDE = rf"{_CHINESE}\x{{3000}}-\x{{303F}}\x{{FF00}}-\x{{FFEF}}"
# A text that is no longer in any word, since it is removed from texts, stands for unknown words.
_REMOVED, _UNKNOWN = r"\x00-\x08\x0B\x0C\x0E-\x1F\x7F-\x9F\p{Cf}\p{Co}\x{FFFD}", "\ufffd"

# How words and punctuation marks are joined: patterns and replacements.
_JOINS = (
    (r'(["“„]) ([^"“”„]*) (["“”])', r"\1\2\3"),
    (r" ([.,!?;:%)\]}»…])", r"\1"),
    (r"([(\[{¿¡«‘]) ", r"\1"),
    (r" ([-'’/]) ", r"\1"),
    *[(r"(\d)([.,:]) (\d)", r"\1\2\3")] * 2,  # because matches do not overlap
    *[(f"([{_WIDE}]) ([{_WIDE}])", r"\1\2")] * 2,
)


class WordPieceTokenizer(FileTokenizer):
    """BERT's tokenizer (Devlin et al. 2019; Schuster & Nakajima 2012).

    Control characters are removed. White space, punctuation marks and Chinese characters split a
    text into words, and a word is split from left to right into the longest subwords known. A word
    that has no such split is one unknown token. Ids are those of Hugging Face's `BertTokenizer`,
    except at characters that Unicode got after 2015. Special tokens in a text are text.

    Detokenizing joins subwords, puts marks to words as English does, joins words at `-`, `'` and
    `/`, and Chinese characters to each other. So white space is lost, and case and accents if the
    tokenizer drops them; an unknown word becomes no text; and quotation marks, apostrophes, dashes
    and decimal points get the spaces that they have most often.

    Args:
        model: The subwords and settings, as `wordpiece_model` makes it.

    Attributes:
        vocab_size: Number of subwords, V.

    Raises:
        TokenizerError: `model` is not valid, or lacks a special token.

    Example:
        >>> from tf_transformer.tokenizers.wordpiece import wordpiece_model
        >>> special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        >>> tokenizer = tt.WordPieceTokenizer(wordpiece_model([*special, "good", "morning", "##s"]))
        >>> tokenizer.encode(["Good mornings"])
        [[5, 6, 7]]
    """

    def __init__(self, model: bytes) -> None:
        self.model = model
        try:
            self._settings = json.loads(model)
            self._subwords = self._settings["subwords"]
        except (ValueError, KeyError, TypeError):
            raise TokenizerError("no WordPiece model, or a damaged one.") from None
        ids = {subword: index for index, subword in enumerate(self._subwords)}
        if missing := [subword for subword in SPECIAL.values() if subword not in ids]:
            raise TokenizerError(f"has no subword {missing[0]}.")
        if len(ids) < len(self._subwords):
            raise TokenizerError("has a subword twice.")
        self.vocab_size = len(ids)
        self.pad_id, self.unk_id, self.bos_id, self.eos_id, _ = map(ids.get, SPECIAL.values())

    def subwords(self, ids: Iterable[int]) -> list[str]:
        """Return the subwords of token ids."""
        return [self._subwords[int(index)] for index in ids]

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Convert texts, string `(B,)`, to int32 ids `(B, None)` without begin and end."""
        replace, settings = tf.strings.regex_replace, self._settings
        texts = replace(replace(texts, f"[{_REMOVED}]", ""), r"[\t\n\r\p{Z}]", " ")
        if settings["split_chinese"]:
            texts = replace(texts, f"([{_CHINESE}])", r" \1 ")
        if settings["strip_accents"]:
            texts = replace(tensorflow_text.normalize_utf8(texts, "NFD"), r"\p{Mn}", "")
        if settings["lower_case"]:
            # Unicode has another small sigma for the end of a word.
            texts = lower_case_tensor(replace(texts, "Σ", "σ"))
        texts = replace(texts, r"([!-/:-@\[-`{-~\p{P}])", r" \1 ")
        texts = replace(texts, f"[^ ]{{{_MAX_CHARACTERS + 1},}}", _UNKNOWN)
        return self.graph_resource.splitter.tokenize(tf.strings.split(texts)).merge_dims(1, 2)

    def detokenize(self, ids: tf.RaggedTensor) -> tf.Tensor:
        """Convert int32 ids `(B, None)` without special ids to texts, string `(B,)`."""
        texts = tf.strings.reduce_join(tf.gather(self.graph_resource.spelled, ids), axis=-1)
        texts = tf.strings.strip(texts)
        for pattern, replacement in _JOINS:
            texts = tf.strings.regex_replace(texts, pattern, replacement)
        return texts

    def id_to_string(self, ids: tf.RaggedTensor) -> tf.RaggedTensor:
        """Convert int32 ids `(B, None)` to subwords, string `(B, None)`."""
        return tf.gather(self.graph_resource.subwords, ids)

    @functools.cached_property
    def graph_resource(self) -> tf.Module:
        """The tables of the tokenizer, which are constants of a graph."""

        def spelled(subword: str) -> str:
            if subword in SPECIAL.values():
                return ""
            return f" {subword}".removeprefix(f" {CONTINUED}")

        module = tf.Module(name="wordpiece")
        # Created on first use and outside any function, so that it outlives a trace.
        with tf.init_scope(), tf.device("CPU"):
            module.splitter = tensorflow_text.FastWordpieceTokenizer(
                self._subwords, CONTINUED, 4 * _MAX_CHARACTERS, tf.int32, SPECIAL["unk"],
                no_pretokenization=True,
            )  # fmt: skip
            module.subwords = tf.constant(self._subwords)
            module.spelled = tf.constant([spelled(subword) for subword in self._subwords])
        return module


def wordpiece_model(
    subwords: Sequence[str],
    *,
    lower_case: bool = True,
    strip_accents: bool = True,
    split_chinese: bool = True,
) -> bytes:
    """Return the model of a `WordPieceTokenizer`, given the subwords in the order of their ids."""
    settings = {"lower_case": lower_case, "strip_accents": strip_accents}
    settings |= {"split_chinese": split_chinese, "subwords": list(subwords)}
    return json.dumps(settings, ensure_ascii=False, indent=0).encode()


def lower_case_tensor(text: tf.Tensor) -> tf.Tensor:
    """Lower the case of texts, string `(B,)`, in the same way for every locale of the process."""
    text = tf.strings.lower(text)  # of ASCII
    # In Turkish or Lithuanian locales, ICU lowers these capitals to other letters.
    for capital in "İÌÍĨĮ":
        text = tf.strings.regex_replace(text, capital, capital.lower())
    return tf.strings.lower(text, "utf-8")

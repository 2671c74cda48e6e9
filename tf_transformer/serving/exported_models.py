"""Functions that translate with exported models, as a server or CTranslate2 does.

They load TensorFlow when they are called, since `doctor` reports wrong options before.
"""

import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tf_transformer.machine import num_cores, only_errors_of_tensorflow

if TYPE_CHECKING:
    from tf_transformer.inference.graph import Search

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


def translate_with_ctranslate2(
    folder: pathlib.Path, settings: "Search", texts: Sequence[str]
) -> list[str]:
    """Translate lines with a CTranslate2 export, as greedy search in a SavedModel does.

    The setting `max_length_ratio` has no effect, since CTranslate2 has no such limit. Beams
    are not compared: there its scores are divided by `length ** penalty`, ours by
    `((5 + length) / 6) ** penalty`.
    """
    import ctranslate2
    import sentencepiece
    import tensorflow as tf

    from tf_transformer.data.text import is_blank
    from tf_transformer.inference.capitals import fold_capitals
    from tf_transformer.inference.document import in_sentences
    from tf_transformer.inference.results import Translation

    source, target = (
        sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.model"))
        for side in ("source", "target")
    )
    translator = ctranslate2.Translator(str(folder))
    tag, whole = settings.source_tag, []
    if tag and source.piece_to_id(tag) == source.unk_id():
        # The splitter would divide the tag, which is one subword if the vocabulary has it.
        path = next(folder.glob("s*_vocabulary.json"))  # source_… or shared_…
        whole = [tag] if tag in json.loads(path.read_text(encoding="utf-8")) else []

    def subwords(line: str) -> list[str]:
        if tag and not is_blank(line):
            line = f" {line}" if whole else f"{tag} {line}"
            return [*whole, *source.encode(line, out_type=str)]
        return source.encode(line, out_type=str)

    def translate(sentences: Iterator[str]) -> Iterator[list[Translation]]:
        lines = list(sentences)
        if settings.fold_capitals:
            folded = fold_capitals(tf.constant(lines, tf.string), settings.dotless_i).numpy()
            lines = [line.decode() for line in folded]
        results = translator.translate_batch(
            [subwords(line) for line in lines],
            max_batch_size=_BATCH_SIZE,
            beam_size=1,
            max_input_length=settings.max_length,
            max_decoding_length=settings.max_length,
            disable_unk=not settings.allow_unknown,
        )
        for result in results:
            text = target.decode(result.hypotheses[0]).replace("\ufffd", "")
            yield [Translation(text, 0.0, 0.0, 0, False, False)]

    found = in_sentences(iter(texts), translate, settings.by_sentence)
    return [best.text for (best,) in found]

"""The parity gate: whether two forms of one model translate the same text alike."""

import itertools
import json
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tf_transformer.errors import InputError
from tf_transformer.export.manifest import manifest_path
from tf_transformer.serving.doctor.doctor import Check

_BATCH_SIZE = 64
_BEAM_SIZE = "settings/beam_size/.ATTRIBUTES/VARIABLE_VALUE"
_LENGTH_PENALTY = "settings/length_penalty/.ATTRIBUTES/VARIABLE_VALUE"
_EXAMPLES = 3


class SameAsError(InputError):
    """Two forms of a model that cannot be compared."""


class Search(NamedTuple):
    """How a SavedModel searches: its beam, 1 for greedy search, and the length penalty."""

    beam_size: int
    length_penalty: float


class Limits(NamedTuple):
    """How far two forms of one model may be apart.

    Attributes:
        different: Share of lines that may differ.
        bleu: Difference of BLEU.
    """

    different: float = 0.01
    bleu: float = 0.1


def exported_search(folder: pathlib.Path) -> Search:
    """How the signature `serving_default` of a SavedModel searches.

    Raises:
        SameAsError: It is no translator of this package.
    """
    import tensorflow as tf

    try:
        reader = tf.train.load_checkpoint(os.path.realpath(folder / "variables" / "variables"))
        return Search(int(reader.get_tensor(_BEAM_SIZE)), float(reader.get_tensor(_LENGTH_PENALTY)))
    except (ValueError, tf.errors.OpError) as error:
        raise SameAsError(
            f"{folder}: its beam cannot be read, so it is damaged or no translator of this "
            f"version. Write one with tf-transformer export."
        ) from error


def translate_as_a_server(folder: pathlib.Path, texts: Sequence[str]) -> list[str]:
    """Translates lines with the signature `serving_default`, in a session.

    Raises:
        SameAsError: It does not load, or has no such signature.
    """
    import tensorflow as tf

    from tf_transformer.inference.streams import translate_in_order
    from tf_transformer.serving.servable import Servable

    def translate(batch: list[str]) -> list[str]:
        found = servable.run("serving_default", {"text": [text.encode() for text in batch]})
        return [text.decode() for text in found["translation"]]

    try:
        servable = Servable(folder)
        translations = list(translate_in_order(iter(texts), translate, _BATCH_SIZE, threads=1))
    except (OSError, ValueError, KeyError, tf.errors.OpError) as error:
        raise SameAsError(
            f"{folder}: does not translate. For the reason: tf-transformer doctor {folder}"
        ) from error
    servable.close()
    return translations


def translate_with_ctranslate2(
    folder: pathlib.Path, texts: Sequence[str], search: Search
) -> list[str]:
    """Translates lines with a CTranslate2 export, sentence by sentence as a SavedModel does.

    Its length penalty is another formula.

    Raises:
        SameAsError: The library is missing, or a file of the export is.
    """
    from tf_transformer.inference.document import in_sentences
    from tf_transformer.inference.results import Translation

    try:
        import ctranslate2
        import sentencepiece
    except ImportError:
        raise SameAsError(
            "a CTranslate2 model needs its library. Install it with: pip install ctranslate2"
        ) from None
    try:
        manifest = json.loads(manifest_path(folder).read_bytes())
        data = manifest["config"]["data"]
        max_length = data["max_length"]
        source, target = (
            sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.model"))
            for side in ("source", "target")
        )
        translator = ctranslate2.Translator(str(folder))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise SameAsError(f"{folder}: is damaged: {error}. Export it again.") from error

    def translate(sentences: Iterator[str]) -> Iterator[list[Translation]]:
        # The graph of a SavedModel folds capitals.
        texts = _folded([*sentences]) if data.get("fold_capitals") else [*sentences]
        subwords = source.encode(texts, out_type=str)
        # Of nothing it would translate the end of a sentence.
        results = iter(
            translator.translate_batch(
                [tokens for tokens in subwords if tokens],
                max_batch_size=_BATCH_SIZE,
                beam_size=search.beam_size,
                length_penalty=search.length_penalty,
                max_input_length=max_length,
                max_decoding_length=max_length,
            )
        )
        for tokens in subwords:
            text = target.decode(next(results).hypotheses[0]) if tokens else ""
            yield [Translation(text, 0.0, 0.0, 0, False, False)]

    return [best.text for (best,) in in_sentences(iter(texts), translate, True)]


def _folded(texts: Sequence[str]) -> list[str]:
    import tensorflow as tf

    from tf_transformer.inference.tokens import fold_capitals

    lines = tf.constant([text.encode("utf-8", "replace") for text in texts], tf.string)
    return [line.decode() for line in fold_capitals(lines).numpy()]


def compare(
    sources: Sequence[str],
    translations: tuple[Sequence[str], Sequence[str]],
    references: Sequence[str] | None,
    limits: Limits,
) -> Iterator[Check]:
    """Yields the checks of two translations of the same lines.

    Args:
        sources: The lines, at least one.
        translations: Those of the SavedModel and those of the other form.
        references: What BLEU is measured against; None does not measure it.
        limits: How far they may be apart.
    """
    pairs = enumerate(zip(sources, *translations, strict=True), start=1)
    different = [(number, *texts) for number, texts in pairs if texts[1] != texts[2]]
    share = len(different) / len(sources)
    message = (
        f"{len(different):,} of {len(sources):,} lines differ, {share:.2%}; "
        f"{limits.different:.2%} may"
    )
    values = {"different": len(different), "lines": len(sources), "limit": limits.different}
    examples = [
        {"line": number, "source": source, "saved_model": ours, "other": theirs}
        for number, source, ours, theirs in itertools.islice(different, _EXAMPLES)
    ]
    yield _within(share <= limits.different, "same", message, {**values, "examples": examples})
    if references is None:
        return
    from tf_transformer.evaluation import score

    ours, theirs = (score(texts, references) for texts in translations)
    message = f"BLEU {ours.bleu:.2f} and {theirs.bleu:.2f}; {limits.bleu:g} may be between them"
    values = {"saved_model": ours.bleu, "other": theirs.bleu, "limit": limits.bleu}
    is_near = round(abs(ours.bleu - theirs.bleu), 6) <= limits.bleu
    yield _within(is_near, "bleu", message, {**values, "signature": ours.signature})


def _within(is_within: bool, name: str, message: str, values: dict) -> Check:
    if is_within:
        return Check(name, "ok", message, values)
    advice = (
        "Export the run again, or allow more with --max-different and --max-bleu-difference where "
        "the precisions differ."
    )
    return Check(name, "FAIL", f"{message}. {advice}", values)

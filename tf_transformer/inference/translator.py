"""The translator: text in, text out, from a model in memory or a SavedModel on disk."""

import functools
import itertools
import operator
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tf_transformer.data.glossary import Glossary
from tf_transformer.errors import InputError
from tf_transformer.inference.document import in_sentences
from tf_transformer.inference.graph import ExportTranslator
from tf_transformer.inference.results import (
    MISSING_SCORE,
    AlignedPair,
    TargetProbability,
    Translation,
    as_lists,
    rows_of,
)
from tf_transformer.inference.search import Search, require_search
from tf_transformer.inference.streams import translate_in_order
from tf_transformer.inference.versions import SavedModelError, find_saved_model, require_loadable
from tf_transformer.machine import num_cores, quiet, require_no_fork
from tf_transformer.tokenizers import GraphTokenizer


class Translator:
    """A translator of a string or a list of strings.

    Make one with `Translator.load(path)` from a SavedModel, or with `Translator.from_model` from
    a model in memory; both run the same graph. Batches run in parallel, one in each thread, which
    costs less than splitting each operation among threads. If the process only translates, call
    `machine.run_in_callers_thread` first. Use in a forked process raises a RuntimeError, because
    TensorFlow does not survive a fork.

    Args:
        module: An `ExportTranslator`, or the object that TensorFlow loads from its SavedModel.
        threads: Number of batches translated at a time; None means one for each core.
        terms: A glossary, which every translation follows: terms and their translations. A term in
            small letters is found in any case. A name that must stay is its own translation.

    Raises:
        ValueError: There are terms, but the model has no marks to put in their place.

    Example:
        >>> translator = tt.Translator.from_model(model, tokenizer, tokenizer)
        >>> first, second = translator(["a b c", "a b. c"])
        >>> [[found]] = translator.n_best(["a b c"], 1)
        >>> found.text == first
        True
    """

    def __init__(
        self, module: Any, *, threads: int | None = None, terms: Mapping[str, str] | None = None
    ) -> None:
        require_no_fork()
        self.module, self._glossary = module, Glossary(terms) if terms else None
        if terms and not self.has_marks:
            raise InputError("this model has no marks, so it cannot follow terms. Train one anew.")
        self._threads = threads or num_cores()
        settings = module.settings.items()
        self._settings = {name: np.asarray(value.numpy()).item() for name, value in settings}

    @classmethod
    def from_model(
        cls,
        model: Any,
        source_tokenizer: GraphTokenizer,
        target_tokenizer: GraphTokenizer,
        search: Search | None = None,
        *,
        threads: int | None = None,
        terms: Mapping[str, str] | None = None,
    ) -> "Translator":
        """Make a translator that always uses the current weights of a model in memory.

        The first four arguments are those of `ExportTranslator`.
        """
        module = ExportTranslator(model, source_tokenizer, target_tokenizer, search)
        return cls(module, threads=threads, terms=terms)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        threads: int | None = None,
        terms: Mapping[str, str] | None = None,
    ) -> "Translator":
        """Load a SavedModel.

        Args:
            path: A version such as `saved_models/de_en/1`, or its parent, for the highest version.
            threads, terms: As above.

        Raises:
            SavedModelError: There is no SavedModel, it is damaged, or it is not a translator.
        """
        require_no_fork()
        folder = find_saved_model(path)
        require_loadable(folder)
        try:
            with quiet():
                # TensorFlow resolves `..` by the text of a path, which is wrong for links.
                loaded = tf.saved_model.load(os.path.realpath(folder))
        # TensorFlow raises errors of many classes for damaged files.
        except (OSError, IndexError, ValueError, RuntimeError, tf.errors.OpError) as error:
            reason = " ".join(str(error).replace("b'", "'").split())[:200] or type(error).__name__
            raise SavedModelError(
                f"{folder}: TensorFlow cannot load the SavedModel ({reason}). If it is damaged, "
                f"write it again with tf-transformer export."
            ) from error
        if "mark_pattern" not in getattr(loaded, "settings", {}):
            raise SavedModelError(
                f"{folder}: no translator of this version; write one with tf-transformer export."
            )
        return cls(loaded, threads=threads, terms=terms)

    @property
    def search(self) -> dict[str, float]:
        """The default `beam_size` (1 for greedy search) and `length_penalty`."""
        # A SavedModel has them as float32, in which 0.6 is 0.6000000238.
        return {name: round(self._settings[name], 6) for name in ("beam_size", "length_penalty")}

    @property
    def has_marks(self) -> bool:
        """Whether the model has marks, so that it keeps pieces and follows terms."""
        return getattr(self.module, "insert_terms", None) is not None

    @property
    def mark_pattern(self) -> str:
        """The regular expression of RE2 that finds the pieces to keep."""
        return self._settings["mark_pattern"].decode()

    def __call__(
        self,
        texts: str | Iterable[str],
        batch_size: int = 64,
        beam_size: int | None = None,
        length_penalty: float | None = None,
    ) -> str | list[str]:
        """Translate texts, each sentence on its own.

        Line breaks and the white space between the sentences of a line stay, but Chinese and
        Japanese translations have no space between them; white space at the ends of a line is
        dropped, where `document` keeps it. A sentence of more than `max_length` tokens is
        truncated; `stream` reports this, and `document` does not truncate.

        Args:
            texts: A string or a list of strings; an empty string has an empty translation.
            batch_size: Sentences that go through the graph at once.
            beam_size: Hypotheses to follow; 1 is greedy search; None means the value in `search`.
            length_penalty: Length penalty of the beam; None means the value in `search`.

        Returns:
            A str for a str, a list of str for a list.
        """
        if isinstance(texts, str):
            return self([texts], batch_size, beam_size, length_penalty)[0]
        found = self.stream(texts, 1, batch_size, beam_size, length_penalty)
        return [best.text for (best,) in found]

    def document(self, texts: str | Iterable[str]) -> str | list[str]:
        """Translate texts of any length, sentence by sentence, with the settings in `search`.

        White space and line breaks between sentences stay as in a call, and a sentence of more than
        `max_length` tokens is translated in chunks.
        """
        if isinstance(texts, str):
            return self.document([texts])[0]
        found = self.module.translate_document(_constant(self._with_terms(_checked(texts))))
        return [text.decode("utf-8") for text in found["translation"].numpy()]

    def n_best(
        self,
        texts: Iterable[str],
        n_best: int,
        batch_size: int = 64,
        beam_size: int | None = None,
        length_penalty: float | None = None,
    ) -> list[list[Translation]]:
        """Find the best distinct translations of each text, best first.

        A text is searched as a whole: a model trained on single sentences may translate only the
        first of several. Fewer than `n_best` are returned if the search finds no more.

        Args:
            texts: Strings.
            n_best: The number of translations, at most `beam_size`, which is 1 unless given here or
                in `search`.
            batch_size, beam_size, length_penalty: As in a call.
        """
        search = batch_size, beam_size, length_penalty
        return list(self.stream(texts, n_best, *search, by_sentence=False))

    def stream(
        self,
        texts: Iterable[str],
        n_best: int = 1,
        batch_size: int = 64,
        beam_size: int | None = None,
        length_penalty: float | None = None,
        by_sentence: bool = True,
    ) -> Iterator[list[Translation]]:
        """Translate any number of texts, in their order and in bounded memory.

        Args:
            texts: Strings.
            n_best: Number of translations of each text.
            batch_size, beam_size, length_penalty: As in a call.
            by_sentence: Whether each sentence is searched on its own, as in a call. Otherwise each
                text is searched as a whole, as by `n_best`; more than one translation needs this.

        Raises:
            ValueError: A number is out of range, or the model's logits are not finite.
        """
        texts, settings = self._with_terms(_checked(texts)), self._settings
        # Convert here, so that type errors are raised here: TensorFlow would hold a lock after its
        # own error, and every later search from another thread would wait forever.
        beam_size = operator.index(settings["beam_size"] if beam_size is None else beam_size)
        penalty = float(settings["length_penalty"] if length_penalty is None else length_penalty)
        n_best, batch_size = operator.index(n_best), operator.index(batch_size)
        require_search(beam_size, penalty, settings["vocab_size"])
        if not 1 <= n_best <= beam_size:
            raise InputError(
                f"n_best must be from 1 to the size of the beam, {beam_size} (--beam-size)."
            )
        if by_sentence and n_best > 1:
            raise ValueError("sentences have one translation each: give n_best=1.")

        translate = functools.partial(self._translate, n_best, beam_size, penalty)
        options = {"translate": translate, "batch_size": batch_size, "threads": self._threads}
        search = functools.partial(translate_in_order, **options)
        if not by_sentence:
            return search(texts)
        return in_sentences(texts, search, settings["by_sentence"], self.mark_pattern)

    def score(
        self, sources: Iterable[str], targets: Iterable[str], batch_size: int = 64
    ) -> list[TargetProbability]:
        """Compute the probability of given translations, in the subwords of the tokenizer.

        A search may find the same text in other subwords, with another probability.

        Args:
            sources: Strings.
            targets: A translation of each source. Line breaks separate words, as spaces do.
            batch_size: Pairs that go through the graph at once.

        Raises:
            ValueError: The numbers of sources and targets differ, or the model cannot score.
        """
        rows = self._rows_of_pairs("score", sources, targets, batch_size)
        return [TargetProbability(**row) for row in rows]

    def align(
        self, sources: Iterable[str], targets: Iterable[str], batch_size: int = 64
    ) -> list[AlignedPair]:
        """Compute how much each token of given translations attends to each of their sources.

        `visualization.plot_alignment` draws a result. Arguments and errors are those of `score`.
        """
        rows = self._rows_of_pairs("align", sources, targets, batch_size)
        return [AlignedPair.of(row) for row in rows]

    def _with_terms(self, texts: Iterator[str]) -> Iterator[str]:
        """Return the texts with the translations of terms in their place, if there are terms."""
        if self._glossary is None:
            return texts

        def inserted() -> Iterator[str]:
            for text in texts:
                terms = _constant([self._glossary.terms_in(text)])
                yield self.module.insert_terms(_constant([text]), terms).numpy()[0].decode()

        return inserted()

    def _rows_of_pairs(
        self, name: str, sources: Iterable[str], targets: Iterable[str], batch_size: int
    ) -> list[dict[str, Any]]:
        function = getattr(self.module, name, None)
        if function is None:
            raise ValueError(f"the model of this translator has no {name}.")
        pairs = zip(_checked(sources), _checked(targets), strict=True)

        def run_batch(batch: list[tuple[str, str]]) -> list[dict[str, Any]]:
            return _rows(function(*map(_constant, zip(*batch, strict=True))))

        return list(translate_in_order(pairs, run_batch, batch_size, self._threads))

    def _translate(
        self, n_best: int, beam_size: int, length_penalty: float, texts: list[str]
    ) -> list[list[Translation]]:
        batch = _constant(texts)
        if beam_size == 1:
            found = self.module.greedy(batch, length_penalty)
        else:
            found = self.module.beam(batch, beam_size, length_penalty, n_best)
        return [_translations(row) for row in _rows(found)]


def _rows(found: dict[str, tf.Tensor]) -> list[dict[str, Any]]:
    return rows_of({name: as_lists(tensor.numpy()) for name, tensor in found.items()})


def _translations(row: Mapping[str, Any]) -> list[Translation]:
    """Return the translations of one text in the order of their scores."""
    names = ("translations", "scores", "log_probs", "lengths", "truncated")
    columns = *(row[name] for name in names), itertools.repeat(row["source_truncated"])
    flags = (tuple(filter(None, names.split(","))) for names in row["flags"])
    expected = row.get("expected_chrf", itertools.repeat(None))
    found = map(Translation, *columns, row["bytes_dropped"], flags, expected)
    if found := [translation for translation in found if translation.score > MISSING_SCORE]:
        return found
    raise InputError("the model's logits are not finite, so its weights are not either.")


def _checked(texts: Iterable[str]) -> Iterator[str]:
    """Return an iterator over texts; raise an error for a single str, and after a fork."""
    require_no_fork()
    if isinstance(texts, str | bytes | Mapping):
        raise TypeError(f"texts must be a list of str; received {type(texts).__name__}.")
    return map(_require_text, texts)


def _require_text(text: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f"texts must be str; received {text!r:.60}.")
    return text


def _constant(texts: Iterable[str]) -> tf.Tensor:
    # UTF-8 cannot encode a lone surrogate, so it becomes a question mark.
    return tf.constant([text.encode("utf-8", "replace") for text in texts], tf.string)

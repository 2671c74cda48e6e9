"""The translator: text in, text out, from a model in memory or a SavedModel on disk."""

import os
import pathlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from tf_transformer.inference.arguments import (
    checked_texts,
    single_lines,
    to_batch_size,
    to_integer,
    to_number,
)
from tf_transformer.inference.compiled import compiled_search
from tf_transformer.inference.graph import ExportTranslator, check_search
from tf_transformer.inference.ordered import num_cores, translate_in_order
from tf_transformer.inference.process import require_process_of_tensorflow
from tf_transformer.inference.saved_model import (
    SavedModelError,
    find_saved_model,
    load_saved_model,
)
from tf_transformer.inference.scoring import AlignedPair, Alignment, TargetProbability
from tf_transformer.inference.translation import Translation, in_sentences

_FEW_WEIGHTS = 8_000_000
# What a model needs for a function of pairs.
_NEEDED = {"score": "call for teacher forcing", "align": "attention to the source"}


class Translator:
    """Translates a string or a list of strings.

    Make one with `Translator.load(path)` from a SavedModel, or with `Translator.from_model` from
    a model in memory; both run the same graph. Batches run in parallel, one in each of `threads`
    threads, which costs less than to split each operation among them: where the process translates
    and does nothing else, call `run_in_callers_thread` first.

    A translator of a SavedModel can be pickled: its path is, and the model is loaded again. It does
    not survive a fork, like everything of TensorFlow.

    Args:
        module: `ExportTranslator`, or what TensorFlow loads from a SavedModel of one.
        xla: Whether XLA compiles the search, once for each of the few sizes to which batches are
            then padded. It pays where one process translates for long; greedy search gains most.
        threads: Batches at a time; None is one for each core.
    """

    def __init__(self, module: Any, *, xla: bool = False, threads: int | None = None) -> None:
        require_process_of_tensorflow()
        self._module = module
        self._path: pathlib.Path | None = None
        self._threads = threads
        self._settings = {name: value.numpy() for name, value in module.settings.items()}
        self._compiled: dict[tuple[int, int], Callable] | None = {} if xla else None
        self._compiling = threading.Lock()

    @classmethod
    def from_model(
        cls,
        model: Any,
        source_tokenizer: Any,
        target_tokenizer: Any,
        max_length: int = 128,
        beam_size: int = 1,
        length_penalty: float = 0.6,
        *,
        alignment: Alignment | None = None,
        fold_capitals: bool = False,
        max_length_ratio: float = 2.0,
        by_sentence: bool = True,
        xla: bool = False,
        threads: int | None = None,
    ) -> "Translator":
        """A translator of a model in memory; it always uses the model's present weights.

        Args: as `ExportTranslator`; `xla` and `threads` as above.
        """
        module = ExportTranslator(
            model, source_tokenizer, target_tokenizer, max_length, beam_size, length_penalty,
            alignment, fold_capitals, max_length_ratio, by_sentence,
        )  # fmt: skip
        return cls(module, xla=xla, threads=threads)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, xla: bool = False, threads: int | None = None
    ) -> "Translator":
        """Loads a SavedModel.

        Args:
            path: A version, such as `saved_models/de_en/1`, or the folder of versions, of which
                the highest is taken.
            xla: As above.
            threads: As above.

        Raises:
            SavedModelError: There is no SavedModel, it is damaged, or it is no translator.
        """
        require_process_of_tensorflow()
        folder = find_saved_model(path)
        loaded = load_saved_model(folder)
        if "source_pad_id" not in getattr(loaded, "settings", {}):
            raise SavedModelError(
                f"{folder}: the SavedModel is no translator of this version; "
                f"write one with tf-transformer export."
            )
        translator = cls(loaded, xla=xla, threads=threads)
        translator._path = folder.absolute()
        return translator

    def __reduce__(self) -> tuple:
        if self._path is None:
            raise TypeError(
                "a Translator of a model in memory cannot be pickled; export it and load it in "
                "the other process with Translator.load(path)."
            )
        return _load, (self._path, self._compiled is not None, self._threads)

    @property
    def search(self) -> dict[str, float]:
        """The `beam_size`, 1 for greedy search, and the `length_penalty` where none is given."""
        return {name: self._settings[name].item() for name in ("beam_size", "length_penalty")}

    @property
    def module(self) -> Any:
        """The `ExportTranslator`, or what was loaded from a SavedModel of one."""
        return self._module

    def __call__(
        self,
        texts: str | Iterable[str],
        batch_size: int = 64,
        beam_size: int | None = None,
        length_penalty: float | None = None,
    ) -> str | list[str]:
        """Translates; each sentence of a text is translated on its own.

        Line breaks and the white space between sentences stay as they are, but at both ends. A
        sentence of more than `max_length` tokens is truncated, see `stream`, which says so, and
        `document`.

        Args:
            texts: A string or a list of strings; an empty one has an empty translation.
            batch_size: How many sentences go through the graph at once. Those of like length go
                together and come back in their order.
            beam_size: Hypotheses to follow; 1 is greedy search; None as exported.
            length_penalty: Length penalty of the beam; None as exported.

        Returns:
            A str for a str, a list of str for a list.

        Raises:
            TypeError: `texts` holds something else than str, or a number is of a wrong type.
            ValueError: A number is out of its range.
        """
        if isinstance(texts, str):
            return self([texts], batch_size, beam_size, length_penalty)[0]
        found = self.stream(texts, None, batch_size, beam_size, length_penalty)
        return [best.text for (best,) in found]

    def document(self, texts: str | Iterable[str]) -> str | list[str]:
        """Translates texts of any length, sentence by sentence, with the search as exported.

        Sentences are found by rules (`inference/sentences.py`). White space and line breaks between
        them stay as they are, and a sentence of more than `max_length` tokens is translated in
        chunks rather than truncated.

        Args:
            texts: A string or a list of strings.

        Returns:
            A str for a str, a list of str for a list.

        Raises:
            TypeError: `texts` holds something else than str.
            SavedModelError: The SavedModel was written before it could do this.
        """
        if isinstance(texts, str):
            return self.document([texts])[0]
        require_process_of_tensorflow()
        if not hasattr(self._module, "translate_document"):
            raise SavedModelError(
                f"{self._path}: the SavedModel has no signature translate_document; "
                f"write it again with tf-transformer export."
            )
        batch = [text.encode("utf-8", "replace") for text in checked_texts(texts)]
        found = self._module.translate_document(tf.constant(batch, tf.string))
        return [text.decode("utf-8") for text in found["translation"].numpy()]

    def n_best(
        self,
        texts: Iterable[str],
        n_best: int,
        batch_size: int = 64,
        beam_size: int | None = None,
        length_penalty: float | None = None,
    ) -> list[list[Translation]]:
        """The best translations of each text.

        Args:
            texts: Strings, each of one line. A line is searched as a whole, and of several
                sentences a model that has learned from single ones may translate the first alone.
            n_best: Translations of each text, at most `beam_size`.
            batch_size: As in a call.
            beam_size: As in a call.
            length_penalty: As in a call.

        Returns:
            A list of `Translation` for each text, best first, no text twice; fewer than `n_best`
            where the search found no more.

        Raises:
            TypeError: As a call.
            ValueError: As a call; also where `n_best` is more than `beam_size`, or a text has
                several lines.
        """
        return list(self.stream(texts, n_best, batch_size, beam_size, length_penalty))

    def stream(
        self,
        texts: Iterable[str],
        n_best: int | None = None,
        batch_size: int = 64,
        beam_size: int | None = None,
        length_penalty: float | None = None,
    ) -> Iterator[list[Translation]]:
        """Translates any number of texts, in their order and in bounded memory.

        Arguments, results and errors are those of `n_best`, but for None: the one translation that
        a call makes, sentence by sentence, of texts that may have several lines.
        """
        require_process_of_tensorflow()
        beam_size = self._settings["beam_size"] if beam_size is None else beam_size
        penalty = self._settings["length_penalty"] if length_penalty is None else length_penalty
        # Types are checked here, because TensorFlow's error would keep a lock, and every later
        # search from another thread would wait forever.
        by_sentence = n_best is None
        n_best = 1 if by_sentence else to_integer("n_best", n_best)
        batch_size = to_batch_size(batch_size)
        beam_size = to_integer("beam_size", beam_size)
        penalty = to_number("length_penalty", penalty)
        check_search(beam_size, penalty, int(self._settings["vocab_size"]))
        if not 1 <= n_best <= beam_size:
            raise ValueError(
                f"n_best must be from 1 to the size of the beam, {beam_size}; received "
                f"n_best={n_best}. Give a larger beam_size (--beam-size)."
            )

        def translate(batch):
            return self._translate(batch, n_best, batch_size, beam_size, penalty)

        def search(lines):
            threads = self._threads or num_cores()
            return translate_in_order(lines, translate, batch_size, threads)

        if not by_sentence:
            return search(single_lines(texts))
        within_lines = bool(self._settings.get("by_sentence", True))
        return in_sentences(checked_texts(texts), search, within_lines)

    def score(
        self, sources: Iterable[str], targets: Iterable[str], batch_size: int = 64
    ) -> list[TargetProbability]:
        """The probability of translations that are given, in the subwords of the tokenizer.

        A search may have found the same text in others, with another probability.

        Args:
            sources: Strings.
            targets: A translation of each. Line breaks separate words as a space does.
            batch_size: How many pairs go through the graph at once.

        Returns:
            A `TargetProbability` for each pair.

        Raises:
            TypeError: As a call.
            ValueError: `batch_size` is less than 1, there are more texts on one side, or the
                translator has no `score`, see `ExportTranslator`.
        """
        return self._of_pairs("score", TargetProbability.of_batch, sources, targets, batch_size)

    def align(
        self, sources: Iterable[str], targets: Iterable[str], batch_size: int = 64
    ) -> list[AlignedPair]:
        """How much each token of translations that are given attends to each of their sources.

        `visualization.plot_alignment` draws one.

        Args:
            sources: Strings.
            targets: A translation of each. Line breaks separate words as a space does.
            batch_size: How many pairs go through the graph at once.

        Returns:
            An `AlignedPair` for each pair.

        Raises:
            TypeError: As a call.
            ValueError: As `score`; the translator has no `align` if its model has no attention to
                the source.
        """
        return self._of_pairs("align", AlignedPair.of_batch, sources, targets, batch_size)

    def _of_pairs(self, name, of_batch, sources, targets, batch_size):
        """`of_batch` of what the module's function of that name returns, for batches of pairs."""
        require_process_of_tensorflow()
        batch_size = to_batch_size(batch_size)
        sources, targets = list(checked_texts(sources)), list(checked_texts(targets))
        if len(sources) != len(targets):
            raise ValueError(
                f"sources and targets must be equally many; received {len(sources)} sources and "
                f"{len(targets)} targets."
            )
        function = getattr(self._module, name, None)
        if function is None:
            raise ValueError(
                f"this translator has no {name}: its model has no {_NEEDED[name]}, or its "
                f"SavedModel is of an earlier version; export it again."
            )

        def run_batch(batch):
            return of_batch(function(*(_constant(side) for side in zip(*batch, strict=True))))

        pairs = zip(sources, targets, strict=True)
        threads = self._threads or num_cores()
        return list(translate_in_order(pairs, run_batch, batch_size, threads, _num_characters))

    def _translate(self, texts, n_best, batch_size, beam_size, length_penalty):
        """Lists of `Translation` of one batch."""
        batch = _constant(texts)
        if self._compiled is not None:
            found = self._compiled_search(beam_size, n_best)(batch, length_penalty, batch_size)
        elif beam_size == 1:
            found = self._module.greedy(batch, length_penalty)
        else:
            found = self._module.beam(batch, beam_size, length_penalty, n_best)
        return Translation.of_batch(found)

    def _compiled_search(self, beam_size, n_best):
        """The compiled search for these sizes, compiled on the first call."""
        with self._compiling:
            if (beam_size, n_best) not in self._compiled:
                # Constants are for the weights of a SavedModel, which do not change, if small.
                is_fixed = not isinstance(self._module, ExportTranslator)
                num_weights = sum(weight.shape.num_elements() for weight in self._module.weights)
                self._compiled[beam_size, n_best] = compiled_search(
                    self._module, beam_size, n_best, is_fixed and num_weights <= _FEW_WEIGHTS
                )
            return self._compiled[beam_size, n_best]


def _load(path: pathlib.Path, xla: bool, threads: int | None) -> Translator:
    return Translator.load(path, xla=xla, threads=threads)


def _constant(texts: Iterable[str]) -> tf.Tensor:
    return tf.constant([text.encode("utf-8", "replace") for text in texts])


def _num_characters(pair: tuple[str, str]) -> int:
    return sum(map(len, pair))

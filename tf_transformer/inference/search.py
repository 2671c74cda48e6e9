"""The searches of a translator: their settings, and what is tried in which order."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import tensorflow as tf

from tf_transformer.decoding.beam import beam_search
from tf_transformer.decoding.constraints import Constraint, MarksOnce, Never, NoRepeats
from tf_transformer.decoding.greedy import greedy_search
from tf_transformer.decoding.result import Hypotheses, replace_rows
from tf_transformer.decoding.translation_model import TranslationModel
from tf_transformer.errors import InputError
from tf_transformer.inference.flags import Usual, has_loop
from tf_transformer.inference.functions import not_inlined, shared_function
from tf_transformer.models.model_configs import ModelConfig
from tf_transformer.tokenizers import GraphTokenizer
from tf_transformer.tokenizers.marks import MarkIds

_SOURCE = (
    tf.TensorSpec([None, None], tf.int32, name="source_ids"),
    tf.TensorSpec([None], tf.int32, name="limits"),
)
LENGTH_PENALTY = tf.TensorSpec([], tf.float32, name="length_penalty")
BEAM = (
    tf.TensorSpec([], tf.int32, name="beam_size"),
    LENGTH_PENALTY,
    tf.TensorSpec([], tf.int32, name="n_best"),
)
# For each sentence, as a constant for all would make TensorFlow copy the function that takes it.
_MAY_REPEAT = tf.TensorSpec([None], tf.bool, name="may_repeat")
# The fields of `Hypotheses`, ids `(B, n, T)` and the others `(B, n)`, and whether a sentence was
# searched once more.
SEARCHED = (
    tf.TensorSpec([None, None, None], tf.int32),
    *(tf.TensorSpec([None, None], dtype) for dtype in (tf.int32, tf.float32, tf.float32, tf.bool)),
    tf.TensorSpec([None], tf.bool),
)
_LONGER = 3  # tokens more than the source, from which a translation is searched for loops
_REPEATED = 3  # tokens of a sequence that may not be repeated in a second search
Searched = tuple[tf.Tensor, ...]


@dataclasses.dataclass(frozen=True)
class Search:
    """How a translator reads sources and searches for their translations.

    Attributes:
        beam_size: Hypotheses to follow; 1 is greedy search.
        length_penalty: See `beam_score`.
        max_length: Tokens a source may have, its end included (the rest is dropped), and the limit
            of any translation.
        max_length_ratio: See `output_limits`.
        fold_capitals: Whether to apply `capitals.fold_capitals` to sources.
        dotless_i: Whether it then makes ı of I; None for texts with ı or İ.
        source_tag: Text in front of each source, such as `>>deu<<`, which names a language.
        allow_unknown: Whether translations may have the token of unknown subwords, `unk_id`, and
            bytes of control characters. Marian allows neither.
        by_sentence: Whether each sentence of a line is translated on its own. Otherwise each line
            is translated whole, as for the prompt of a language model.
        mark_pattern: A regular expression that finds the pieces which are copied, see `Marks`.
        repair_loops: Whether to search once more, without repeated sequences of three tokens, where
            a translation repeats itself and its source does not.
        usual: The usual lengths and quality of translations, for flags; None if not measured.

    Example:
        >>> search = tt.Search(beam_size=4, max_length=16)
        >>> translator = tt.Translator.from_model(model, tokenizer, tokenizer, search)
        >>> translator.search
        {'beam_size': 4, 'length_penalty': 0.6}
    """

    beam_size: int = 1
    length_penalty: float = 0.6
    max_length: int = 128
    max_length_ratio: float = 2.0
    fold_capitals: bool = False
    dotless_i: bool | None = None
    source_tag: str = ""
    allow_unknown: bool = True
    by_sentence: bool = True
    mark_pattern: str | None = None
    repair_loops: bool = True
    usual: Usual | None = None

    def require_fit(
        self,
        model: TranslationModel,
        source_tokenizer: GraphTokenizer,
        target_tokenizer: GraphTokenizer,
    ) -> None:
        """Raise a `ValueError` unless model, tokenizers and search fit together."""
        config = getattr(model, "config", None)
        for side, tokenizer in (("source", source_tokenizer), ("target", target_tokenizer)):
            for of_model, name in ((f"{side}_vocab_size", "vocab_size"), ("pad_id", "pad_id")):
                value = getattr(tokenizer, name)
                if value != (expected := getattr(config, of_model, value)):
                    raise InputError(
                        f"the {side} tokenizer has {name}={value}, but the model was trained with "
                        f"{name}={expected}; give the tokenizers that it was trained with."
                    )
        if not self.allow_unknown and not hasattr(target_tokenizer, "unk_id"):
            raise InputError("allow_unknown=False needs a target tokenizer that has an unk_id.")
        if self.max_length < 2:  # a token and the end
            raise InputError(f"max_length must be at least 2; received {self.max_length}.")
        if not self.max_length_ratio > 0:
            raise InputError(f"max_length_ratio must be above 0; received {self.max_length_ratio}.")
        is_ours = isinstance(config, ModelConfig)
        if is_ours and (lack := config.lack_of_positions(self.max_length)):
            raise InputError(lack)
        require_search(self.beam_size, self.length_penalty, target_tokenizer.vocab_size)

    def output_limits(self, source_lengths: tf.Tensor) -> tf.Tensor:
        """Return the limits in tokens: `min(max_length_ratio * source_length + 10, max_length)`.

        Source lengths and limits are int32 `(B,)`.
        """
        limits = self.max_length_ratio * tf.cast(source_lengths, tf.float32) + 10
        return tf.cast(tf.minimum(limits, self.max_length), tf.int32)


@dataclasses.dataclass(eq=False)
class ModelSearch:
    """The searches for translations by a model, from token ids to `Hypotheses`.

    Each also returns, bool `(B,)`, which sentences were searched once more to repair a loop.
    """

    model: TranslationModel
    tokenizer: GraphTokenizer
    settings: Search
    source_marks: MarkIds

    @shared_function(*_SOURCE, LENGTH_PENALTY)
    def greedy(
        self, source_ids: tf.Tensor, limits: tf.Tensor, length_penalty: tf.Tensor
    ) -> Searched:
        """Search greedily."""
        search = functools.partial(greedy_search, length_penalty=length_penalty)
        return self._run(search, source_ids, limits)

    @shared_function(*_SOURCE, *BEAM)
    def beam(
        self,
        source_ids: tf.Tensor,
        limits: tf.Tensor,
        beam_size: tf.Tensor,
        length_penalty: tf.Tensor,
        n_best: tf.Tensor,
    ) -> Searched:
        """Search with a beam."""
        options = {"beam_size": beam_size, "length_penalty": length_penalty, "n_best": n_best}
        return self._run(functools.partial(beam_search, **options), source_ids, limits)

    def _run(
        self, search: Callable[..., Hypotheses], source_ids: tf.Tensor, limits: tf.Tensor
    ) -> Searched:
        """Search without constraints where there is no mark, and again where there is a loop."""

        # It is called for two reasons, and traced once.
        @shared_function(*_SOURCE, _MAY_REPEAT)
        def constrained(
            source_ids: tf.Tensor, limits: tf.Tensor, may_repeat: tf.Tensor
        ) -> Hypotheses:
            """Search for translations with all marks; sequences repeat only where `may_repeat`."""
            constraints = []
            if self.source_marks.plain:
                marks = self.source_marks, self.tokenizer.mark_ids
                constraints += [MarksOnce(source_ids, *marks, self.tokenizer.eos_id)]
                num_marks = tf.reduce_sum(tf.cast(self._is_mark(source_ids), tf.int32), axis=1)
                limits = tf.maximum(limits, num_marks)
            if self.settings.repair_loops:
                constraints += [NoRepeats(~may_repeat, _REPEATED)]
            return self._search(search, source_ids, limits, constraints)

        if self.source_marks.plain:
            hypotheses = tf.cond(
                tf.reduce_any(self._is_mark(source_ids)),
                lambda: constrained(source_ids, limits, tf.fill(tf.shape(limits), True)),
                lambda: self._search(
                    search, source_ids, limits, [Never(self.tokenizer.mark_ids.all)]
                ),
            )
        else:
            hypotheses = self._search(search, source_ids, limits, [])
        unrepaired = *hypotheses, tf.zeros_like(limits, tf.bool)
        if not self.settings.repair_loops:
            return unrepaired
        is_source = source_ids != self.tokenizer.pad_id
        source_lengths = tf.reduce_sum(tf.cast(is_source, tf.int32), axis=1)
        # A loop hardly ends before its translation is longer than the source.
        lengths = hypotheses.lengths[:, 0]
        is_long = lengths > source_lengths + _LONGER

        @not_inlined
        def repaired() -> Searched:
            loops = is_long & has_loop(hypotheses.ids[:, 0], lengths)
            loops &= ~has_loop(source_ids, source_lengths)
            return tf.cond(tf.reduce_any(loops), lambda: again(loops), lambda: unrepaired)

        def again(loops: tf.Tensor) -> Searched:
            rows = tf.where(loops)
            few = tf.gather_nd(source_ids, rows), tf.gather_nd(limits, rows)
            better = constrained(*few, tf.fill(tf.shape(few[1]), False))
            return *replace_rows(hypotheses, rows, better, self.tokenizer.pad_id), loops

        return tf.cond(tf.reduce_any(is_long), repaired, lambda: unrepaired)

    def _is_mark(self, source_ids: tf.Tensor) -> tf.Tensor:
        return tf.reduce_any(source_ids[:, :, None] == self.source_marks.all, axis=2)

    def _search(
        self,
        search: Callable[..., Hypotheses],
        source_ids: tf.Tensor,
        limits: tf.Tensor,
        constraints: Sequence[Constraint],
    ) -> Hypotheses:
        """Call a search, with unknown and control tokens only if the settings allow them."""
        ids = {name: getattr(self.tokenizer, name) for name in ("pad_id", "bos_id", "eos_id")}
        if not self.settings.allow_unknown:
            unknown = self.tokenizer.unk_id, *getattr(self.tokenizer, "control_ids", ())
            constraints = [Never(unknown), *constraints]
        cache = self.model.start_decoding(source_ids)
        return search(self.model.decode_step, cache, limits, constraints=constraints, **ids)


def require_search(beam_size: int, length_penalty: float, vocab_size: int) -> None:
    """Raise a `ValueError` unless the beam size and the length penalty are in range."""
    if not 1 <= beam_size <= vocab_size:
        raise InputError(f"beam_size must be from 1 to {vocab_size}; received {beam_size}.")
    if not 0 <= length_penalty <= 10:
        raise InputError(f"length_penalty must be from 0 to 10; received {length_penalty}.")

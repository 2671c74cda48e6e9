"""The contract between a translation model and what decodes with it."""

import inspect
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import tensorflow as tf

Cache = dict[str, Any]
DecodeStep = Callable[[tf.Tensor, tf.Tensor, Cache], tuple[tf.Tensor, Cache]]


@runtime_checkable
class TranslationModel(Protocol):
    """A model that translations can be decoded with, one token at a time.

    For B sentences with K hypotheses each, the N = B * K hypotheses are ordered by sentence: those
    of a sentence are consecutive.

    The cache is a dict of up to four parts, each a nested structure (usually a dict) of tensors.
    The part of a tensor says what it belongs to, and so what a search may do with it:

    - `"constants"`: anything that belongs to no sentence. It never changes, and a search only
      passes it on; the values need not be tensors.
    - `"source"` `(B, …)`: belongs to the sentences and never changes, such as keys and values of
      the encoder's output. A search may remove sentences that are done.
    - `"history"` `(B, …)`: belongs to the sentences, and each step changes it, such as keys and
      values of the target tokens of all K hypotheses. A search may remove sentences, and never
      re-orders hypotheses in it.
    - `"target"` `(N, …)`: belongs to the hypotheses, and each step changes it. A search may remove
      sentences, and in each step gives every hypothesis the state of its parent. Re-ordering
      copies, so large tensors decode faster in `"history"`.

    A model has the parts that it needs. A dict without any of these names is a flat cache, all of
    which belongs to `"target"`. A step returns the structure that it received; it may omit
    `"constants"` and `"source"`. With `num_steps` None an axis that grows by one in each step has
    size 0 at first; all other axes but the first keep their sizes. With `num_steps` every tensor
    has its final shape from the start, as XLA needs it, with space for that many steps.

    Optional is the call of teacher forcing: `model({"source_ids": (B, S), "target_ids": (B, T)},
    training=False)` returns logits `(B, T, V)`, of which those at t predict the token after
    `target_ids[:, t]`; see `has_teacher_forcing`. With `return_attention_scores=True` it returns
    also a dict whose `"cross"` is a list of each decoder layer's attention to the source,
    `(B, H, T, S)`; see `has_attention_scores`.
    """

    @property
    def weights(self) -> list[Any]:
        """All variables, which a SavedModel of the translator stores."""
        ...

    def start_decoding(
        self,
        source_ids: tf.Tensor,
        num_steps: int | tf.Tensor | None = None,
        beam_size: int | tf.Tensor | None = None,
    ) -> Cache:
        """Encodes the source, once for all steps.

        Args:
            source_ids: int32 `(B, S)`, padded after the end token.
            num_steps: number of steps that there is space for, or None for tensors that grow.
            beam_size: K; None as in greedy search, where N = B.

        Returns:
            the cache of the first step.
        """
        ...

    def decode_step(
        self, token_ids: tf.Tensor, index: tf.Tensor, cache: Cache
    ) -> tuple[tf.Tensor, Cache]:
        """Predicts the token after `token_ids`.

        Must not depend on other sentences of the batch, nor on `index` being the same for all
        calls of a trace: it is called in a graph, in a loop.

        Args:
            token_ids: int32 `(N,)`, the token at position `index` of each hypothesis: the begin
                token at first, padding once a sentence is done.
            index: int32 scalar, from 0 on.
            cache: as `start_decoding` or the step before returned it, except for what a search
                may do with its parts.

        Returns:
            logits `(N, V)`, float32 (searches convert other float dtypes), and the cache of the
            next step.
        """
        ...


# How the methods are called: names of arguments by position, and those by keyword.
_CALLS = {
    "start_decoding": (("source_ids",), ("num_steps", "beam_size")),
    "decode_step": (("token_ids", "index", "cache"), ()),
}


def require_translation_model(model: Any) -> None:
    """Raises unless `model` has what `TranslationModel` asks for.

    Raises:
        TypeError: `model` is a class, or lacks `weights`, a method or an argument of one.
    """
    if isinstance(model, type):
        raise TypeError(f"model must be an instance; received the class {model.__name__}.")
    kind = type(model).__name__
    for method, (positional, keywords) in _CALLS.items():
        function = getattr(model, method, None)
        if not callable(function):
            raise TypeError(f"a translation model needs the method {method}; {kind} has none.")
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            continue  # Built-in callables have no signature.
        for number, name in enumerate(positional, 1):
            if not _accepts(signature.bind_partial, [None] * number, ()):
                raise TypeError(
                    f"{kind}.{method} must take {name} as positional argument {number}; "
                    f"received {method}{_one_line(signature)}."
                )
        values = [None] * len(positional)
        for name in keywords:
            if not _accepts(signature.bind_partial, values, [name]):
                raise TypeError(
                    f"{kind}.{method} must take the keyword argument {name}; "
                    f"received {method}{_one_line(signature)}."
                )
        if not _accepts(signature.bind, values, ()):
            raise TypeError(
                f"{kind}.{method} must need no arguments but {', '.join(positional)}; "
                f"received {method}{_one_line(signature)}."
            )
    if not hasattr(model, "weights"):
        raise TypeError(f"a translation model needs the attribute weights; {kind} has none.")


def has_teacher_forcing(model: Any) -> bool:
    """Whether a model has the call of teacher forcing, with an argument named `training`."""
    return "training" in _call_arguments(model)


def has_attention_scores(model: Any) -> bool:
    """Whether that call has an argument named `return_attention_scores` too."""
    return {"training", "return_attention_scores"} <= _call_arguments(model)


def _call_arguments(model):
    # The `__call__` of a Keras model takes anything, its `call` what it says.
    call = getattr(model, "call", model)
    try:
        return set(inspect.signature(call).parameters)
    except (TypeError, ValueError):
        return set()  # no callable, or one without a signature


def _accepts(bind, values, names):
    try:
        bind(*values, **dict.fromkeys(names))
    except TypeError:
        return False
    return True


def _one_line(signature):
    return " ".join(str(signature).split())[:120]

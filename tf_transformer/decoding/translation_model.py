"""The protocol of models that a search can decode: a decoding step and its cache."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from tf_transformer.decoding.constraints import Constraint, Step

Cache = dict[str, Any]
DecodeStep = Callable[[tf.Tensor, tf.Tensor, Cache], tuple[tf.Tensor, Cache]]

_PARTS = ("constants", "source", "target")


class TranslationModel(Protocol):
    """A model that a search can decode with, one token at a time.

    A model decodes N rows and need not know what they are: B sentences at first, and in beam search
    K consecutive hypotheses of each, N = B * K. The cache is a dict of up to three parts, nested
    structures of tensors. Their names say what a search may do with them:

    - `"constants"` belong to no row. They never change and need not be tensors.
    - `"source"` `(N, …)` never changes, like keys and values of the encoder's output. A search
      removes sentences that are done.
    - `"target"` `(N, …)` changes in each step, like keys and values of the target tokens. A search
      removes sentences, and gives every hypothesis the state of its parent in each step.

    A step receives all three parts, `{}` for one that the cache lacks, and returns at least
    `"target"`, with the structure that it had. An axis that grows in each step has size 0 at first,
    and all other axes except the first keep their sizes.

    A model may also be called with teacher forcing: `model({"source_ids": (B, S), "target_ids":
    (B, T)}, training=False)` returns logits `(B, T, V)`; the logits at t predict the token after
    `target_ids[:, t]`. With `return_attention_scores=True` the call also returns a dict whose
    `"cross"` lists the attention of each decoder layer to the source, `(B, H, T, S)`.
    """

    @property
    def weights(self) -> list[Any]:
        """All variables, which a SavedModel of the translator stores."""

    def start_decoding(self, source_ids: tf.Tensor) -> Cache:
        """Encode the source `(B, S)`, padded after the end token, once for all steps."""

    def decode_step(
        self, token_ids: tf.Tensor, index: tf.Tensor, cache: Cache
    ) -> tuple[tf.Tensor, Cache]:
        """Predict the token after `token_ids`; no sentence may depend on the others in its batch.

        Takes the tokens `(N,)` at position `index` of each row (the begin token at first,
        any token once a sentence is done) and the cache of the previous step. Returns logits
        `(N, V)` of a float dtype, and the cache of the next step.
        """


def split_cache(
    decode_step: DecodeStep, cache: Cache, limits: tf.Tensor, constraints: Sequence[Constraint]
) -> tuple[Callable, Any, Any]:
    """Return a step `(token_ids, index, source, target) -> (logits, allowed, target)`.

    `logits`, float32 `(N, V)`, are those of the model, and `allowed` the same, or minus infinity
    where a constraint forbids a token. The function also returns the parts `"source"` and
    `"target"` for the first step, with what the constraints need.
    """
    if unknown := sorted(cache.keys() - set(_PARTS)):  # a search would not re-order it
        raise ValueError(f"cache has the unknown part {unknown[0]!r}; known are {_PARTS}.")
    constants, *parts = (cache.get(name, {}) for name in _PARTS)
    source, target = tf.nest.map_structure(tf.convert_to_tensor, parts)
    start = tuple(constraint.start() for constraint in constraints)

    def step(token_ids: tf.Tensor, index: tf.Tensor, source: Any, target: Any) -> Any:
        parts = {"constants": constants, "source": source["model"], "target": target["model"]}
        logits, cache = decode_step(token_ids, index, parts)
        logits = allowed = tf.cast(logits, tf.float32)
        states = []
        for constraint, state in zip(constraints, target["states"], strict=True):
            now = Step(allowed, token_ids, index, source["limits"])
            may_follow, state = constraint.step(now, state)
            if may_follow.shape.rank == 1:  # a sum takes half of the time of a broadcast choice
                allowed += tf.where(may_follow, 0.0, float("-inf"))
            else:
                allowed = tf.where(may_follow, allowed, float("-inf"))
            states.append(state)
        return logits, allowed, {"model": cache["target"], "states": tuple(states)}

    source = {"model": source, "limits": limits if constraints else ()}
    return step, source, {"model": target, "states": start}

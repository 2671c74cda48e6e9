"""A model with smaller vocabularies."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from keras import ops

from tf_transformer.models.base import SequenceModel
from tf_transformer.models.configs import ModelConfig


def trim_model(
    model: SequenceModel, config: ModelConfig, source_ids: Sequence[int], target_ids: Sequence[int]
) -> SequenceModel:
    """A model that computes as another one does, of fewer tokens.

    The logits of the tokens that are left are the same, up to rounding. Any architecture will do:
    which axes of its weights are vocabularies is seen in a second model of other vocabularies.

    Args:
        model: The model.
        config: Its configuration with the smaller vocabularies and their `pad_id`.
        source_ids: The source ids to keep, in the order of their new ids.
        target_ids: The same for the target; those of the source where the vocabulary is joint.

    Raises:
        ValueError: The size of some weight depends on a vocabulary in another way.
    """
    sizes = model.config.source_vocab_size, model.config.target_vocab_size
    is_joint = sizes[0] == sizes[1] and np.array_equal(source_ids, target_ids)
    # No axis has these sizes by accident, since only axes that differ are compared with them.
    source_size = max(sizes) + 1
    target_size = source_size + (not is_joint)
    ids_of = {source_size: source_ids, target_size: target_ids}
    other = dataclasses.replace(
        model.config, source_vocab_size=source_size, target_vocab_size=target_size
    )
    other_shapes = [variable.shape for variable in type(model)(other).variables]
    trimmed = type(model)(config, dtype=model.dtype_policy)
    rows = zip(trimmed.variables, model.variables, other_shapes, strict=True)
    for variable, old, other_shape in rows:
        value = ops.convert_to_numpy(old)
        for axis, (size, other_size) in enumerate(zip(old.shape, other_shape, strict=True)):
            if size != other_size and other_size in ids_of:
                value = np.take(value, ids_of[other_size], axis)
        if value.shape != tuple(variable.shape):
            raise ValueError(
                f"{old.path} of the shape {tuple(old.shape)} cannot be trimmed to "
                f"{tuple(variable.shape)}: no axis of it is a vocabulary."
            )
        variable.assign(value)
    return trimmed

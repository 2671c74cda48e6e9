"""The base class of the models: what Keras needs of each of them."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import keras
from keras import ops

from tf_transformer.layers.base import DType, Tensor
from tf_transformer.layers.output_projection import OutputProjection
from tf_transformer.layers.token_statistics import token_statistics
from tf_transformer.models.configs import ModelConfig

Cache = dict[str, dict[str, Tensor]]


class SequenceModel(keras.Model):
    """A model of target tokens, given source tokens, that Keras trains and saves.

    Subclasses set `config_class`, create their layers and `output_projection`, build them, and
    have the three entry points of the model contract: `call` (teacher forcing), `start_decoding`
    and `decode_step`. All weights exist after the constructor.

    Args:
        config: an instance of `config_class`, or a dict of its fields.
        name: the model's name; None for one made from the class.
        trainable: whether the weights are trained.
        dtype: dtype policy, such as `"mixed_bfloat16"`; None for the global one.

    Raises:
        ConfigError: `config` lacks the sizes of the vocabularies.
    """

    config_class: ClassVar[type[ModelConfig]]
    output_projection: keras.Layer

    def __init__(
        self,
        config: ModelConfig | Mapping[str, Any],
        *,
        name: str | None = None,
        trainable: bool = True,
        dtype: DType = None,
    ) -> None:
        name = name or re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()
        super().__init__(name=name, trainable=trainable, dtype=dtype)
        self.supports_jit = False  # see `compile`
        if not isinstance(config, self.config_class):
            config = self.config_class(**config)
        config.require_complete()
        self.config = config
        self._create_layers()
        self.build()

    def _create_layers(self) -> None:
        raise NotImplementedError

    def _build_layers(self) -> None:
        raise NotImplementedError

    def build(self, input_shape: Any = None) -> None:
        if not self.built:
            self._build_layers()

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Builds the optimizer of a strategy, because all else is built.

        Keras would average a batch over the replicas of a strategy first, which fails where the
        first batch does not divide evenly (Keras 3.15.1).
        """
        if self._distribute_strategy and self.optimizer and not self.optimizer.built:
            with self._distribute_strategy.scope():
                self.optimizer.build(self.trainable_variables)

    def __setattr__(self, name: str, value: Any) -> None:
        replaced = vars(self).get(name)
        if not (getattr(self, "built", False) and isinstance(replaced, keras.Layer)):
            return super().__setattr__(name, value)
        # Keras allows no new layer once a model is built; this one takes the place of another.
        self._tracker.unlock()
        self._tracker.untrack(replaced)
        super().__setattr__(name, value)
        self._tracker.lock()

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """As `keras.Model.compile`, but XLA compiles only with `jit_compile=True`, not by default.

        Raises:
            ValueError: The loss or a metric has another `pad_id` than the model.
        """
        self._check_pad_ids("compile", *keras.tree.flatten((args, kwargs)))
        # With "auto" XLA would compile anew for every batch shape.
        self.supports_jit = kwargs.get("jit_compile") is True
        super().compile(*args, **kwargs)

    def compile_from_config(self, config: dict[str, Any]) -> None:
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None:
            self.optimizer.build(self.trainable_variables)

    def fit(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        """As `keras.Model.fit`.

        Raises:
            ValueError: The data are the dataset of `TokenBatches` with another padding id than the
                model's, or are validation data of that kind.
        """
        self._check_pad_ids("fit", x, kwargs.get("validation_data"))
        return super().fit(x, *args, **kwargs)

    def evaluate(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        """As `keras.Model.evaluate`, with the errors of `fit`."""
        self._check_pad_ids("evaluate", x)
        return super().evaluate(x, *args, **kwargs)

    def _check_pad_ids(self, method: str, *parts: Any) -> None:
        for part in parts:
            pad_id = getattr(part, "pad_id", self.config.pad_id)
            if pad_id != self.config.pad_id:
                raise ValueError(
                    f"{method} received a {type(part).__name__} with pad_id={pad_id}, but the "
                    f"model has pad_id={self.config.pad_id}; use one padding id for both."
                )

    def export(self, filepath: str, *args: Any, **kwargs: Any) -> None:
        """As `keras.Model.export`; the default signature takes the dict of token ids."""
        names = ("source_ids", "target_ids")
        kwargs.setdefault(
            "input_signature",
            [{name: keras.InputSpec(shape=(None, None), dtype="int32") for name in names}],
        )
        super().export(filepath, *args, **kwargs)

    def _output_projection(self, embedding: keras.layers.Embedding | None) -> OutputProjection:
        """The projection to the target's vocabulary, tied to an embedding or not."""
        return OutputProjection(
            self.config.target_vocab_size,
            self.config.pad_id,
            embedding,
            dtype="float32",
            name="output_projection",
        )

    def _output(self, hidden: Tensor, labels: Tensor | None) -> Tensor:
        """The result of a call: logits, or the statistics of labels."""
        if labels is None:
            return self._logits(hidden)
        if isinstance(self.output_projection, OutputProjection):
            return self.output_projection(hidden, labels)
        return token_statistics(labels, self._logits(hidden), self.config.pad_id)

    def _logits(self, hidden: Tensor) -> Tensor:
        return ops.cast(self.output_projection(hidden), "float32")

    def _output_kernel(self) -> dict[str, Tensor]:
        """Constants of a portable cache: a tied output matrix, transposed once for all steps."""
        head = self.output_projection
        if isinstance(head, OutputProjection) and head.embedding is not None:
            return {"output_kernel": head.kernel_and_bias()[0]}
        return {}

    def _step_logits(self, hidden: Tensor, constants: Mapping[str, Tensor]) -> Tensor:
        """The logits `(N, V)` of a decoding step."""
        if "output_kernel" not in constants:
            return self._logits(hidden)
        return ops.matmul(ops.cast(hidden, "float32"), constants["output_kernel"])

    def get_config(self) -> dict[str, Any]:
        policy = self.dtype_policy
        quantized = {
            layer.path: layer.dtype_policy
            for layer in self._flatten_layers(include_self=False)
            if layer.quantization_mode is not None
        }
        if quantized:
            policy = keras.dtype_policies.DTypePolicyMap(policy, quantized)
        return {
            "name": self.name,
            "trainable": self.trainable,
            "dtype": keras.saving.serialize_keras_object(policy),
            "config": self.config.to_dict(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        policy = keras.dtype_policies.get(config["dtype"])
        if not isinstance(policy, keras.dtype_policies.DTypePolicyMap):
            return cls(**config)
        model = cls(**{**config, "dtype": policy.default_policy})
        for layer in model._flatten_layers(include_self=False):
            if layer.path in policy:  # quantizes the layer
                layer.dtype_policy = policy[layer.path]
        return model


def split_inputs(model: str, inputs: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    """Returns source ids, target ids, and labels or None.

    Args:
        model: the model's class, for errors.
        inputs: dict of `source_ids`, `target_ids` and perhaps `labels`, or a tuple or list of both.

    Raises:
        ValueError: `inputs` is no such dict, tuple or list.
    """
    names, received = ("source_ids", "target_ids"), type(inputs).__name__
    if isinstance(inputs, tuple | list):
        if len(inputs) == len(names):
            return (*inputs, None)
        received = f"{len(inputs)} inputs"
    elif isinstance(inputs, Mapping):
        if set(names) <= set(inputs) <= {*names, "labels"}:
            return inputs["source_ids"], inputs["target_ids"], inputs.get("labels")
        received = f"the keys {sorted(inputs)}"
    raise ValueError(
        f"{model} needs a dict with the keys source_ids, target_ids and optionally labels, or "
        f"the tuple (source_ids, target_ids); received {received}."
    )

"""The recipe: settings for a corpus, a budget and devices, where the user gives none.

dev/LOG.md records what was measured for each rule and what was not. This module does not import
TensorFlow, so that `train --explain` answers at once.
"""

import dataclasses
import glob
import math
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tf_transformer.data.corpus import default_vocab_size
from tf_transformer.data.noise import has_dotless_i, upper_case
from tf_transformer.data.text import Corpus
from tf_transformer.errors import ConfigError
from tf_transformer.evaluation import BLEU, CHRF, LOSS, Metric, bleu_tokenizer
from tf_transformer.run_config import RunConfig

# Maps names such as "training.warmup_steps" to the chosen value and the reason for it.
Choices = Mapping[str, tuple[Any, str]]

# Characters per subword, as counted in some European languages.
_CHARACTERS_PER_TOKEN = 3.6
# The speed of one core in tokens times weights per second, and the seconds of a batch that more
# cores do not shorten.
_WEIGHTS_PER_SECOND = 1.4e10
_SECONDS_NOT_SHARED = 0.03
_ROW_LENGTH = 256
_MOST_UPDATES = 200_000  # where no length is given; 300,000 are the paper's longest training
_LARGE_BATCH = 16_384  # tokens; the paper has 25,000
_FEWEST_SUBWORDS = 1000  # of a vocabulary with marks
_VOCAB_SIZE_OF_IMPORTS = 32_000  # usual
# The metric for each value of the setting `criterion`, and the reason to choose it.
_METRICS = {
    "bleu": (BLEU, "the usual metric of translations"),
    "chrf": (CHRF, "BLEU is near 0 for sentences of fewer than four words"),
    "loss": (LOSS, "nothing is translated"),
}


class Facts(NamedTuple):
    """Facts about the training text and the machines, on which the choices depend.

    Attributes:
        num_pairs: Number of training pairs.
        tokens_per_pair: Estimated number of target tokens in a pair.
        has_small_letters: Whether nearly all source sentences have lowercase letters.
        cores, gpus: Number of CPU cores and of GPUs on all machines together.
        unit: What `num_pairs` counts; see `Corpus.unit`.
        criterion: The validation metric that suits the text.
        dotless_i: Whether the sources are Turkish or Azeri, see `has_dotless_i`.
        bfloat16: Whether the GPUs have products in bfloat16.
    """

    num_pairs: int
    tokens_per_pair: float
    has_small_letters: bool
    cores: int
    gpus: int
    unit: str = "pair"
    criterion: str = "bleu"
    dotless_i: bool = False
    bfloat16: bool = True

    @classmethod
    def of(cls, config: RunConfig, corpus: Corpus, cores: int, gpus: int) -> "Facts":
        """Collect the facts from a configuration and a sample of the training text."""
        sources, targets = zip(*corpus.sample, strict=True)
        criterion = "bleu" if translates(config) else "loss"
        # BLEU compares sequences of up to four words.
        are_short = sum(len(target.split()) < 4 for target in targets) > 0.75 * len(targets)
        if criterion == "bleu" and are_short and bleu_tokenizer(targets) == "13a":
            criterion = "chrf"
        tokens_per_pair = sum(map(len, targets)) / len(targets) / _CHARACTERS_PER_TOKEN + 1
        num_with_small = sum(source != upper_case(source) for source in sources)
        has_small_letters = num_with_small > 0.9 * len(sources)
        return cls(
            len(corpus.train), tokens_per_pair, has_small_letters, cores, gpus, corpus.unit,
            criterion, has_dotless_i(sources),
        )  # fmt: skip

    def summary(self, config: RunConfig) -> str:
        """Return one line, such as `"29,000 pairs, 45 minutes, 2 cores"`."""
        training = config.training
        counts = [
            (self.num_pairs, self.unit),
            (training.minutes, "minute"),
            (training.epochs, "epoch"),
            (training.steps, "update"),
            (self.gpus, "GPU") if self.gpus else (self.cores, "core"),
        ]
        return ", ".join(_counted(count, noun) for count, noun in counts if count is not None)


class Budget(NamedTuple):
    """The length of a training, as far as it can be estimated beforehand."""

    updates: int
    minutes: float


def translates(config: RunConfig) -> bool:
    """Return whether a run can translate its validation text, rather than only score it."""
    return config.data.has_sources and config.model.translates


def metric_of(config: RunConfig) -> Metric:
    """Return the metric that selects the best checkpoint of a run."""
    name = config.training.criterion or ("bleu" if translates(config) else "loss")
    if name != "loss" and not translates(config):
        raise ConfigError(
            f"criterion={name!r} needs translations, and this run makes none. Omit it."
        )
    return _METRICS[name][0]


def choose(config: RunConfig, facts: Facts) -> Choices:
    """Choose values, with reasons, for the settings that a configuration leaves open."""
    data, training, num_pairs = config.data, config.training, facts.num_pairs
    is_tuning = training.initialize_from is not None
    rules: Choices = {}
    if not any(getattr(training, length) for length in training.LENGTHS):
        epochs = min(100, max(10, round(1_200_000 / num_pairs)))
        reason = "no length was given, and small text needs more passes"
        if is_tuning:
            epochs, reason = epochs // 10, "no length was given, and the weights are trained"
        rules["training.epochs"] = (epochs, reason)
    if not is_tuning:
        rules["tokenizer.vocab_size"] = (
            default_vocab_size(data.corpus, num_pairs),
            "rare subwords of a small text would hardly be trained",
        )
    rules["data.batch_tokens"] = (
        _batch_tokens(facts, config),
        "many updates are worth more than large batches, while the device is busy",
    )
    rules["training.steps_per_execution"] = (
        10 if facts.gpus else 1,
        "so that no GPU waits for Python",
    )
    config_so_far = with_choices(config, _open(config, rules), "")
    budget = estimate_budget(config_so_far, facts)
    if facts.gpus and "training.epochs" in rules and budget.updates > _MOST_UPDATES:
        del rules["training.epochs"]
        rules["training.steps"] = (_MOST_UPDATES, "no length was given, and more hardly help")
        config_so_far = with_choices(config, _open(config, rules), "")
        budget = estimate_budget(config_so_far, facts)
    source = "" if training.minutes is None else " by a guess of the speed"
    dropout_rate = 0.3 if num_pairs < 10_000 else 0.15 if num_pairs < 100_000 else 0.1
    attention_rate = 0.1 if num_pairs < 100_000 else 0.0
    decay = 0.1 if num_pairs < 100_000 and not is_tuning else 0.0
    # Very little text has too few examples of each word, and the ids in a cache stay the same.
    is_noisy = data.has_sources and 2_000 <= num_pairs < 1_000_000 and data.data_cache is None
    noise = 0.1 if is_noisy else 0.0
    vocab_size = config.tokenizer.vocab_size or default_vocab_size(data.corpus, num_pairs)
    has_room = is_tuning or vocab_size >= _FEWEST_SUBWORDS
    has_marks = translates(config) and data.corpus not in ("copy", "reverse") and has_room
    marks, practice = (16, 0.05 if noise else 0.0) if has_marks else (0, 0.0)
    row_length = 0
    if facts.gpus and config.model.packs and data.has_sources:  # else one side would be empty
        batch_tokens = config_so_far.data.batch_tokens
        row_length = min(batch_tokens, max(_ROW_LENGTH, data.max_length))
    is_packed = (row_length if data.row_length is None else data.row_length) > 0
    half = "mixed_bfloat16" if facts.gpus and facts.bfloat16 else "float32"
    rules |= _choices_of_budget(config_so_far, budget, source) | {
        "data.row_length": (row_length, "one shape for GPUs, with 4 % padding"),
        "training.precision": (half, "GPUs since Ampere are built for bfloat16"),
        "training.xla": (facts.gpus > 0 and is_packed, "it compiles anew for each shape"),
        "training.clip_norm": (
            1.0 if facts.gpus else 0.0,
            "so that one spike does not end a long training; not needed in short ones",
        ),
        "training.batch_parts": (
            1 if facts.gpus else parts_on_cores(facts.cores),
            "one for each core, which only two cores have been measured with",
        ),
        "training.criterion": (facts.criterion, _METRICS[facts.criterion][1]),
        "model.dropout_rate": (dropout_rate, "a small text is memorized sooner"),
        "model.attention_dropout_rate": (attention_rate, "likewise, for the attention weights"),
        "training.weight_decay": (decay, "small text is memorized less; not for tuned weights"),
        "data.source_noise": (noise, "against typing errors; 2,000 to 1,000,000 pairs in memory"),
        "data.marks": (marks, "so that placeholders and tags are kept, in vocabularies from 1,000"),
        "data.mark_practice": (practice, "most text has too few placeholders; as for noise"),
        "data.fold_capitals": (
            facts.has_small_letters,
            "so that headlines are read like sentences, if the text has lowercase",
        ),
    }
    reason = "a third of Turkish or Azeri sources, and hardly others, have ı or İ"
    rules["data.dotless_i"] = (facts.dotless_i, reason)
    return _open(config, rules)


def choose_by_updates(config: RunConfig, updates: int) -> RunConfig:
    """Replace the guesses in a complete configuration, given the measured number of updates."""
    budget = Budget(updates, config.training.minutes)
    choices = _choices_of_budget(config, budget, " by the measured speed")
    if config.training.schedule == "noam":
        # The Noam schedule was already made from the learning rate and the warm-up steps.
        choices = {"training.validation_steps": choices["training.validation_steps"]}
    choices = {name: choice for name, choice in choices.items() if name in config.chosen}
    return with_choices(config, choices, config.chosen.get("for", ""))


def parts_on_cores(num_cores: int) -> int:
    """Return the number of parts of a batch on a CPU; more than two cores were not measured."""
    return 2 if num_cores == 2 else 1


def estimate_budget(config: RunConfig, facts: Facts) -> Budget:
    """Estimate updates from minutes, or minutes from updates, by the speed of similar machines.

    The estimated speed is within 20 % for `tiny` and `base` on one and two cores (dev/LOG.md). It
    is rough for more cores and for a GPU, which counts as 250 cores.
    If minutes are given, training measures the speed.
    """
    training, model = config.training, config.model
    tokens = 0.95 * config.data.batch_tokens  # the rest is padding
    encoder, d_ff = getattr(model, "num_layers", 1), getattr(model, "d_ff", model.d_model)
    decoder = getattr(model, "decoder_layers", None) or encoder
    weights = encoder * model.d_model * (4 * model.d_model + 2 * d_ff)
    weights += decoder * model.d_model * (8 * model.d_model + 2 * d_ff)
    # The vocabulary of an import is known only when its tokenizers are loaded.
    vocab_size = model.target_vocab_size or config.tokenizer.vocab_size or _VOCAB_SIZE_OF_IMPORTS
    weights += vocab_size * model.d_model
    seconds = tokens * weights / (_WEIGHTS_PER_SECOND * (250 * facts.gpus or facts.cores))
    seconds += _SECONDS_NOT_SHARED
    seconds *= training.accumulation_steps
    updates = training.steps
    if training.epochs is not None:
        all_tokens = training.epochs * facts.num_pairs * facts.tokens_per_pair
        updates = all_tokens / (tokens * training.accumulation_steps)
    if training.minutes is not None:
        updates = training.minutes * 60 / seconds
    return Budget(max(1, round(updates)), training.minutes or updates * seconds / 60)


def with_choices(config: RunConfig, choices: Choices, chosen_for: str) -> RunConfig:
    """Return the configuration with the choices applied and noted in its table `[chosen]`."""
    for setting, (value, reason) in choices.items():
        table, name = setting.split(".")
        section = dataclasses.replace(getattr(config, table), **{name: value})
        chosen = {**config.chosen, "for": chosen_for, setting: reason}
        config = dataclasses.replace(config, chosen=chosen, **{table: section})
    return config


def explain(config: RunConfig, facts: Facts) -> str:
    """Return a text that explains the choices to be made and those noted in a configuration."""
    values = config.settings()
    made = {k: (values[k], reason) for k, reason in config.chosen.items() if k in values}
    lines = []
    for heading, choices in (
        (f"For {facts.summary(config)} would be chosen:", choose(config, facts)),
        (f"For {config.chosen.get('for', 'this run')} was chosen:", made),
    ):
        rows = [
            f"{setting.partition('.')[2]:22}  {value!s:<8}  {reason}"
            for setting, (value, reason) in choices.items()
        ]
        lines += [heading, *rows] if rows else []
    if not lines:
        return f"Nothing to choose for {facts.summary(config)}: every setting is given."
    size = f"The size of the model is not chosen: d_model is {config.model.d_model}; see --preset."
    return "\n".join([*lines, size])


def gpus_by_driver(devices: str | None) -> int:
    """Count the GPUs that training would use, as far as possible without TensorFlow."""
    if devices is not None:
        numbers = re.findall(r"gpu(?::(\d+))?", devices.lower())
        return int(devices) if devices.isdecimal() else len({number or "0" for number in numbers})
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() not in ("", "-1")])
    return len(glob.glob("/dev/nvidia[0-9]*"))


def _open(config: RunConfig, rules: Choices) -> Choices:
    """Return the rules for settings that exist in the configuration and have no value."""
    settings = config.settings()
    return {k: rule for k, rule in rules.items() if k in settings and settings[k] is None}


def _batch_tokens(facts: Facts, config: RunConfig) -> int:
    """Return a power of two that makes about 50 batches an epoch, between two limits."""
    longest = max(256, config.data.max_length, config.data.row_length or 0)
    # As in the paper, per GPU; as much as fits 80 GB is an estimate.
    of_gpu = 32_768 if config.model.d_model <= 512 else 16_384
    most = of_gpu * facts.gpus if facts.gpus else 1024
    wanted = min(most, facts.num_pairs * facts.tokens_per_pair / 50)
    least = math.ceil(math.log2(longest))  # each sentence must fit
    return 2 ** max(least, round(math.log2(wanted)))


def _choices_of_budget(config: RunConfig, budget: Budget, source: str) -> Choices:
    """Return the choices that depend on the budget."""
    updates, minutes = budget
    # The peak falls with the cube root of the updates, down to the lowest that was tried (`tiny`
    # with 13,000 updates).
    longer = min(1.5, max(1.0, (updates / 4000) ** (1 / 3)))
    is_tuning = config.training.initialize_from is not None
    peak = 0.1 if is_tuning else 1.0  # the usual one would undo what was learned before
    # Post-norm needs a much longer warm-up from random weights (Xiong et al. 2020, section 3).
    is_stable = is_tuning or getattr(config.model, "norm_first", True)
    fraction, most = (0.05, 500) if is_stable else (0.2, 4000)
    rate = peak * 0.003 * 128 / config.model.d_model / longer
    if config.data.batch_tokens * config.training.accumulation_steps >= _LARGE_BATCH:
        # Small batches were measured; of large ones the paper tells the rate and the warm-up.
        most, rate = 4000, max(rate, peak * (4000 * config.model.d_model) ** -0.5)
    # One validation per minute, 5 to 15 in total, or one per hour beyond 15 hours. A power cut may
    # cost one interval, because a checkpoint is written before each validation.
    validations = max(5, min(15, round(minutes)), round(minutes / 60))
    interval, together = round(updates / validations), config.training.steps_per_execution or 1
    interval = max(10, round(interval / together) * together)
    number = _counted(max(1, round(updates / interval)), "validation")
    time = _counted(math.ceil(minutes), "minute")
    return {
        "training.learning_rate": (
            float(f"{rate:.3g}"),
            "the peak; a wider model, a longer training and tuned weights need less",
        ),
        "training.warmup_steps": (
            max(10, min(most, round(fraction * updates))),
            f"a small part of the updates, about {updates:,}{source}",
        ),
        "training.validation_steps": (interval, f"for about {number} in an estimated {time}"),
    }


def _counted(count: float, noun: str) -> str:
    """Return a text such as `"1 core"`, `"2,000 pairs"` or `"1.5 minutes"`."""
    number = f"{count:,}" if isinstance(count, int) else f"{count:,.6g}"
    return f"{number} {noun}{'' if count == 1 else 's'}"

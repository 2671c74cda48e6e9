"""The recipe: settings that suit a corpus, a budget and the devices, where the user gives none.

Each function is one rule; what was measured for it, and what was not, is in dev/LOG.md. Nothing
here imports TensorFlow, so that `train --explain` answers at once.
"""

import dataclasses
import glob
import itertools
import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from tf_transformer.config import RunConfig
from tf_transformer.data.corpus import default_vocab_size
from tf_transformer.data.text import Corpus
from tf_transformer.evaluation import bleu_tokenizer
from tf_transformer.training.criterion import translates

# A subword is about so many characters, in the European languages that this was counted in.
_CHARACTERS_PER_TOKEN = 3.6
_SAMPLE_PAIRS = 1000
# What a core trains in a second, tokens times weights, and the seconds of a batch that more cores
# do not shorten.
_WEIGHTS_PER_SECOND = 1.15e10
_SECONDS_NOT_SHARED = 0.1
_CRITERIA = {
    "bleu": "the usual metric of translations",
    "chrf": "BLEU is near 0 for sentences of fewer than four words",
    "loss": "nothing is translated",
}


class Facts(NamedTuple):
    """What a recipe knows.

    Attributes:
        corpus: Name of the corpus.
        num_pairs: Training pairs.
        tokens_per_pair: Estimated target tokens of a pair.
        has_small_letters: Whether nearly all source sentences have small letters.
        cores: CPU cores, those of all machines that train together.
        gpus: GPUs, likewise.
        minutes: The budget of time, or None.
        epochs: The budget of passes, or None.
        steps: The budget of updates, or None.
        unit: What is counted in the corpus, see `Corpus.unit`.
        criterion: The validation metric that tells checkpoints of such text apart.
    """

    corpus: str
    num_pairs: int
    tokens_per_pair: float
    has_small_letters: bool
    cores: int
    gpus: int
    minutes: float | None
    epochs: int | None
    steps: int | None
    unit: str = "pair"
    criterion: str = "bleu"

    @classmethod
    def of(cls, config: RunConfig, corpus: Corpus, cores: int, gpus: int) -> "Facts":
        """Looks at the training text."""
        # From all of it, since a corpus may be sorted.
        step = -(-len(corpus.train) // _SAMPLE_PAIRS)
        sample = list(itertools.islice(corpus.train, 0, None, step))
        targets = [target for _, target in sample]
        characters = sum(map(len, targets)) / len(sample)
        short = sum(len(target.split()) < 4 for target in targets)
        # BLEU compares four words in a row.
        too_short = short > 0.75 * len(sample) and bleu_tokenizer(targets) == "13a"
        criterion = "chrf" if too_short else "bleu"
        training = config.training
        return cls(
            config.data.corpus,
            len(corpus.train),
            characters / _CHARACTERS_PER_TOKEN + 1,
            sum(source != source.upper() for source, _ in sample) > 0.9 * len(sample),
            cores,
            gpus,
            training.minutes,
            training.epochs,
            training.steps,
            corpus.unit,
            criterion if translates(config) else "loss",
        )

    def __str__(self) -> str:
        """One line, such as `"29,000 pairs, 45 minutes, 2 cores"`."""
        counts = [
            (self.num_pairs, self.unit),
            (self.minutes, "minute"),
            (self.epochs, "epoch"),
            (self.steps, "update"),
            (self.gpus, "GPU") if self.gpus else (self.cores, "core"),
        ]
        return ", ".join(_counted(count, noun) for count, noun in counts if count is not None)


class Choice(NamedTuple):
    """A setting that the recipe chose.

    Attributes:
        table: Its table in run.toml.
        name: The setting.
        value: Its value.
        reason: Why, in a few words.
    """

    table: str
    name: str
    value: Any
    reason: str


def choose(config: RunConfig, facts: Facts) -> list[Choice]:
    """The settings that are open in a configuration, with reasons."""
    choices = []

    def add(table: str, name: str, value: Any, reason: str) -> Any:
        """The value that is given; else this one, as a choice."""
        if not hasattr(getattr(config, table), name):
            return value  # a model may lack it
        given = getattr(getattr(config, table), name)
        if given is not None:
            return given
        choices.append(Choice(table, name, value, reason))
        return value

    if facts.minutes is None and facts.steps is None and facts.epochs is None:
        epochs = default_epochs(facts.num_pairs)
        facts = facts._replace(epochs=epochs)
        add("training", "epochs", epochs, "no length was given, and small text needs more passes")
    vocab_size = add(
        "tokenizer", "vocab_size", default_vocab_size(facts.corpus, facts.num_pairs),
        "rare subwords of little text would hardly be trained",
    )  # fmt: skip
    batch_tokens = add(
        "data", "batch_tokens", default_batch_tokens(facts, config.data.max_length),
        "many updates are worth more than large batches, while the device is busy",
    )  # fmt: skip
    budget = estimate_budget(facts, config, vocab_size, batch_tokens)
    source = "" if facts.minutes is None else " by a guess of the speed"
    for choice in _choices_of_budget(config, budget, source):
        add(*choice)
    add("training", "criterion", facts.criterion, _CRITERIA[facts.criterion])
    add(
        "model", "dropout_rate", default_dropout_rate(facts.num_pairs),
        "the less text, the sooner it is known by heart",
    )  # fmt: skip
    add(
        "model", "attention_dropout_rate", default_attention_dropout_rate(facts.num_pairs),
        "likewise, of the attention weights",
    )  # fmt: skip
    noise, reason = 0.0, "there are no sources"
    if config.data.has_sources:
        noise = default_source_noise(facts.num_pairs, config.data.data_cache)
        reason = "none, since it is for 2,000 to 1,000,000 pairs without a cache of token ids"
    if noise:
        reason = "so that small letters or typing errors do not ruin a translation"
    add("data", "source_noise", noise, reason)
    add(
        "data", "fold_capitals", facts.has_small_letters,
        "so that headlines are read as sentences, if the text has small letters",
    )  # fmt: skip
    return choices


def choose_by_updates(config: RunConfig, updates: int) -> RunConfig:
    """The configuration with what was chosen by a guess of its updates chosen by their number.

    Args:
        config: A complete configuration, with `minutes`.
        updates: How many there is time for, by the speed that was measured.
    """
    choices = [
        choice
        for choice in _choices_of_budget(
            config, Budget(updates, config.training.minutes), " by the measured speed"
        )
        if f"{choice.table}.{choice.name}" in config.chosen
        # Noam's schedule is made of the first two, before the speed is known.
        and (config.training.schedule != "noam" or choice.name == "validation_steps")
    ]
    return with_choices(config, choices, config.chosen.get("for", ""))


def _choices_of_budget(config: RunConfig, budget: "Budget", source: str) -> list[Choice]:
    """What the number of updates decides."""
    norm_first = getattr(config.model, "norm_first", True)
    interval = default_validation_steps(budget)
    validations = _counted(max(1, round(budget.updates / interval)), "validation")
    minutes = _counted(math.ceil(budget.minutes), "minute")
    values = {
        "learning_rate": (
            default_learning_rate(config.model.d_model, budget.updates),
            "the peak; a wider model and a longer training need less",
        ),
        "warmup_steps": (
            default_warmup_steps(budget.updates, norm_first),
            f"a small part of the updates, about {budget.updates:,}{source}",
        ),
        "validation_steps": (interval, f"for about {validations} in what may take {minutes}"),
    }
    return [Choice("training", name, *value) for name, value in values.items()]


def default_epochs(num_pairs: int) -> int:
    """Passes where no length of training is given."""
    return min(100, max(10, round(1_200_000 / num_pairs)))


def default_batch_tokens(facts: Facts, max_length: int) -> int:
    """Tokens in a batch, a power of two: about 50 batches a pass, if the text allows."""
    most = 8192 * facts.gpus if facts.gpus else 1024
    wanted = min(most, facts.num_pairs * facts.tokens_per_pair / 50)
    least = math.ceil(math.log2(max(256, max_length)))  # every sentence must fit
    return 2 ** max(least, round(math.log2(wanted)))


def default_learning_rate(d_model: int, updates: int) -> float:
    """The peak of the learning rate: less for a wider model, and for more than 4,000 updates.

    It falls with their cube root, but no further than was tried, with `tiny` and 13,000 updates.
    """
    longer = min(1.5, max(1.0, (updates / 4000) ** (1 / 3)))
    return float(f"{0.003 * 128 / d_model / longer:.3g}")


def default_warmup_steps(updates: int, norm_first: bool) -> int:
    """Updates until the peak; with post-norm many more (Xiong et al. 2020, section 3)."""
    fraction, most = (0.05, 500) if norm_first else (0.2, 4000)
    return max(10, min(most, round(fraction * updates)))


def default_source_noise(num_pairs: int, data_cache: str | None) -> float:
    """Probability of noise.

    None for very little text, which has too few examples of each word to spoil some, and for huge
    text, whose ids are made once and for all.
    """
    return 0.1 if 2_000 <= num_pairs < 1_000_000 and data_cache is None else 0.0


def default_dropout_rate(num_pairs: int) -> float:
    """Dropout of embeddings and sub-layers."""
    for pairs, rate in ((10_000, 0.3), (100_000, 0.2)):
        if num_pairs < pairs:
            return rate
    return 0.1


def default_attention_dropout_rate(num_pairs: int) -> float:
    """Dropout of the attention weights."""
    return 0.1 if num_pairs < 100_000 else 0.0


class Budget(NamedTuple):
    """How much training a budget is, as far as can be said before.

    Attributes:
        updates: Updates of the weights.
        minutes: Minutes.
    """

    updates: int
    minutes: float


def estimate_budget(facts: Facts, config: RunConfig, vocab_size: int, batch_tokens: int) -> Budget:
    """Guesses updates from minutes, or minutes from updates, by the speed of like machines."""
    tokens_per_batch = 0.95 * batch_tokens  # the rest is padding
    tokens_per_update = tokens_per_batch * config.training.accumulation_steps
    seconds_per_update = config.training.accumulation_steps * _seconds_per_batch(
        facts, config.model, vocab_size, tokens_per_batch
    )
    updates = facts.steps
    if facts.epochs is not None:
        updates = facts.epochs * facts.num_pairs * facts.tokens_per_pair / tokens_per_update
    if facts.minutes is not None:
        updates = facts.minutes * 60 / seconds_per_update
    minutes = facts.minutes or updates * seconds_per_update / 60
    return Budget(max(1, round(updates)), minutes)


def default_validation_steps(budget: Budget) -> int:
    """Updates between validations: about one a minute, 5 to 15 in all; after 15 hours, one an hour.

    A checkpoint is written after each, so this is what a power cut may cost.
    """
    number = max(5, min(15, round(budget.minutes)), round(budget.minutes / 60))
    return max(10, round(budget.updates / number))


def _seconds_per_batch(facts: Facts, model: Any, vocab_size: int, tokens: float) -> float:
    """Seconds of a batch of so many target tokens.

    Within a fifth for `tiny` and `base` on one and two cores (dev/LOG.md). A GPU is a guess: 300
    cores, and a fifth of what threads do not share; where minutes are given, training measures it.
    """
    num_layers, d_ff = getattr(model, "num_layers", 1), getattr(model, "d_ff", model.d_model)
    weights = num_layers * model.d_model * (12 * model.d_model + 4 * d_ff)
    weights += vocab_size * model.d_model
    shared = tokens * weights / (_WEIGHTS_PER_SECOND * (300 * facts.gpus or facts.cores))
    return shared + (_SECONDS_NOT_SHARED / 5 if facts.gpus else _SECONDS_NOT_SHARED)


def with_choices(config: RunConfig, choices: Sequence[Choice], chosen_for: str) -> RunConfig:
    """The configuration with choices, and a note of them in its table `[chosen]`.

    Args:
        config: A configuration in which they are open.
        choices: What `choose` returned.
        chosen_for: What they were chosen for, such as `str(facts)`.
    """
    if not choices:
        return config
    sections = {}
    for choice in choices:
        section = sections.get(choice.table, getattr(config, choice.table))
        sections[choice.table] = dataclasses.replace(section, **{choice.name: choice.value})
    notes = {f"{choice.table}.{choice.name}": choice.reason for choice in choices}
    chosen = {**config.chosen, "for": chosen_for, **notes}
    return dataclasses.replace(config, **sections, chosen=chosen)


def noted_choices(config: RunConfig) -> list[Choice]:
    """The choices whose notes a configuration holds, as `with_choices` left them."""
    choices = []
    for key, reason in config.chosen.items():
        table, _, name = key.partition(".")
        if hasattr(getattr(config, table, None), name):
            choices.append(Choice(table, name, getattr(getattr(config, table), name), reason))
    return choices


def explain(config: RunConfig, facts: Facts) -> str:
    """The choices as a text for people: those to make, and those that the configuration notes."""
    chosen_for = config.chosen.get("for", "this run")
    parts = [
        (f"For {facts} would be chosen:", choose(config, facts)),
        (f"For {chosen_for} was chosen:", noted_choices(config)),
    ]
    width = max((len(choice.name) for _, choices in parts for choice in choices), default=0)
    lines = []
    for heading, choices in parts:
        rows = [f"{c.name:{width}}  {c.value!s:<8}  {c.reason}" for c in choices]
        lines += [heading, *rows] if choices else []
    if not lines:
        return f"Nothing to choose for {facts}: every setting is given."
    size = f"The size of the model is not chosen: d_model is {config.model.d_model}; see --preset."
    return "\n".join([*lines, size])


def gpus_by_driver(devices: str | None) -> int:
    """The GPUs that training would use, as far as can be said without TensorFlow.

    Args:
        devices: The setting `devices`.
    """
    if devices is not None:
        return int(devices) if devices.isdecimal() else devices.lower().count("gpu")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() not in ("", "-1")])
    return len(glob.glob("/dev/nvidia[0-9]*"))


def _counted(count: float, noun: str) -> str:
    """Such as `"1 core"`, `"2,000 pairs"` or `"1.5 minutes"`."""
    number = f"{count:,}" if isinstance(count, int) else f"{count:,.6g}"
    return f"{number} {noun}{'' if count == 1 else 's'}"

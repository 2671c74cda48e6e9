"""Train a translator from parallel text, or a language model from text.

Train a tokenizer and a model. An option under a heading such as [data] is also a key of that table
in run.toml; the command line wins. If only some architectures have a model setting, its help names
them in brackets. Ctrl-C ends training with a validation and a checkpoint (exit status 130), SIGTERM
with a checkpoint (143), and so does a closed terminal (129).

tf-transformer train --run-dir runs/de_en --train-source a.de --train-target a.en --minutes 45
"""

import dataclasses
import functools
import time
from collections.abc import Set
from typing import Any

from tf_transformer.commands.options import Checked, group, option
from tf_transformer.config_fields import Trait, flag
from tf_transformer.errors import ConfigError
from tf_transformer.machine import quiet
from tf_transformer.run_config import (
    SETTINGS,
    RunConfig,
    Tables,
    merge,
    names_with,
    read_toml,
    without_choices,
)
from tf_transformer.run_tables import TrainingConfig
from tf_transformer.runs.run_directory import RunDirectory


class Options(Checked):
    """The options of `train`: its own, and every setting of run.toml."""

    run_dir: str = option(..., "the run directory", "DIR")
    config: str | None = option(None, "a file of settings", "run.toml")
    resume: bool = option(
        False, "continue from the newest checkpoint, or begin where there is no run yet"
    )
    explain: bool = option(
        False,
        "print the settings that would be chosen for the corpus, the budget and the devices (with "
        "--resume and a run, those that were chosen), and exit",
    )
    prepare: bool = option(
        False,
        "only make tokenizers, token ids and settings, here for the GPUs that --devices counts on "
        "another machine; there --resume trains",
    )
    data: dict[str, Any] = group(dict, SETTINGS["data"])
    training: dict[str, Any] = group(dict, SETTINGS["training"])
    model: dict[str, Any] = group(dict, SETTINGS["model"])
    tokenizer: dict[str, Any] = group(dict, SETTINGS["tokenizer"])

    @functools.cached_property
    def is_resumed(self) -> bool:
        """Whether there is a run to continue; without any text for a new one, there must be."""
        return self.resume and (RunDirectory.is_run(self.run_dir) or not (self.config or self.data))

    def run_config(self) -> RunConfig:
        """Check the settings and return the configuration of the run.

        Raises:
            ConfigError: A setting is invalid, or differs from another run but must not.
        """
        where = self.config or "command line"
        tables = read_toml(self.config) if self.config else {}
        given = {table: getattr(self, table) for table in SETTINGS if getattr(self, table)}
        # If options are given, the recipe chooses again what it chose for the file.
        tables = merge(without_choices(tables) if given else tables, given)
        origin = tables.get("training", {}).get("initialize_from")
        if self.is_resumed:
            return _resumed(self.run_dir, tables, where)
        if isinstance(origin, str):
            return _initialized(origin, tables, where)
        return RunConfig.from_dict(tables, where)


def run(options: Options) -> int:
    """Train a model, or explain the choices of the recipe."""
    started, resume = time.monotonic(), options.is_resumed
    if not resume and not options.explain:
        RunDirectory.create(options.run_dir)  # reports an existing run before a bad setting
    config = options.run_config()
    if options.explain:  # without TensorFlow
        from tf_transformer.data.corpus import load_corpus
        from tf_transformer.machine import num_cores
        from tf_transformer.runs.recipe import Facts, explain, gpus_by_driver, metric_of

        metric_of(config)  # refuses what training would refuse
        gpus, corpus = gpus_by_driver(config.training.devices), load_corpus(config.data)
        print(*corpus.notes, explain(config, Facts.of(config, corpus, num_cores(), gpus)), sep="\n")
        return 0
    if options.prepare and resume:
        raise ConfigError(f"{options.run_dir}: holds a run already, which is prepared.")
    with quiet():
        from tf_transformer.runs.training_run import prepare_only, train_run
    if options.prepare:
        prepare_only(config, options.run_dir)
        return 0
    signal = train_run(config, options.run_dir, resume=resume, started=started)
    return 128 + signal if signal else 0


def _resumed(run_dir: str, given: Tables, where: str) -> RunConfig:
    """Return the configuration of the run to resume, with the given settings."""
    old = RunDirectory.open(run_dir).config()
    lengths = ", ".join(map(flag, TrainingConfig.LENGTHS))
    advice = (
        f"or start a new run with another --run-dir. With --resume, only {lengths} and options "
        f"that do not change the weights may differ."
    )
    fixed = old.settings().keys() - names_with(Trait.FREE)
    new = _merged(run_dir, old, old.to_dict(), given, where, fixed, advice)
    changed = [key for key, value in new.settings().items() if value != old.settings()[key]]
    chosen = {key: reason for key, reason in old.chosen.items() if key not in changed}
    return dataclasses.replace(new, chosen=chosen)


def _initialized(run_dir: str, given: Tables, where: str) -> RunConfig:
    """Return the configuration of a new run with the model and the tokenizers of another one."""
    old = RunDirectory.open(run_dir).config()
    tables = old.to_dict()
    kept = {name: tables[name] for name in ("model", "tokenizer")}
    of_translator = names_with(Trait.TRANSLATOR)
    kept["data"] = {k: value for k, value in tables["data"].items() if f"data.{k}" in of_translator}
    fixed = {key for key in old.settings() if key.startswith(("model.", "tokenizer."))}
    fixed -= {key for key in names_with(Trait.CHOSEN) if key.startswith("model.")}
    advice = "since --initialize-from keeps the model and the tokenizers."
    return _merged(run_dir, old, kept, given, where, fixed, advice)


def _merged(
    run_dir: str, old: RunConfig, tables: Tables, given: Tables, where: str,
    fixed: Set[str], advice: str,
) -> RunConfig:  # fmt: skip
    """Merge the given settings into tables of the run `old`, whose `fixed` settings must stay."""
    architecture = given.get("model", {}).get("architecture", old.architecture)
    if architecture != old.architecture:
        raise ConfigError(f"{run_dir}: the run has --architecture {old.architecture}. Omit it.")
    new = RunConfig.from_dict(merge(tables, given), where)
    before, after = old.settings(), new.settings()
    differences = [
        f"{flag(key.partition('.')[2])} {before[key]!r}, not {after[key]!r}"
        for key in before
        if key in fixed and before[key] != after[key]
    ]
    if differences:
        raise ConfigError(
            f"{run_dir}: the run has {'; '.join(differences)}. Omit what differs, {advice}"
        )
    return new

"""`tf-transformer train`: from text to a run directory."""

import argparse
import dataclasses
import shlex
import typing
from collections.abc import Mapping
from typing import Any

from pydantic.fields import FieldInfo

from tf_transformer.commands.models import quiet
from tf_transformer.config import (
    SETTINGS,
    RunConfig,
    TrainingConfig,
    flag,
    merge,
    read_toml,
    without_choices,
)
from tf_transformer.errors import ConfigError
from tf_transformer.runs.run_directory import RunDirectory

HELP = "train a translator from parallel text, or a language model from text"
DESCRIPTION = (
    "Trains a tokenizer and a model. Each option below is also a key of run.toml, in the "
    "table its heading names; the command line wins. A model setting that only some architectures "
    "have names them in brackets. Ctrl-C ends training with a validation and a checkpoint (exit "
    "status 130), SIGTERM with a checkpoint (143)."
)
# What a resumed run may change.
_MAY_CHANGE = {
    *TrainingConfig.LENGTHS, "devices", "data_cache", "fold_capitals", "max_length_ratio",
    "keep_checkpoints", "checkpoint_steps", "tensorboard", "chunked_logits",
}  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options: one for every setting of run.toml, and those of the command."""
    parser.add_argument("--run-dir", required=True, metavar="DIR", help="the run directory")
    parser.add_argument("--config", metavar="run.toml", help="a file of settings")
    parser.add_argument("--resume", action="store_true", help="continue from the newest checkpoint")
    parser.add_argument(
        "--explain",
        action="store_true",
        help="print what would be chosen for the corpus, the budget and the devices, or with "
        "--resume what was, and end",
    )
    for table, fields in SETTINGS.items():
        group = parser.add_argument_group(f"[{table}]")
        for name, field in fields.items():
            _add_setting(group, name, field)


def _add_setting(group: Any, name: str, field: FieldInfo) -> None:
    """Adds the option of a setting, whose value `RunConfig` reads and checks."""
    text = field.description
    if field.default is not None and "default:" not in text:
        text += f" (default: {field.default})"
    # Types such as (int, None), or choices such as ("bpe", "unigram").
    kinds = typing.get_args(field.annotation) or (field.annotation,)
    choices = [c for kind in kinds for c in (kind, *typing.get_args(kind)) if isinstance(c, str)]
    options = {"dest": name, "default": argparse.SUPPRESS, "help": text.replace("%", "%%")}
    if bool in kinds:
        group.add_argument(flag(name), action=argparse.BooleanOptionalAction, **options)
    else:
        metavar = f"{{{','.join(choices)}}}" if choices else "S" if str in kinds else "N"
        group.add_argument(flag(name), metavar=metavar, **options)


def run(options: argparse.Namespace, started: float) -> int:
    """Trains."""
    if not options.resume and not options.explain:
        RunDirectory.create(options.run_dir)  # names an existing run before a bad setting
    tables = read_toml(options.config) if options.config else {}
    where, given = options.config or "command line", given_settings(options)
    if options.resume:
        config = resumed_config(options.run_dir, merge(tables, given), where)
    else:
        # What was chosen for another run is chosen again for this one, if it differs.
        tables = without_choices(tables) if given else tables
        config = RunConfig.from_dict(merge(tables, given), where)
    if options.explain:
        _explain(config)
        return 0
    with quiet():
        from tf_transformer.runs.train import train
    signal = train(config, options.run_dir, resume=options.resume, started=started)
    return 128 + signal if signal else 0


def _explain(config: RunConfig) -> None:
    """Prints what training would choose, without TensorFlow."""
    from tf_transformer.data.corpus import load_corpus
    from tf_transformer.inference.streams import num_cores
    from tf_transformer.runs.recipe import Facts, explain, gpus_by_driver

    gpus = gpus_by_driver(config.training.devices)
    print(explain(config, Facts.of(config, load_corpus(config.data), num_cores(), gpus)))


def given_settings(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Returns the settings on the command line as tables like those of run.toml."""
    values = vars(options)
    tables = {
        table: {name: values[name] for name in fields if name in values}
        for table, fields in SETTINGS.items()
    }
    return {table: settings for table, settings in tables.items() if settings}


def resumed_config(
    run_dir: str, given: Mapping[str, Mapping[str, Any]], where: str = "command line"
) -> RunConfig:
    """Returns the configuration of the run to resume, with the given settings.

    Raises:
        ConfigError: A given setting differs from that of the run and must not; both are named.
    """
    config = RunDirectory.open(run_dir).config()
    architecture = given.get("model", {}).get("architecture", config.architecture)
    if architecture != config.architecture:
        raise ConfigError(f"{run_dir}: the run has --architecture {config.architecture}. Omit it.")
    resumed = RunConfig.from_dict(merge(config.to_dict(), given), where)
    old, new = config.settings(), resumed.settings()
    changed = [key for key in old if old[key] != new[key]]
    differences = [
        f"{_option(key, old[key])}, not {_option(key, new[key], short=old[key] is not None)}"
        for key in changed
        if key.partition(".")[2] not in _MAY_CHANGE
    ]
    if differences:
        raise ConfigError(
            f"{run_dir}: the run has {'; '.join(differences)}. Omit what differs, or start a new "
            f"run with another --run-dir. With --resume "
            f"{', '.join(map(flag, TrainingConfig.LENGTHS))} and what changes no weights may."
        )
    chosen = {key: reason for key, reason in config.chosen.items() if key not in changed}
    return dataclasses.replace(resumed, chosen=chosen)


def _option(key: str, value: Any, short: bool = False) -> str:
    """Returns a setting as it is written on the command line; in short its value alone."""
    name = key.partition(".")[2]
    if value is None:
        return f"no {flag(name)}"
    if isinstance(value, bool):
        return flag(name if value else f"no_{name}")
    text = shlex.quote(str(value))
    return text if short else f"{flag(name)} {text}"

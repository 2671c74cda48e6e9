"""`tf-transformer train`: from parallel text to a run directory."""

import argparse
import dataclasses
from typing import Any

from tf_transformer.commands.models import quiet
from tf_transformer.config import (
    RunConfig,
    TrainingConfig,
    merge_tables,
    read_toml,
    settings_by_table,
)
from tf_transformer.errors import ConfigError
from tf_transformer.models.architectures import ARCHITECTURES
from tf_transformer.settings import flag, kinds_of
from tf_transformer.training.run_directory import RunDirectory

HELP = "train a translator from parallel text"
DESCRIPTION = (
    "Trains a tokenizer and a Transformer. Each option below is also a key of run.toml, in the "
    "table its heading names; the command line wins. Ctrl-C ends it with a validation and a "
    "checkpoint (exit status 130), SIGTERM with a checkpoint (143)."
)
# What a resumed run may change.
_MAY_CHANGE = (*TrainingConfig.LENGTHS, "devices", "data_cache")
_METAVARS = {int: "N", float: "X", str: "S"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options: one for every setting of run.toml, and those of the command."""
    parser.add_argument("--run-dir", required=True, metavar="DIR", help="the run directory")
    parser.add_argument("--config", metavar="run.toml", help="a file of settings")
    parser.add_argument("--resume", action="store_true", help="continue from the newest checkpoint")
    parser.add_argument(
        "--explain",
        action="store_true",
        help="print what would be chosen for the corpus, the budget and the devices, and end",
    )
    for table, fields in settings_by_table().items():
        group = parser.add_argument_group(f"[{table}]")
        for field in fields:
            _add_setting(group, field)


def run(options: argparse.Namespace, started: float) -> int:
    """Trains."""
    if options.resume:
        config = _resumed_config(options)
    else:
        # An existing run is named before its options are checked.
        RunDirectory.create(options.run_dir)
        tables = read_toml(options.config) if options.config else {}
        where = options.config or "command line"
        config = RunConfig.from_dict(merge_tables(tables, given_settings(options)), where)
    if options.explain:
        _explain(config)
        return 0
    with quiet():
        from tf_transformer.training.train import train
    signal = train(config, options.run_dir, resume=options.resume, started=started)
    return 128 + signal if signal else 0


def _explain(config: RunConfig) -> None:
    """Prints what training would choose, without TensorFlow."""
    from tf_transformer.data.corpus import load_corpus
    from tf_transformer.training.recipe import Facts, explain

    print(explain(config, Facts.of(config, load_corpus(config.data))))


def given_settings(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The settings on the command line, as tables like those of run.toml."""
    given = {
        table: {f.name: getattr(options, f.name) for f in fields if hasattr(options, f.name)}
        for table, fields in settings_by_table().items()
    }
    return {table: settings for table, settings in given.items() if settings}


def _resumed_config(options: argparse.Namespace) -> RunConfig:
    config = RunDirectory.open(options.run_dir).config()
    given = given_settings(options)
    fixed = [
        (name, value)
        for table in given.values()
        for name, value in table.items()
        if name not in _MAY_CHANGE
    ]
    if fixed or options.config:
        name, value = fixed[0] if fixed else ("config", None)
        named = flag(f"no_{name}" if value is False else name)
        raise ConfigError(
            f"--resume continues with the configuration in {options.run_dir}/config.toml; "
            f"omit {named}. Only {', '.join(map(flag, _MAY_CHANGE[:-1]))} or "
            f"{flag(_MAY_CHANGE[-1])} may change."
        )
    if not given:
        return config
    return RunConfig.from_dict(merge_tables(config.to_dict(), given), "command line")


def _add_setting(group: Any, field: dataclasses.Field) -> None:
    kind = kinds_of(field.type)[0]
    options = {
        "default": argparse.SUPPRESS,
        "help": field.metadata["help"] + _default_text(field),
    }
    if kind is bool:
        group.add_argument(flag(field.name), action=argparse.BooleanOptionalAction, **options)
        return
    # Not argparse's `choices`, so that its errors are those of run.toml.
    choices = field.metadata["choices"]
    metavar = f"{{{','.join(choices)}}}" if choices else _METAVARS[kind]
    group.add_argument(flag(field.name), type=kind, metavar=metavar, **options)


def _default_text(field: dataclasses.Field) -> str:
    in_presets = {
        name for row in ARCHITECTURES.values() for sizes in row.presets.values() for name in sizes
    }
    if field.name in in_presets:
        return " (default: as in the preset)"
    if field.metadata["recipe"]:
        return " (default: chosen for the corpus and the budget)"
    if field.default is None or "default:" in field.metadata["help"]:
        return ""
    return f" (default: {field.default})"

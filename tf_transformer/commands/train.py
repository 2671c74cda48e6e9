"""`tf-transformer train`: from text to a run directory."""

import argparse
import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from tf_transformer.commands.models import quiet
from tf_transformer.config import (
    ModelChoice,
    RunConfig,
    TrainingConfig,
    architectures_with,
    merge_tables,
    read_toml,
    settings_by_table,
    without_choices,
)
from tf_transformer.errors import ConfigError
from tf_transformer.models.architectures import ARCHITECTURES, architecture_name
from tf_transformer.runs.run_directory import RunDirectory
from tf_transformer.settings import flag, kinds_of

HELP = "train a translator from parallel text, or a language model from text"
DESCRIPTION = (
    "Trains a tokenizer and a model. Each option below is also a key of run.toml, in the "
    "table its heading names; the command line wins. Those of [model] are the settings of the "
    "architecture that --architecture names. Ctrl-C ends it with a validation and a "
    "checkpoint (exit status 130), SIGTERM with a checkpoint (143)."
)
# What a resumed run may change.
_MAY_CHANGE = (
    *TrainingConfig.LENGTHS, "devices", "data_cache", "fold_capitals", "max_length_ratio",
    "keep_checkpoints", "checkpoint_steps", "tensorboard", "chunked_logits",
)  # fmt: skip
_METAVARS = {int: "N", float: "X", str: "S"}


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
    parser.add_late_options = lambda arguments: _add_settings(parser, arguments)


def _add_settings(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Adds the settings of the chosen architecture, and an error for those of others."""
    chosen = _chosen_architecture(arguments)
    known = set()
    parser.set_defaults(chosen_architecture=chosen)
    for table, fields in settings_by_table(chosen).items():
        group = parser.add_argument_group(f"[{table}]")
        for field in fields:
            known.add(field.name)
            _add_setting(group, field, chosen)
    for architecture in ARCHITECTURES:
        for field in settings_by_table(architecture)["model"]:
            if field.name not in known:
                known.add(field.name)
                parser.add_argument(flag(field.name), action=_SettingOfOthers, architecture=chosen)


class _SettingOfOthers(argparse.Action):
    """An option that only other architectures have: an error that names them."""

    def __init__(self, option_strings: Sequence[str], dest: str, architecture: str) -> None:
        hidden = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
        super().__init__(option_strings, dest, nargs="?", **hidden)
        self.architecture = architecture

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        others = ", ".join(architectures_with(self.dest))
        parser.error(
            f"{option} is no setting of the architecture {self.architecture}, but of {others}"
        )


def _chosen_architecture(arguments: Sequence[str]) -> str:
    """The architecture that the command line names, or the file or the run that it names."""
    reader = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for option in ("--architecture", "--config", "--run-dir"):
        reader.add_argument(option)
    reader.add_argument("--resume", action="store_true")
    try:
        options, _ = reader.parse_known_args(arguments)
        path = options.config
        if options.resume and options.run_dir and path is None:
            path = RunDirectory(options.run_dir).config_path
        table = {} if path is None else read_toml(path).get("model")
    except (argparse.ArgumentError, ConfigError):
        return ModelChoice.architecture  # the error is raised where these are read again
    in_file = table.get("architecture") if isinstance(table, Mapping) else None
    name = options.architecture or in_file
    return name if name in list(ARCHITECTURES) else ModelChoice.architecture


def run(options: argparse.Namespace, started: float) -> int:
    """Trains."""
    if options.resume:
        config = resumed_config(options)
    else:
        # An existing run is named before its options are checked.
        if not options.explain:
            RunDirectory.create(options.run_dir)
        tables, given = read_toml(options.config) if options.config else {}, given_settings(options)
        if given and "chosen" in tables:  # what was chosen for another run is chosen again
            tables = without_choices(tables)
        where = options.config or "command line"
        config = RunConfig.from_dict(merge_tables(tables, given), where)
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
    from tf_transformer.inference.ordered import num_cores
    from tf_transformer.runs.recipe import Facts, explain, gpus_by_driver

    gpus = gpus_by_driver(config.training.devices)
    print(explain(config, Facts.of(config, load_corpus(config.data), num_cores(), gpus)))


def given_settings(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The settings on the command line, as tables like those of run.toml."""
    given = {
        table: {f.name: getattr(options, f.name) for f in fields if hasattr(options, f.name)}
        for table, fields in settings_by_table(options.chosen_architecture).items()
    }
    return {table: settings for table, settings in given.items() if settings}


def resumed_config(options: argparse.Namespace) -> RunConfig:
    """The configuration of the run to resume, with the changes that the options make.

    Raises:
        ConfigError: An option, or a setting of the file that `--config` names, is not that of the
            run and must not change; both values are named.
    """
    config = RunDirectory.open(options.run_dir).config()
    tables = read_toml(options.config) if options.config else {}
    given = merge_tables(tables, given_settings(options))
    if all(isinstance(table, Mapping) for table in given.values()):
        differences = _differences(config, given)
        if differences:
            raise ConfigError(
                f"{options.run_dir}: the run has {'; '.join(differences)}. Omit what differs, or "
                f"start a new run with another --run-dir. With --resume "
                f"{', '.join(map(flag, TrainingConfig.LENGTHS))} and what changes no weights may."
            )
        given = merge_tables(config.to_dict(), given)
    return RunConfig.from_dict(given, options.config or "command line")


def _differences(config: RunConfig, given: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The settings that are given and have another value in the run, each with both values.

    A preset is compared by its sizes, which are what a run keeps of it.
    """
    architecture = architecture_name(config.model)
    found = []
    for table, fields in settings_by_table(architecture).items():
        of_run = {f.name: getattr(getattr(config, table), f.name, None) for f in fields}
        settings, preset = dict(given.get(table, {})), None
        if table == "model":
            of_run["architecture"] = architecture
            preset = settings.pop("preset", None)
        sizes = ARCHITECTURES[architecture].presets.get(str(preset), {})
        for name, value in {**sizes, **settings}.items():
            if name in of_run and name not in _MAY_CHANGE and value != of_run[name]:
                # --d-model 64, not 128; but --joint, not --no-joint
                other = _option(name, value)
                if of_run[name] is not None:
                    other = other.removeprefix(f"{flag(name)} ")
                source = "" if name in settings else f" of --preset {preset}"
                found.append(f"{_option(name, of_run[name])}, not {other}{source}")
    return found


def _option(name: str, value: Any) -> str:
    """A setting as it is written on the command line."""
    if value is None:
        return f"no {flag(name)}"
    if isinstance(value, bool):
        return flag(name if value else f"no_{name}")
    return f"{flag(name)} {shlex.quote(str(value))}"


def _add_setting(group: Any, field: dataclasses.Field, architecture: str) -> None:
    kind = kinds_of(field.type)[0]
    options = {
        "default": argparse.SUPPRESS,
        "help": field.metadata["help"] + _default_text(field, architecture),
    }
    if kind is bool:
        group.add_argument(flag(field.name), action=argparse.BooleanOptionalAction, **options)
        return
    # Not argparse's `choices`, so that its errors are those of run.toml.
    choices = field.metadata["choices"]
    metavar = f"{{{','.join(choices)}}}" if choices else _METAVARS[kind]
    group.add_argument(flag(field.name), type=kind, metavar=metavar, **options)


def _default_text(field: dataclasses.Field, architecture: str) -> str:
    presets = ARCHITECTURES[architecture].presets.values()
    in_presets = {name for sizes in presets for name in sizes}
    if field.name in in_presets:
        return " (default: as in the preset)"
    if field.metadata["recipe"]:
        return " (default: chosen for the corpus and the budget)"
    if field.default is None or "default:" in field.metadata["help"]:
        return ""
    return f" (default: {field.default})"

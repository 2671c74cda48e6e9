"""The options of commands: classes that define the parser and check the values.

A field made by `argument` is a positional argument, a field made by `option` an option, and a field
made by `group` several options, with a heading of their own in the help.
"""

import argparse
import re
from collections.abc import Mapping
from typing import Annotated, Any, NoReturn, get_origin

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError
from pydantic.fields import FieldInfo

from tf_transformer.config_fields import CHECKED, fields_of, flag
from tf_transformer.errors import ConfigError, did_you_mean
from tf_transformer.run_config import invalid, kinds_of

MODEL = "RUN_DIR_OR_SAVED_MODEL"
LengthPenalty = Annotated[float, Field(ge=0, le=10)]


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, and name the most similar option for an unknown one."""

    advice_for_text = ""  # for text that is given to a command that takes none
    example = ""  # a command line, which the help shows at its end

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple:
        """Parse arguments; an unknown option is an error of the command, not of the program."""
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:
            known = [option for action in self._actions for option in action.option_strings]
            advice = did_you_mean(unknown[0].split("=")[0], known, otherwise="")
            if self.advice_for_text and not unknown[0].startswith("-"):
                advice = self.advice_for_text
            self.error(f"unknown {' '.join(unknown)}{'; ' if advice else ''}{advice}")
        return namespace, unknown

    def format_help(self) -> str:
        """Return the help; its end is an example, in one line of any length, to be copied."""
        return super().format_help() + (f"\nexample:\n  {self.example}\n" if self.example else "")

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        if found := re.match("argument COMMAND: invalid choice: '(.*?)'", message):
            known = [name for action in self._actions for name in action.choices or ()]
            message = f"unknown command {found[1]!r}; {did_you_mean(found[1], known)}"
        end = "" if message.endswith(("?", ".")) else "."
        self.exit(2, f"{self.prog}: {message}{end} See {self.prog} --help\n")


def argument(metavar: str, help_text: str = "", default: Any = ...) -> Any:
    """Return a field that is a positional argument."""
    is_argument = {"is_argument": True}
    return Field(default, title=metavar, description=help_text, json_schema_extra=is_argument)


def option(default: Any, help_text: str, metavar: str | None = None) -> Any:
    """Return a field that is an option."""
    return Field(default, title=metavar, description=help_text)


def group(of: type, fields: Mapping[str, FieldInfo] | None = None) -> Any:
    """Return a field that is a group of options: an object, or a `dict` of given values."""
    return Field(default_factory=of, json_schema_extra={"group": fields or fields_of(of)})


class Checked(BaseModel):
    """Options whose values are checked, and which cannot be changed."""

    model_config = ConfigDict(**CHECKED, frozen=True)


class SearchOptions(Checked):
    """How a command searches for translations."""

    beam_size: PositiveInt | None = option(
        None, "beam size; 1 is greedy search (default: as exported; 1 for a run)", "K"
    )
    length_penalty: LengthPenalty | None = option(
        None, "favour long translations, from 0 to 10 (default: as exported; 0.6 for a run)", "A"
    )
    threads: PositiveInt | None = option(None, "batches in parallel (default: one per core)")
    batch_size: PositiveInt = option(64, "sentences in a batch")

    def require_beam(self, *default_sizes: int) -> None:
        """Raise a `ConfigError` for a length penalty without a beam, by default or as given."""
        if self.length_penalty is not None and (self.beam_size or max(default_sizes)) == 1:
            raise ConfigError("--length-penalty does nothing without a beam. Give --beam-size.")


def add_options(parser: argparse.ArgumentParser, options: type) -> None:
    """Add the options of a command to its parser, which returns only those that are given."""
    for name, field in options.__pydantic_fields__.items():
        fields = (field.json_schema_extra or {}).get("group")
        if fields is None:
            _add_option(parser, name, field, "store_true")
            continue
        # A file of settings may say true, so the command line must be able to say false.
        is_dict = field.default_factory is dict
        action = argparse.BooleanOptionalAction if is_dict else "store_true"
        heading = parser.add_argument_group(f"[{name}]" if is_dict else name)
        for key, each in fields.items():
            _add_option(heading, key, each, action, f"{name}.")
    parser.usage = _usage(parser)


def _usage(parser: argparse.ArgumentParser) -> str:
    """Return one line: the arguments and the required options of a command."""
    formatter = argparse.HelpFormatter(parser.prog)
    parts = [parser.prog]
    for action in sorted(parser._actions, key=lambda action: bool(action.option_strings)):
        if action.required or not action.option_strings:
            parts += [*action.option_strings, formatter._format_args(action, action.dest)]
    return " ".join([*parts, "[options]"])


def _add_option(
    parser: Any, name: str, field: FieldInfo, bool_action: Any, group: str = ""
) -> None:
    text, kinds = field.description, kinds_of(field)
    is_flag = bool in kinds and bool_action == "store_true"
    if not field.is_required() and field.default is not None and not is_flag:
        text += "" if "default:" in text else f" (default: {field.default})"
    options: dict[str, Any] = {"help": text.replace("%", "%%"), "default": argparse.SUPPRESS}
    if bool in kinds:
        options["action"] = bool_action
    else:
        choices = ",".join(kind for kind in kinds if isinstance(kind, str))
        by_type = f"{{{choices}}}" if choices else "S" if str in kinds else "N"
        options["metavar"] = field.title or by_type
        origins = [get_origin(kind) for kind in kinds]
        options["nargs"] = "+" if list in origins else None
        options["action"] = "append" if tuple in origins else "store"
    if not (field.json_schema_extra or {}).get("is_argument"):
        parser.add_argument(flag(name), dest=group + name, required=field.is_required(), **options)
        return
    if not field.is_required():
        options["nargs"] = "?"
    parser.add_argument(name, **options)


def read_options(options: type, values: Mapping[str, Any]) -> Any:
    """Return an object of the class `options`; `values` has keys such as `"search.beam_size"`.

    Raises:
        ConfigError: A value is invalid.
    """
    given: dict[str, Any] = {}
    for key, value in values.items():
        table, _, name = key.rpartition(".")
        (given.setdefault(table, {}) if table else given)[name] = value
    try:
        return options(**given)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][-1])
        field = options.__pydantic_fields__.get(name)
        is_argument = field is not None and (field.json_schema_extra or {}).get("is_argument")
        raise ConfigError(invalid(field.title if is_argument else flag(name), first)) from None

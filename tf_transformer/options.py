"""The options of the command line: those of each command, and one for every setting of a run."""

import argparse
import dataclasses
import difflib
import importlib.metadata
import types
import typing

from tf_transformer.config import RunConfig, flag

EXPORT_FORMATS = ("saved_model", "ctranslate2")


def settings():
    """Every setting of run.toml: (section name, dataclass field)."""
    return [
        (name, field)
        for name, section in RunConfig.sections().items()
        for field in dataclasses.fields(section)
    ]


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, like all others, and which knows options by all of them.

    An option that is not known is a mistake of the command's, not of the whole program's.
    """

    def __init__(self, *args, **options):
        super().__init__(*args, allow_abbrev=False, **options)

    def parse_known_args(self, args=None, namespace=None):
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:
            known = [option for action in self._actions for option in action.option_strings]
            nearest = difflib.get_close_matches(unknown[0].split("=")[0], known, n=1)
            advice = f"; did you mean {nearest[0]}" if nearest else ""
            self.error(f"unknown {' '.join(unknown)}{advice}")
        return namespace, unknown

    def error(self, message):
        self.exit(2, f"{self.prog}: {message}. See {self.prog} --help\n")


def parser(train, average, plot, evaluate, export, translate):
    """The parser of the command line.

    Args:
        train, average, plot, evaluate, export, translate: what each command does; the parsed
            options hold the chosen one as `command`.

    Returns:
        `argparse.ArgumentParser`.
    """
    root = _Parser(
        prog="tf-transformer",
        description="Train a Transformer on parallel text and translate with it.",
        epilog="Begin with: tf-transformer train --corpus phrasebook --run-dir runs/first",
    )
    root.add_argument(
        "--version", action="version", version=importlib.metadata.version("tf_transformer")
    )
    commands = root.add_subparsers(required=True, metavar="COMMAND")

    train_options = commands.add_parser(
        "train",
        help="train a translator from parallel text",
        description="Trains a tokenizer and a Transformer. Each option below is also a key of "
        "run.toml, in the table its heading names; the command line wins. Ctrl-C ends it with a "
        "validation and a checkpoint (exit status 130), SIGTERM with a checkpoint (143).",
    )
    train_options.set_defaults(command=train)
    train_options.add_argument(
        "--run-dir", required=True, metavar="DIR", help="where everything is kept"
    )
    train_options.add_argument("--config", metavar="run.toml", help="a file of settings")
    train_options.add_argument(
        "--resume", action="store_true", help="go on from the newest checkpoint"
    )
    groups = {name: train_options.add_argument_group(f"[{name}]") for name in RunConfig.sections()}
    for section, field in settings():
        _add_setting(groups[section], field)

    average_options = commands.add_parser(
        "average",
        help="average the weights of the last checkpoints of a run",
        description="Writes the mean of the last checkpoints as a run directory of its own, which "
        "evaluate and export take like any other.",
    )
    average_options.set_defaults(command=average)
    average_options.add_argument("run_dir", metavar="RUN_DIR")
    average_options.add_argument("output_dir", metavar="OUT_DIR", help="the directory to make")
    average_options.add_argument(
        "--last",
        type=_positive,
        metavar="N",
        help="how many of the newest checkpoints (default: 5, or all if there are fewer)",
    )

    plot_options = commands.add_parser(
        "plot",
        help="draw the curves of runs",
        description="Draws loss, validation BLEU, validation perplexity and learning rate over "
        "the steps of one run or several. Needs matplotlib.",
    )
    plot_options.set_defaults(command=plot)
    plot_options.add_argument("run_dirs", metavar="RUN_DIR", nargs="+")
    plot_options.add_argument(
        "--output", default="curves.png", metavar="F", help="default: curves.png; also .svg, .pdf"
    )

    evaluate_options = commands.add_parser(
        "evaluate",
        help="score translations with sacreBLEU",
        description="Translates a test set and scores it with BLEU and chrF. The last line is "
        "JSON. tokens_per_second counts tokens of the translations as sacreBLEU does.",
    )
    evaluate_options.set_defaults(command=evaluate)
    evaluate_options.add_argument("model", metavar="RUN_DIR_OR_SAVED_MODEL")
    evaluate_options.add_argument(
        "--source", required=True, metavar="F", help="sentences to translate"
    )
    evaluate_options.add_argument(
        "--reference", required=True, metavar="F", help="their translations"
    )
    _add_search(evaluate_options)

    export_options = commands.add_parser(
        "export",
        help="write a SavedModel, text in and text out, or a model of CTranslate2",
        description="Writes the best checkpoint of a run as saved_models/NAME/VERSION.",
    )
    export_options.set_defaults(command=export)
    export_options.add_argument("run_dir", metavar="RUN_DIR")
    export_options.add_argument("saved_model", metavar="saved_models/NAME")
    export_options.add_argument(
        "--format", choices=EXPORT_FORMATS, default=EXPORT_FORMATS[0], help="default: saved_model"
    )
    export_options.add_argument(
        "--beam-size",
        type=_positive,
        metavar="K",
        help="hypotheses that serving_default follows (default: 1, greedy)",
    )
    export_options.add_argument(
        "--length-penalty",
        type=_not_negative,
        metavar="A",
        help="how much a beam favours long translations, from 0 (default: 0.6)",
    )
    export_options.add_argument(
        "--precision",
        choices=("float32", "bfloat16"),
        help="store and use a SavedModel's weights so (default: float32); bfloat16 is half as "
        "large, and faster in large models where the processor multiplies bfloat16",
    )
    export_options.add_argument(
        "--quantization",
        metavar="{int8,int16,float16,bfloat16}",
        help="how CTranslate2 stores weights (default: float32)",
    )
    export_options.add_argument(
        "--version", type=int, metavar="N", help="default: the next free one"
    )
    export_options.add_argument(
        "--overwrite", action="store_true", help="replace a version that exists"
    )

    translate_options = commands.add_parser(
        "translate",
        help="translate line by line",
        description="Translates standard input, or a file, line by line and in order.",
    )
    translate_options.set_defaults(command=translate)
    translate_options.add_argument("model", metavar="RUN_DIR_OR_SAVED_MODEL")
    translate_options.add_argument("--input", metavar="F", help="default: standard input")
    translate_options.add_argument("--output", metavar="F", help="default: standard output")
    translate_options.add_argument(
        "--n-best",
        type=_positive,
        metavar="N",
        help="so many translations of each line, as LINE ||| TRANSLATION ||| SCORE, lines "
        "counted from 0",
    )
    translate_options.add_argument(
        "--continue",
        dest="resume",
        action="store_true",
        help="go on after the last line of an --output that was stopped",
    )
    _add_search(translate_options)
    return root


def _add_setting(group, field):
    kinds = typing.get_args(field.type) if isinstance(field.type, types.UnionType) else [field.type]
    kind = next(kind for kind in kinds if kind is not types.NoneType)
    default = "" if field.default is None else f" (default: {field.default})"
    help_text = field.metadata["help"] + default
    if kind is bool:
        group.add_argument(
            flag(field.name),
            action=argparse.BooleanOptionalAction,
            default=argparse.SUPPRESS,
            help=help_text,
        )
    else:
        # Not argparse's `choices`, so that a mistake is answered as one in run.toml is.
        choices = field.metadata["choices"]
        metavar = f"{{{','.join(choices)}}}" if choices else {int: "N", float: "X", str: "S"}[kind]
        group.add_argument(
            flag(field.name), type=kind, default=argparse.SUPPRESS, metavar=metavar, help=help_text
        )


def _positive(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, not {text!r}")
    return int(text)


def _not_negative(text):
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 10:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 10, not {text!r}")
    return number


def _add_search(parser):
    parser.add_argument(
        "--beam-size",
        type=_positive,
        metavar="K",
        help="hypotheses to follow, 1 is greedy (default: as exported)",
    )
    parser.add_argument(
        "--length-penalty",
        type=_not_negative,
        metavar="A",
        help="how much a beam favours long translations, from 0 (default: as exported)",
    )
    parser.add_argument(
        "--threads", type=_positive, metavar="N", help="batches at a time (default: the cores)"
    )
    parser.add_argument(
        "--xla", action="store_true", help="compile the search; pays for many lines"
    )
    parser.add_argument(
        "--batch-size",
        type=_positive,
        default=64,
        metavar="N",
        help="sentences at once (default: 64)",
    )

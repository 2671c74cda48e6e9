"""The sizes of the measured model, from a preset or the command line."""

import argparse

from tf_transformer.models.architectures import ARCHITECTURES

PRESETS = ARCHITECTURES["transformer"].presets
NAMES = ("num_layers", "d_model", "num_heads", "d_ff")


def add_size_options(parser: argparse.ArgumentParser) -> None:
    """Add an option for each size."""
    for name in NAMES:
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=int, help="default: that of the preset")


def given_sizes(options: argparse.Namespace) -> dict[str, int]:
    """Return the sizes that the options give."""
    sizes = {name: getattr(options, name) for name in NAMES}
    return {name: size for name, size in sizes.items() if size is not None}


def sizes_of(preset: str, options: argparse.Namespace) -> dict[str, int]:
    """Return the sizes that the options give, and those of a preset for the others."""
    return {**PRESETS[preset], **given_sizes(options)}

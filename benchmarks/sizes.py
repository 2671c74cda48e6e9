"""The sizes of the model that is measured: a preset's, and what the command line has instead."""

NAMES = ("num_layers", "d_model", "num_heads", "d_ff")


def add_size_options(parser, kind):
    """An option for each size, of a type such as int."""
    for name in NAMES:
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=kind, help="None: as the preset has it"
        )


def sizes_of(preset, options):
    """The sizes of `preset`, but for those that `options` gives."""
    from tf_transformer.models.architectures import PRESETS

    num_layers, d_model, d_ff, num_heads = PRESETS[preset]
    sizes = {
        "num_layers": num_layers, "d_model": d_model, "num_heads": num_heads, "d_ff": d_ff,
    }  # fmt: skip
    given = {name: getattr(options, name) for name in NAMES}
    return sizes | {name: value for name, value in given.items() if value is not None}

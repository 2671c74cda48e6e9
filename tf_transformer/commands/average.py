"""`tf-transformer average`: the average of a run's last checkpoints."""

import argparse

from tf_transformer.commands.models import quiet
from tf_transformer.commands.options import positive

HELP = "average the weights of the last checkpoints of a run"
DESCRIPTION = (
    "Writes the average of the last checkpoints as a run directory of its own, which evaluate and "
    "export take like any other."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("run_dir", metavar="RUN_DIR")
    parser.add_argument("output_dir", metavar="OUT_DIR", help="the directory to make")
    parser.add_argument(
        "--last",
        type=positive,
        metavar="N",
        help="how many of the newest checkpoints (default: 5, or all if there are fewer)",
    )


def run(options: argparse.Namespace, started: float) -> int:
    """Averages."""
    with quiet():
        from tf_transformer.training.averaging import average_checkpoints
    steps = average_checkpoints(options.run_dir, options.output_dir, options.last)
    print(f"{options.output_dir}: the average of steps {', '.join(map(str, steps))}.")
    print(f"Next: tf-transformer export {options.output_dir} saved_models/NAME")
    return 0

"""The commands of `tf-transformer`, one module each.

A command is a module with `HELP`, `DESCRIPTION`, `add_options(parser)` and `run(options, started)`,
which returns the exit status, and a name in `cli.COMMANDS`. No module imports TensorFlow at its
top, so that `--help` and refusals come at once.
"""

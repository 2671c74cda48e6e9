"""The commands of `tf-transformer`, one module each.

A command is a module with a docstring, whose first paragraph is its line in `tf-transformer --help`
and whose rest is its description; with `Options`, a class from which the parser makes its
options (see `options.py`); with `run(options)`, which returns the exit status; and with a name in
`cli.COMMANDS`. No module imports TensorFlow at its top, so that `--help` and refusals come at once.
"""

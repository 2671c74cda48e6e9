"""The commands of `tf-transformer`, one module each.

`cli.COMMANDS` has their names. The first paragraph of a module's docstring is the command's line in
`tf-transformer --help`, the last one an example, and the rest is the command's description. The
parser makes the command's options from the class `Options` (see `options.py`), and `run(options)`
returns the exit status. No module imports TensorFlow at its top, so that `--help` and error
messages appear at once.
"""

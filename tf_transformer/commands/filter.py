"""Drop the pairs of a corpus from which a model should not learn.

Read two files of parallel text, and drop the pairs with a blank or a very long side, in a wrong
script, whose target is their source, with a line of the files --exclude, whose lengths do not fit
together, and those that occurred before. Write the others in their order, and print how many pairs
were dropped and why; each is counted once, in this order. Case, white space and variants of
characters make no difference to copies and excluded lines, nor punctuation at the ends to copies.
Pairs of placeholders, addresses and numbers alone are no copies. The text is read twice and stays
on disk; a digest of each kept pair is in memory, about 80 bytes. Without outputs, only count.

tf-transformer filter --source a.de --target a.en --output-source b.de --output-target b.en
"""

import contextlib
import gzip
import os
import pathlib
from collections.abc import Iterator
from typing import Annotated, BinaryIO

from pydantic import Field, PositiveInt

from tf_transformer.commands.options import Checked, option
from tf_transformer.data.filtering import DIGEST_BITS, PairFilter, digest, script_words
from tf_transformer.data.lines import stream_aligned, stream_lines
from tf_transformer.data.shard import Shard
from tf_transformer.data.translation_files import read_pairs
from tf_transformer.errors import InputError
from tf_transformer.files import atomic_file, naming


class Options(Checked):
    """The options of `filter`."""

    source: str | None = option(None, "sentences, one a line, plain or gzip", "F")
    target: str | None = option(None, "their translations", "F")
    file: str | None = option(None, "or pairs of a TMX, PO or XLIFF file", "F")
    output_source: str | None = option(None, "file to write, by gzip if its name ends in .gz", "F")
    output_target: str | None = option(None, "the same for the translations", "F")
    overwrite: bool = option(False, "replace existing outputs")
    exclude: list[str] | None = option(
        None, "drop pairs with a line of these files, such as test sets, plain or gzip", "F"
    )
    max_ratio: Annotated[float, Field(gt=1)] = option(
        2.5, "drop pairs with a side that is this many times longer than usual for the other side"
    )
    max_characters: PositiveInt = option(1000, "drop pairs with a longer side")
    keep_copies: bool = option(False, "keep pairs whose target is their source, such as names")
    source_script: list[str] | None = option(
        None, "scripts of Unicode, such as Latin, for half of a source's letters", "SCRIPT"
    )
    target_script: list[str] | None = option(None, "the same for targets, such as Han", "SCRIPT")
    shard: str | None = option(
        None,
        "read all, but look only at part I of N, one of N jobs, which all copies of a pair are in; "
        "a job that finds its outputs has nothing to do",
        "I/N",
    )


def run(options: Options) -> int:
    """Write the pairs that are kept, and print what was dropped."""
    shard = Shard.of(options.shard) if options.shard else None
    given = [path for path in (options.output_source, options.output_target) if path]
    if shard and not options.overwrite and given and all(map(os.path.isfile, given)):
        print(f"{' and '.join(given)}: are complete already.")
        return 0
    inputs = _inputs(options)
    outputs = _outputs(options, given, inputs)

    def read(*paths: str) -> Iterator[tuple[int, tuple[str, str]]]:
        pairs = read_pairs(*paths) if options.file else stream_aligned(*paths)
        numbered = enumerate(pairs, start=1)
        return (n for n in numbered if not shard or shard.has(digest(*n[1]), DIGEST_BITS))

    limits = options.max_ratio, options.max_characters
    scripts = script_words(options.source_script or []), script_words(options.target_script or [])
    excluded = (line for path in options.exclude or [] for line in stream_lines(path))
    pair_filter = PairFilter(*limits, scripts, excluded, options.keep_copies)
    length_ratio = pair_filter.measure_lengths(pair for _, pair in read(*inputs))
    dropped: dict[str, list[int]] = {}  # number of pairs and first line of each reason
    with contextlib.ExitStack() as stack:
        # All files are complete before the first gets its name.
        temporary = [stack.enter_context(atomic_file(path)) for path in outputs]
        files = [_opened(*paths, stack) for paths in zip(outputs, temporary, strict=True)]
        total = 0
        for number, pair in read(*inputs):
            total += 1
            reason = pair_filter.reason_to_drop(*pair)
            if reason:
                dropped.setdefault(reason, [0, number])[0] += 1
                continue
            for path, file, line in zip(outputs, files, pair, strict=False):
                with naming(path):
                    file.write(f"{line}\n".encode())
        kept = total - sum(count for count, _ in dropped.values())
        report = [f"{n:,} {reason}, such as line {line:,}" for reason, (n, line) in dropped.items()]
        if not kept and not shard:
            lost = "".join(f"; dropped were {line}" for line in report)
            found = f"no pair of {total:,} is left{lost}" if total else "has no pairs"
            raise InputError(f"{' and '.join(inputs)}: {found}.")
    print(f"{total:,} pairs; the usual ratio of target and source characters is {length_ratio}.")
    print(*(f"Dropped {line}." for line in report), sep="\n", end="\n" if report else "")
    print(f"{'Kept' if outputs else 'Would keep'} {kept:,} pairs.")
    return 0


def _inputs(options: Options) -> list[str]:
    """Return the files to read: one with pairs, or one for each side."""
    given = [path for path in (options.source, options.target) if path]
    if len(given) + 2 * bool(options.file) != 2:
        raise InputError("give --source and --target, or --file.")
    return [options.file] if options.file else given


def _outputs(options: Options, given: list[str], inputs: list[str]) -> list[pathlib.Path]:
    """Return the files to write; raise an `InputError` if options contradict each other."""
    if len(given) == 1:
        raise InputError("--output-source and --output-target go together. Give both or none.")
    for path in inputs:
        if not os.path.isfile(path):
            raise InputError(f"{path}: is no file. Text is read twice, so a pipe is not enough.")
    read = [*inputs, *(options.exclude or [])]
    for path in given:
        is_twice = len(set(map(os.path.realpath, given))) < 2
        if is_twice or os.path.realpath(path) in map(os.path.realpath, read):
            raise InputError(f"{path}: is given twice. Give outputs names of their own.")
        may_replace = options.overwrite or options.shard  # whose outputs are not all there
        if os.path.lexists(path) and not (may_replace and os.path.isfile(path)):
            advice = "--overwrite to replace it" if os.path.isfile(path) else "the path of a file"
            raise InputError(f"{path}: exists already. Give {advice}.")
        if not os.path.isdir(os.path.dirname(path) or "."):
            raise InputError(f"{path}: its folder does not exist. Make it first.")
    return [pathlib.Path(path) for path in given]


def _opened(path: pathlib.Path, written: pathlib.Path, stack: contextlib.ExitStack) -> BinaryIO:
    stack.enter_context(naming(path))  # also when the rest is written
    file = stack.enter_context(written.open("wb"))
    if path.suffix != ".gz":
        return file
    # Without name and time, the same pairs give the same bytes.
    return stack.enter_context(gzip.GzipFile("", "wb", 6, file, mtime=0))

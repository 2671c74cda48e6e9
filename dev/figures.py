"""Draw the pictures of README and docs from the files that `make demo` wrote.

python dev/figures.py runs/demo saved_models/demo docs/images

Other scripts make the picture of the page (`dev/screenshot.py`) and of the comparison
(`benchmarks/lineage.py`).
"""

import argparse
import io
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.text import Text

import tf_transformer as tt
from tf_transformer import visualization as show

SENTENCE = "Ich rufe meine Mutter an, wenn ich müde bin."
TOKENS = ["Wo", "ist", "er", "?", "Where", "is", "he", "?"]
NUM_SOURCE = 4
WIDTH = 100  # columns of the recording


def main() -> None:
    """Draw all pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("run", "saved_model", "folder"):
        parser.add_argument(name, type=pathlib.Path)
    options = parser.parse_args()
    folder = options.folder
    (folder / "demo.svg").write_text(recording(options), encoding="utf-8")
    # 'tight', because constrained layout is inexact for square cells and would clip labels.
    for name, figure in (("masks", masks()), ("alignment", alignment(options))):
        figure.savefig(folder / f"{name}.png", dpi=150, bbox_inches="tight", pad_inches=0.1)
    for path in sorted(folder.iterdir()):
        print(f"{path}: {path.stat().st_size:,} bytes")


def recording(options: argparse.Namespace) -> str:
    """Return the end of `make demo` as SVG: what its last two steps print."""
    names = {"VENV": os.path.relpath(sys.prefix), "RUN": options.run, "SAVED": options.saved_model}
    variables = [f"{name}={value}" for name, value in names.items()]
    lines = shell("make", "--dry-run", "--always-make", "demo", *variables).splitlines()
    [first] = [number for number, line in enumerate(lines) if "== 3/4" in line]
    console = Console(record=True, width=WIDTH, file=io.StringIO(), color_system="truecolor")
    for line in shell("sh", "-e", "-c", "\n".join(lines[first:])).splitlines():
        style = "bold" if line.startswith("==") else ""
        console.print(Text(line, style=style), no_wrap=True, overflow="ellipsis")
    svg = console.export_svg(title="make demo")
    # Without @font-face, viewers load no font from the network; any monospaced font will do.
    return re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)


def shell(*command: str) -> str:
    """Return what a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def alignment(options: argparse.Namespace) -> Figure:
    """Return a figure of what each token of a translation attends to."""
    translate = tt.Translator.load(options.saved_model)
    [pair] = translate.align([SENTENCE], [translate(SENTENCE)])
    return show.plot_alignment(pair.attention, pair.source_subwords, pair.target_subwords)


def masks() -> Figure:
    """Return a figure of four masks over one pair of sentences."""
    length = len(TOKENS)
    segments = np.array([[0] * NUM_SOURCE + [1] * (length - NUM_SOURCE)])
    found = {
        "encoder": np.ones((length, length)),
        "causal": tt.causal_mask(length),
        "prefix": tt.prefix_mask(segments),
        "local, radius 1": tt.local_mask(length, 1),
    }
    return show.plot_masks(found, TOKENS)


if __name__ == "__main__":
    main()

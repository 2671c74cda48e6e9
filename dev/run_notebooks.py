"""Execute the notebooks, quickly as a check or in full to write the committed outputs.

    python dev/run_notebooks.py --quick      runs all notebooks quickly and writes nothing
    python dev/run_notebooks.py [NAME ...]   runs notebooks in full and writes their outputs

The cells come from the scripts, so edit the scripts. A written notebook has a digest of its
source, which a test compares.
"""

import argparse
import base64
import concurrent.futures
import hashlib
import io
import os
import pathlib
import sys
import time

import jupytext
import nbclient
import nbformat
from PIL import Image

FOLDER = pathlib.Path(__file__).parents[1] / "notebooks"
LIMIT_S = 3600


def source_digest(notebook: nbformat.NotebookNode) -> str:
    """Return a digest of the types and sources of all cells."""
    text = "\0".join(f"{cell.cell_type}\0{cell.source}" for cell in notebook.cells)
    return hashlib.sha256(text.encode()).hexdigest()


def execute(script: pathlib.Path) -> nbformat.NotebookNode:
    """Run a script as a notebook in the folder of the notebooks."""
    notebook = jupytext.read(script)
    client = nbclient.NotebookClient(
        notebook,
        timeout=LIMIT_S,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(FOLDER)}},
    )
    client.execute()
    return notebook


def with_few_colours(picture: str) -> str:
    """Reduce a PNG in base64 to 256 colours, which halves its size."""
    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    file = io.BytesIO()
    image.quantize(256, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def write(notebook: nbformat.NotebookNode, path: pathlib.Path) -> None:
    """Write an executed notebook; the id of a cell is its number, which keeps diffs small.

    Outputs to stderr are dropped: they are TensorFlow's messages about the machine.
    """
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
        if cell.cell_type != "code":
            continue
        cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
        for out in cell.outputs:
            if "image/png" in out.get("data", {}):
                out["data"]["image/png"] = with_few_colours(out["data"]["image/png"])
    kernel = notebook.metadata["kernelspec"]
    notebook.metadata = nbformat.from_dict(
        {
            "jupytext": {"formats": "ipynb,py:percent"},
            "kernelspec": kernel,
            "language_info": {"name": "python"},
            "source_sha256": source_digest(notebook),
        }
    )
    nbformat.validate(notebook)
    nbformat.write(notebook, path)


def main() -> None:
    """Run the notebooks that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="such as 01_train_a_translator; default: all")
    parser.add_argument("--quick", action="store_true", help="train little, and write nothing")
    options = parser.parse_args()
    known = {script.stem: script for script in sorted(FOLDER.glob("*.py"))}
    for name in options.names:
        if name not in known:
            parser.error(f"{name} is not a notebook; there are {', '.join(known)}")
    os.environ.pop("TF_TRANSFORMER_QUICK", None)
    if options.quick:
        os.environ["TF_TRANSFORMER_QUICK"] = "1"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    names = options.names or list(known)
    if options.quick:
        # Tracing takes much of the time and uses one core.
        with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
            for _ in pool.map(timed, [known[name] for name in names]):
                pass
        return
    for name in names:
        write(timed(known[name]), known[name].with_suffix(".ipynb"))


def timed(script: pathlib.Path) -> nbformat.NotebookNode:
    """Run a script and print how long it took."""
    began = time.monotonic()
    try:
        notebook = execute(script)
    except Exception as error:
        sys.exit(f"{script.stem}: {error}")
    print(f"{script.stem}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return notebook


if __name__ == "__main__":
    main()

"""Numbered versions of a SavedModel, found without TensorFlow."""

import os
import re
from pathlib import Path

from tf_transformer.errors import InputError

# Each format of exports is recognized by a file that every version of it has.
SAVED_MODEL, CTRANSLATE2 = "saved_model.pb", "model.bin"


class SavedModelError(InputError):
    """A SavedModel that cannot be found or loaded."""


def version_number(name: str) -> int | None:
    """Return the number that TensorFlow Serving reads in the name of a version; None if none."""
    match = re.fullmatch(r"\+?0*([0-9]{1,19})", name)
    return int(match[1]) if match and int(match[1]) < 2**63 else None


def versions(path: str | os.PathLike[str]) -> dict[int, Path]:
    """Return the versions in a folder such as `saved_models/NAME`: paths by ascending numbers.

    Raises:
        SavedModelError: Two names have the same number, such as `1` and `001`.
    """
    folder, found = Path(path), {}
    for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
        number = version_number(entry.name)
        if number in found:
            both = f"{found[number].name} and {entry.name}"
            raise SavedModelError(f"{folder}: {both} are the same version. Remove one.")
        if number is not None:
            found[number] = entry
    return dict(sorted(found.items()))


def formats_in(path: str | os.PathLike[str]) -> list[str]:
    """Return the formats of the exported versions in a folder."""
    return [name for name in (SAVED_MODEL, CTRANSLATE2) if any(Path(path).glob(f"*/{name}"))]


def holds_run(path: Path) -> bool:
    """Return whether a folder holds the checkpoints of a run, and so is no place for exports."""
    return (path / "checkpoints").is_dir()


def require_loadable(path: Path) -> None:
    """Raise a `SavedModelError` if TensorFlow takes the real path for a pattern of paths."""
    path = os.path.realpath(path)
    if found := re.search(r"\\|\[[^/]*\]", path):
        raise SavedModelError(
            f"{path}: TensorFlow takes {found[0]} for a pattern, so it cannot read what is there. "
            f"Give a path without."
        )


def find_saved_model(path: str | os.PathLike[str]) -> Path:
    """Find the SavedModel at `path`: `path` itself, or the highest version in it.

    Raises:
        SavedModelError: There is no SavedModel.
    """
    path = Path(path)
    for candidate in (path, *reversed(versions(path).values())):
        if (candidate / SAVED_MODEL).is_file():
            return candidate
    problem = f"no SavedModel there. Write one with: tf-transformer export RUN_DIR {path}"
    if not path.exists():
        problem = "is no folder. Check the path; it may be a run or a SavedModel."
    elif path.is_file():
        problem = f"is a file. Give its folder: {path.parent}"
    elif runs := sorted(str(file.parent) for file in path.glob("*/config.toml")):
        problem = f"no SavedModel there, but runs: {', '.join(runs)}. Give one, or export it."
    elif holds_run(path):
        problem = f"is a run. Export it: tf-transformer export {path} saved_models/NAME"
    elif CTRANSLATE2 in formats_in(path) or (path / CTRANSLATE2).is_file():
        problem = "holds no SavedModel, but CTranslate2's files, which only CTranslate2 reads."
    elif models := sorted({str(file.parents[1]) for file in path.glob(f"*/*/{SAVED_MODEL}")}):
        problem = f"no SavedModel there, but in {', '.join(models)}. Give one of these."
    raise SavedModelError(f"{path}: {problem}")

"""What is installed, what of it does not go together, and the machine: without TensorFlow."""

import importlib.metadata
import os
import platform
from collections.abc import Callable, Iterator

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from tf_transformer.inference.streams import num_cores

# Whose requirements are checked, in the order in which their advice is taken.
CORE = (
    "tf_transformer",
    "tensorflow",
    "tensorflow-text",
    "keras",
    "tensorflow-serving-api",
    "protobuf",
    "numpy",
    "sentencepiece",
    "sacrebleu",
)
# Extras of this package that its users install.
_EXTRAS = ("serve", "ctranslate2", "plot")
# Each is a TensorFlow, in the same folder as the others.
_TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly", "tf-nightly-cpu")
_THREADS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")

VersionOf = Callable[[str], str | None]


def installed_version(name: str) -> str | None:
    """The installed version of a distribution; None where it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def clashes(version_of: VersionOf) -> list[str]:
    """A line for each package that is missing, or does not go together with another one.

    Args:
        version_of: The installed version of a distribution, or None.
    """
    lines: dict[str, str] = {}
    for check in (_undeclared, _declared):
        for name, line in check(version_of):
            lines.setdefault(canonicalize_name(name), line)
    return list(lines.values())


def machine() -> dict[str, str | int]:
    """Python, the system, its cores and memory, and settings of threads."""
    found = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": num_cores(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    }
    return found | {name: os.environ[name] for name in _THREADS if name in os.environ}


def _undeclared(version_of: VersionOf) -> Iterator[tuple[str, str]]:
    """Clashes that the packages do not declare: the name of one, and a line."""
    tensorflow, text = version_of("tensorflow"), version_of("tensorflow-text")
    if tensorflow and text and _minor(tensorflow) != _minor(text):
        yield (
            "tensorflow-text",
            f"tensorflow-text {text} needs TensorFlow {_minor(text)}, and {tensorflow} is "
            f"installed: pip install 'tensorflow-text=={_minor(tensorflow)}.*'",
        )
    elif text == "2.21.0":
        yield (
            "tensorflow-text",
            "tensorflow-text 2.21.0 does not load: pip install 'tensorflow-text>=2.21.1,<2.22'",
        )
    several = [name for name in _TENSORFLOWS if version_of(name)]
    if len(several) > 1:
        yield (
            "tensorflow",
            f"{' and '.join(several)} overwrite each other's files: "
            f"pip uninstall {' '.join(several)}, then pip install tensorflow",
        )


def _declared(version_of: VersionOf) -> Iterator[tuple[str, str]]:
    """Clashes with what the packages declare: the name of one, and a line."""
    for name in CORE:
        if version_of(name) is None:
            continue  # who needs it says so
        for requirement, is_optional in _requirements(name):
            version = version_of(requirement.name)
            wanted = f"{requirement.name}{requirement.specifier}"
            if version is None and not is_optional:
                yield (
                    requirement.name,
                    f"{name} needs {requirement.name}, which is not installed: "
                    f"pip install '{wanted}'",
                )
            elif version and not requirement.specifier.contains(version, prereleases=True):
                yield (
                    requirement.name,
                    f"{name} {version_of(name)} needs {wanted}, and {version} is installed: "
                    f"pip install '{wanted}'",
                )


def _requirements(name: str) -> Iterator[tuple[Requirement, bool]]:
    """What a distribution requires here, and whether only an extra of this package does."""
    extras = _EXTRAS if name == CORE[0] else ()
    for line in importlib.metadata.requires(name) or ():
        try:
            requirement = Requirement(line)
        except InvalidRequirement:  # older than the standard
            continue
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}):
            yield requirement, False
        elif any(marker.evaluate({"extra": extra}) for extra in extras):
            yield requirement, True


def _minor(version: str) -> str:
    try:
        return "{}.{}".format(*Version(version).release)
    except (InvalidVersion, IndexError):
        return version

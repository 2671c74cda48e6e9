"""A run directory: all files of one training run.

config.toml            the complete configuration, from which the run can be repeated
tokenizers/            source.model and target.model
test/                  source.txt and target.txt, if the corpus has a test part
ids/                   the token ids of the training text, if it is large or --prepare made them
checkpoints/           step-00000123/…
text.json              what is known of text files: sizes, digests, counts and held-out pairs
log.jsonl              a line of metrics for each validation
tensorboard/           the same metrics for TensorBoard, if --tensorboard was given
.lock                  held by the process that trains

This module does not import TensorFlow, so that errors are reported at once.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from tf_transformer.errors import InputError
from tf_transformer.files import atomic_file, atomic_folder, obstacle
from tf_transformer.inference.versions import formats_in
from tf_transformer.run_config import RunConfig, read_toml


class RunError(InputError):
    """A run directory that cannot be used."""


class RunDirectory:
    """A training run on disk. `create` and `open` check what the path holds."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = pathlib.Path(path)
        self.config_path = self.path / "config.toml"
        self.tokenizers_path = self.path / "tokenizers"
        self.test_path = self.path / "test"
        self.ids_path = self.path / "ids"
        self.checkpoints_path = self.path / "checkpoints"
        self.summary_path = self.path / "text.json"
        self.log_path = self.path / "log.jsonl"
        self.tensorboard_path = self.path / "tensorboard"
        self.lock_path = self.path / ".lock"

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> "RunDirectory":
        """Return the directory of a new run. It is made later, so a failed start leaves none."""
        run = cls(path)
        if not os.fspath(path):
            raise RunError("--run-dir is empty. Give the folder to write.")
        # A run that stopped before its first checkpoint has nothing to lose but its ids.
        is_prepared = run.config_path.exists() and run.ids_path.exists()
        if is_prepared or any(run.checkpoints_path.glob("step-*")):
            raise RunError(f"{path}: holds a run already. Use --resume, or give another --run-dir.")
        if not run.lock_path.exists():  # no run of ours began there
            for file in (
                run.config_path, run.tokenizers_path, run.test_path, run.summary_path, run.log_path
            ):  # fmt: skip
                if file.exists():
                    raise RunError(f"{file}: would be replaced. Give another --run-dir.")
        if formats_in(path):
            raise RunError(f"{path}: holds an export. Give another --run-dir.")
        if problem := obstacle(path):
            raise RunError(problem)
        return run

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "RunDirectory":
        """Return the directory of an earlier run."""
        if not cls.is_run(path):
            advice = f"Start one with tf-transformer train --run-dir {path} …"
            if not os.path.exists(path):
                raise RunError(f"{path}: is no folder. Check the path of the run. {advice}")
            if formats_in(path):
                advice = "It is an export. Give the folder of its run."
            raise RunError(f"{path}: holds no run (there is no config.toml). {advice}")
        return cls(path)

    @classmethod
    def is_run(cls, path: str | os.PathLike[str]) -> bool:
        """Return whether a directory holds a run."""
        return cls(path).config_path.is_file()

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the directory for training; the system also unlocks it when the process ends."""
        self.path.mkdir(parents=True, exist_ok=True)
        with self.lock_path.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                wait = "Wait until it ends, or give another --run-dir"
                raise RunError(f"{self.path}: another process is training there. {wait}.") from None
            yield

    def config(self) -> RunConfig:
        """Read the configuration of the run."""
        return RunConfig.from_dict(read_toml(self.config_path), str(self.config_path))

    def summary(self) -> list[dict[str, Any]]:
        """Read the `Corpus.summary` of the run; empty if there is none, or a damaged one."""
        try:
            found = json.loads(self.summary_path.read_text(encoding="utf-8"))
            _ = [text["files"].values() for text in found]
        except (OSError, ValueError, TypeError, LookupError, AttributeError):
            return []
        return found

    def save_config(self, config: RunConfig) -> None:
        """Write the complete configuration atomically."""
        with atomic_file(self.config_path) as temporary:
            temporary.write_text(config.to_toml(), encoding="utf-8")

    def begin(self, config: RunConfig, tokenizers: Sequence[Any], corpus: Any = None) -> None:
        """Write the tokenizers, test sentences, `Corpus.summary` and configuration.

        The configuration is written last, because a directory that holds it can be resumed.
        """
        with atomic_folder(self.tokenizers_path, overwrite=True) as folder:
            for side, tokenizer in zip(("source", "target"), tokenizers, strict=True):
                tokenizer.save(folder / f"{side}.model")
        test = None if corpus is None else corpus.test
        if test is not None:
            with atomic_folder(self.test_path, overwrite=True) as folder:
                for side, sentences in (("source", test.sources), ("target", test.targets)):
                    text = "".join(f"{sentence}\n" for sentence in sentences)
                    (folder / f"{side}.txt").write_text(text, encoding="utf-8")
        summary = () if corpus is None else corpus.summary
        with atomic_file(self.summary_path) as temporary:
            temporary.write_text(json.dumps(summary, ensure_ascii=False), encoding="utf-8")
        self.save_config(config)

    def resume_command(self) -> str:
        """Return the command that continues the run."""
        return f"tf-transformer train --run-dir {shlex.quote(str(self.path))} --resume"

    def next_commands(self, config: RunConfig) -> str:
        """Return the commands to export and evaluate a run, on its test sentences if it has any."""
        path = shlex.quote(str(self.path))
        translates = config.model.translates
        export = f"tf-transformer export {path} saved_models/NAME, or " if translates else ""
        evaluate = f"{export}tf-transformer evaluate {path}"
        if not config.data.has_sources:
            return f"{evaluate} --text F"
        test = [self.test_path / f"{side}.txt" for side in ("source", "target")]
        source, reference = (shlex.quote(str(p)) if p.is_file() else "F" for p in test)
        perplexity = "" if translates else " --perplexity"
        return f"{evaluate} --source {source} --reference {reference}{perplexity}"

    def log(self) -> list[dict[str, float]]:
        """Read the lines of the log, oldest first."""
        if not self.log_path.is_file():
            return []
        found = []
        lines = self.log_path.read_text(encoding="utf-8").splitlines(keepends=True)
        for number, line in enumerate(lines, 1):
            if not line.endswith("\n"):
                break  # incomplete, because the process was killed
            try:
                found.append(json.loads(line))
                found[-1]["step"]
            except (ValueError, KeyError, TypeError):
                where = f"{self.log_path}: line {number}"
                raise RunError(f"{where} is not a line of metrics. Remove that line.") from None
        return found

    def truncate_log(self, step: int) -> None:
        """Drop the log lines after a step, because a run that resumes there writes them again."""
        if self.log_path.is_file():
            kept = [json.dumps(line) + "\n" for line in self.log() if line["step"] <= step]
            with atomic_file(self.log_path) as temporary:
                temporary.write_text("".join(kept), encoding="utf-8")


def say(line: str) -> None:
    """Print a line of progress to standard error."""
    print(line, file=sys.stderr, flush=True)


def warn(line: str) -> None:
    """Print a warning, which does not stop the command, to standard error."""
    print(f"tf-transformer: {line}", file=sys.stderr)

"""Translate with Marian, in an interpreter that has pymarian and nothing of ours."""

import pathlib
from collections.abc import Callable
from typing import Any

import engine
import pymarian


def opened(job: dict[str, Any]) -> Callable[..., tuple[int, float]]:
    """Return a function that makes a number of tokens from texts, and takes its time.

    The model never ends a translation. Marian ends it at a factor times the longest source of its
    batch, so the function finds the factor that gives the number of tokens.
    """
    folder = job["folder"]
    max_length = (pathlib.Path(folder) / "max_length").read_text()
    translator = pymarian.Translator(
        f"--models {folder}/marian.npz --vocabs {folder}/vocab.spm {folder}/vocab.spm"
        f" --cpu-threads {job['batches']} --maxi-batch 16 --maxi-batch-sort src"
        f" --max-length {max_length} --max-length-crop"
        " --normalize 0.6 --no-spm-decode --quiet --quiet-translation"
    )
    factors: dict[tuple[int, int, int], float] = {}

    def translate_all(texts, batch_size, beam_size, factor):
        groups = [[text] for text in texts] if batch_size == 1 else [texts]
        options = {"mini-batch": batch_size, "beam-size": beam_size, "max-length-factor": factor}
        found = [translator.translate(group, **options) for group in groups]
        return sum(len(translation.split()) for group in found for translation in group)

    def translate(texts, batch_size, beam_size, tokens):
        key = batch_size, beam_size, len(texts)
        # In the warm-up. Marian rounds lengths down, hence twice; they do not depend on the beam.
        if key not in factors:
            factors[key] = tokens / translate_all(texts, batch_size, 1, 1.0)
            factors[key] *= tokens / translate_all(texts, batch_size, 1, factors[key])
        return translate_all(texts, batch_size, beam_size, factors[key])

    return engine.timed(translate)


if __name__ == "__main__":
    engine.answer(opened)

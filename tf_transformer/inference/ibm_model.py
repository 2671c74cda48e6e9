"""IBM Model 1: which tokens of two sentences translate each other, learned from the pairs alone."""

from collections.abc import Hashable, Sequence

import numpy as np

Sentence = Sequence[Hashable]

_ITERATIONS = 5


def translation_probabilities(
    sources: Sequence[Sentence], targets: Sequence[Sentence], iterations: int = _ITERATIONS
) -> list[np.ndarray]:
    """Trains IBM Model 1 by EM (Brown et al. 1993, section 4.2).

    Args:
        sources: Sentences of tokens, at least one.
        targets: Their translations.
        iterations: Of EM, from uniform probabilities on.

    Returns:
        float64 array `(S + 1, T)` for each pair: the probability of each target token given each
        source token, and, in row 0, given none (the paper's null word).
    """
    source_ids, target_ids = _ids(sources, first=1), _ids(targets, first=0)
    shapes = [(len(s) + 1, len(t)) for s, t in zip(sources, targets, strict=True)]
    # Every cell of every pair's array, one after another.
    cells = [
        (np.repeat(np.append(0, s), len(t)), np.tile(t, len(s) + 1))
        for s, t in zip(source_ids, target_ids, strict=True)
    ]
    starts = np.cumsum([0, *(len(t) for t in targets)])
    columns = np.concatenate(
        [
            np.tile(np.arange(start, start + length), height)
            for start, (height, length) in zip(starts, shapes, strict=False)
        ]
    )
    cell_sources, cell_targets = (np.concatenate(side) for side in zip(*cells, strict=True))
    num_targets = cell_targets.max(initial=0) + 1
    entries, cell_entries = np.unique(
        cell_sources * num_targets + cell_targets, return_inverse=True
    )
    entry_sources = entries // num_targets
    probabilities = np.ones(len(entries))
    for _ in range(iterations):
        posterior = probabilities[cell_entries]
        posterior /= np.bincount(columns, posterior)[columns]
        counts = np.bincount(cell_entries, posterior)
        probabilities = counts / np.bincount(entry_sources, counts)[entry_sources]
    bounds = np.cumsum([height * length for height, length in shapes])[:-1]
    parts = np.split(probabilities[cell_entries], bounds)
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def reliable_links(
    sources: Sequence[Sentence], targets: Sequence[Sentence], iterations: int = _ITERATIONS
) -> list[np.ndarray]:
    """The links on which IBM Model 1 agrees in both directions.

    Linked are tokens each of which is the best for the other, and tokens that are equal, such as
    numbers, names and punctuation. A token that its sentence has more than once has no link,
    because the model does not know one from the other.

    Args:
        sources: Sentences of tokens.
        targets: Their translations.
        iterations: Of EM.

    Returns:
        int64 array `(links, 2)` for each pair: the indices of a source and a target token.
    """
    forward = translation_probabilities(sources, targets, iterations)
    backward = translation_probabilities(targets, sources, iterations)
    found = []
    for source, target, given_source, given_target in zip(
        sources, targets, forward, backward, strict=True
    ):
        of_target, of_source = given_source.argmax(0) - 1, given_target.argmax(0) - 1
        links = {(int(i), j) for j, i in enumerate(of_target) if i >= 0 and of_source[i] == j}
        equal = {(source.index(t), j) for j, t in enumerate(target) if t in source}
        taken = [{link[side] for link in equal} for side in (0, 1)]
        links = {link for link in links if link[0] not in taken[0] and link[1] not in taken[1]}
        once = {
            (i, j)
            for i, j in links | equal
            if source.count(source[i]) == 1 and target.count(target[j]) == 1
        }
        found.append(np.array(sorted(once), np.int64).reshape(-1, 2))
    return found


def _ids(sentences: Sequence[Sentence], first: int) -> list[np.ndarray]:
    """The sentences with a number for each token, from `first` on in order of appearance."""
    numbers: dict[Hashable, int] = {}
    return [
        np.array([numbers.setdefault(t, first + len(numbers)) for t in sentence], np.int64)
        for sentence in sentences
    ]

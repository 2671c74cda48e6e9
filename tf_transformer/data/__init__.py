"""Parallel text: readers, token-budget batches and built-in corpora.

Each name is imported when it is first used, so that the readers need not load TensorFlow.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "text": ["Corpus", "ParallelText", "TextFiles", "read_parallel", "read_tsv"],
        "corpus": ["load_tfds"],
        "batching": ["TokenBatches"],
        "tasks": ["copy_task", "reverse_task"],
    },
)

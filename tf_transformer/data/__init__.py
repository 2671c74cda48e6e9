"""Parallel text: readers, token-budget batches and built-in corpora.

Each name is imported when it is first used, so that the readers need not load TensorFlow.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "parallel": ["Corpus", "ParallelText", "load_tfds", "read_parallel", "read_tsv"],
        "text_files": ["TextFiles"],
        "batching": ["TokenBatches"],
        "synthetic": ["copy_task", "reverse_task"],
    },
)

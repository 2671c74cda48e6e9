"""Write small random BERT models of Hugging Face, with its answers, for the tests.

Run it in an environment of its own, which the project does not need:

    pip install torch==2.13.0 transformers
    python dev/write_bert_fixtures.py tests/fixtures/bert
    python dev/write_bert_fixtures.py build/bert PUBLISHED

Every weight is random, biases and norms included: zeros and ones would hide that they are swapped.
With the folder of a PUBLISHED model, that model and answers for 1,000 lines are written instead;
`dev/compare_bert.py build/bert/published` compares them.
"""

import gzip
import json
import pathlib
import random
import shutil
import sys
import unicodedata

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertForMaskedLM, BertModel, BertTokenizer

PHRASEBOOK = pathlib.Path(__file__).parents[1] / "tf_transformer/data/phrasebook.tsv.gz"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SIZES = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24,
    "max_position_embeddings": 41, "layer_norm_eps": 1e-12,
}  # fmt: skip
MODELS = {
    "masked": (BertForMaskedLM, {"hidden_act": "gelu"}, {"do_lower_case": True}),
    "plain": (BertModel, {"hidden_act": "relu"}, {"do_lower_case": False}),
}
LINES = [
    "Guten Abend, Anna!", "Good evening, Anna!", "", " ", "Wo  ist   Köln?", "Das ist 😀 gut.",
    "你好，世界", "漢字とかな 3.5％", "مرحبا بالعالم", "Привет, мир", "Γειά σου, ΣΟΦΟΣ",
    "한국어 좋아", "नमस्ते दुनिया", "สวัสดี", "שָׁלוֹם", "ﬁne Ｈａｕｓ",
    "das\u00a0Haus\u2028ist\u3000da", "GROẞ und groß", "café", "cafe\u0301", "İstanbul ılık",
    "a\u200bb\u00adc\ufeffd", "tab\tnew\nline\x07bell\x00nul\x85", "don't (re-)do «it» – ‘now’…",
    "$3.50+4=7^2`~|<x>@y", "[SEP] [MASK] [unk]", "\ufffd \ue000x", "x" * 100, "x" * 101, "é" * 101,
    "naïve " * 9, "!?" * 9, "¿Qué?", "𠀀𪜀", "👩\u200d👩\u200d👧",
]  # fmt: skip


def mixed_lines(number):
    """Return lines in which characters of many scripts stand beside each other."""
    generator = random.Random(0)
    rows = gzip.open(PHRASEBOOK, "rt", encoding="utf-8").read().split()
    ranges = [
        (0x20, 0x7F), (0xA0, 0x180), (0x300, 0x330), (0x370, 0x400), (0x400, 0x500), (0x5D0, 0x5EB),
        (0x620, 0x650), (0x904, 0x940), (0xE01, 0xE3B), (0x10D0, 0x10F1), (0x1E00, 0x2000),
        (0x2000, 0x2070), (0x2190, 0x2200), (0x3000, 0x3100), (0x4E00, 0x9FA6), (0xAC00, 0xD7A4),
        (0xFF00, 0xFFEF), (0x1F600, 0x1F650), (0, 0x20), (0x20000, 0x20100),
    ]  # fmt: skip
    known = [[chr(c) for c in range(*r) if unicodedata.category(chr(c)) != "Cn"] for r in ranges]

    def word():
        if generator.random() < 0.5:
            return generator.choice(rows)
        return "".join(generator.choices(generator.choice(known), k=generator.randint(1, 8)))

    def line():
        words = [word() for _ in range(generator.randint(1, 20))]
        return "".join(w + generator.choice(["", " ", " ", " ", "\t", ", "]) for w in words)

    return [line() for _ in range(number)]


def write_vocabulary(folder, tokenizer_settings):
    """Write `vocab.txt` with most of the characters of the lines, and some words and parts."""
    empty = BertTokenizer({s: i for i, s in enumerate(SPECIAL)}, **tokenizer_settings)
    words = [w for line in LINES for w, _ in splits(empty, line)]
    characters = sorted(set("".join(words)))
    del characters[::11]
    parts = {w[:3] for w in words} | {f"##{w[i : i + 2]}" for w in words for i in (1, 3)}
    rows = {*words[::3], *characters, *parts, *(f"##{c}" for c in characters[::2])}
    rows = [*SPECIAL, *sorted(row for row in rows if len(row) < 20 and row.strip("#"))]
    (folder / "vocab.txt").write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return len(rows)


def splits(tokenizer, line):
    """Return words and offsets."""
    backend = tokenizer.backend_tokenizer
    return backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(line))


def random_model(kind, settings, size):
    """Return a model of half precision numbers."""
    torch.manual_seed(1)
    config = BertConfig(vocab_size=size, **SIZES, **settings, attn_implementation="eager")
    model = kind(config).eval()
    for name, weight in model.named_parameters():
        is_scale = "LayerNorm.weight" in name
        weight.copy_((torch.randn(weight.shape) * 0.5 + is_scale).half())
    return model


def save(model, folder):
    """Write the weights as safetensors, or in the names and the format of old releases."""
    state = {name: weight.half() for name, weight in model.state_dict().items()}
    if isinstance(model, BertForMaskedLM):
        state.pop("cls.predictions.decoder.weight", None)
        save_file(state, folder / "model.safetensors", {"format": "pt"})
    else:
        old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        for new, name in old.items():
            state = {key.replace(new, name): weight for key, weight in state.items()}
        torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)


def answers(model, tokenizer, lines, pairs):
    """Return ids of lines, and hidden states and logits of pairs."""
    bert = getattr(model, "bert", model)
    ids = tokenizer(lines, split_special_tokens=True, add_special_tokens=False)["input_ids"]
    batch = tokenizer([source for source, _ in pairs], return_tensors="pt", padding=True)
    found = {"lines": lines, "ids": ids, "pairs": pairs, "source_ids": batch["input_ids"].tolist()}
    hidden = bert(**batch).last_hidden_state.numpy()
    rows = []
    for source, target in pairs:
        # The source sees itself, the target sees the source and its own past (UniLM).
        both = tokenizer(source, target)
        segments = torch.tensor(both["token_type_ids"][:-1])
        groups = torch.cumsum(segments, 0)
        mask = torch.where(groups[None] <= groups[:, None], 0.0, torch.finfo(torch.float32).min)
        inputs = {"token_type_ids": segments[None], "attention_mask": mask[None, None]}
        inputs["input_ids"] = torch.tensor([both["input_ids"][:-1]])
        if bert is model:
            matrix = model.embeddings.word_embeddings.weight
            logits = bert(**inputs).last_hidden_state @ matrix.T
        else:
            logits = model(**inputs).logits
        first = int((segments == 0).sum()) - 1  # the source's end predicts the first token
        rows.append(logits[0, first:].numpy())
    return found, {"hidden": hidden, **{f"logits_{i}": row for i, row in enumerate(rows)}}


def write(folder, model, lines, pairs):
    """Write the answers of a model for lines and pairs into its folder."""
    tokenizer = BertTokenizer.from_pretrained(folder)
    found, arrays = answers(model, tokenizer, lines, pairs)
    (folder / "answers.json").write_text(json.dumps(found, ensure_ascii=False), encoding="utf-8")
    np.savez_compressed(folder / "answers.npz", **arrays)


@torch.no_grad()
def main(target, published=None):
    """Write a folder for each model into `target`."""
    rows = gzip.open(PHRASEBOOK, "rt", encoding="utf-8").read().splitlines()
    pairs = [row.split("\t") for row in rows[:8]]
    if published is not None:
        folder = target / "published"
        shutil.copytree(published, folder, dirs_exist_ok=True)
        model = BertModel.from_pretrained(folder, attn_implementation="eager").eval()
        write(folder, model, [*LINES, *mixed_lines(1000 - len(LINES))], pairs)
        return
    pairs = [("Guten Abend, Anna!", "Good evening!"), ("café", "¿Qué? x"), ("Köln 😀", "世界")]
    for name, (kind, settings, of_tokenizer) in MODELS.items():
        folder = target / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        model = random_model(kind, settings, write_vocabulary(folder, of_tokenizer))
        save(model, folder)
        model.config.save_pretrained(folder)
        of_tokenizer |= {"tokenizer_class": "BertTokenizer", "strip_accents": None}
        (folder / "tokenizer_config.json").write_text(json.dumps(of_tokenizer))
        write(folder, model, [*LINES, *mixed_lines(30)], pairs)


if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:]))

"""Write small random Marian models of Hugging Face, with its answers, for the tests.

Run it in an environment of its own, which the project does not need:

    pip install torch==2.13.0 transformers sentencepiece sacremoses
    python dev/write_hugging_face_fixtures.py tests/fixtures/hugging_face

Every weight is random, biases and norms included: zeros and ones would hide that they are swapped.
"""

import gzip
import json
import pathlib
import shutil
import sys
import tempfile

import numpy as np
import sentencepiece
import torch
from safetensors.torch import save_file
from transformers import MarianConfig, MarianMTModel, MarianTokenizer

PHRASEBOOK = pathlib.Path(__file__).parents[1] / "tf_transformer/data/phrasebook.tsv.gz"
SIZES = {
    "d_model": 16, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "dropout": 0.1, "attention_dropout": 0.0,
    "max_position_embeddings": 64, "forced_eos_token_id": None, "eos_token_id": 0,
}  # fmt: skip
MODELS = {
    "shared": {
        "encoder_layers": 2, "decoder_layers": 1, "activation_function": "swish",
        "scale_embedding": True,
    },
    "separate": {
        "encoder_layers": 1, "decoder_layers": 2, "activation_function": "gelu",
        "scale_embedding": False, "share_encoder_decoder_embeddings": False,
    },
    "untied": {
        "encoder_layers": 1, "decoder_layers": 1, "activation_function": "relu",
        "scale_embedding": True, "share_encoder_decoder_embeddings": False,
        "tie_word_embeddings": False,
    },
}  # fmt: skip
LINES = [
    "Guten Abend, Anna!", "Good evening, Anna!", "", " ", "Wo  ist   Köln?", "Das ist 😀 gut.",
    "你好，世界", "مرحبا بالعالم", "Привет, мир", "Γειά σου", "ﬁne Ｈａｕｓ", "das\u00a0Haus",
    ">>deu<< Guten Abend", ">>nld<<Guten Abend", "Guten >>deu<< Abend", "GROẞ", "café",
    "cafe\u0301",
    "x" * 300,
]  # fmt: skip


def splitters(pairs, folder, size=160, normalization="identity"):
    """Train `source.spm` and `target.spm`; return the subwords of both."""
    subwords = []
    for side, texts in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_prefix=str(folder / side), vocab_size=size,
            character_coverage=1.0, minloglevel=2, normalization_rule_name=normalization,
        )  # fmt: skip
        (folder / f"{side}.model").rename(folder / f"{side}.spm")
        (folder / f"{side}.vocab").unlink()
        library = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm"))
        subwords.append([library.id_to_piece(index) for index in range(3, library.vocab_size())])
    return subwords


def write_tables(folder, subwords, shares):
    """Write the tables, in an order of their own; a few subwords are missing as in OPUS-MT's."""
    tables = [set(subwords[0] + subwords[1])] if shares else list(map(set, subwords))
    size = max(map(len, tables))
    names = ["vocab.json", "target_vocab.json"]
    for name, table in zip(names, tables, strict=False):
        order = sorted(sorted(table)[5:])
        fillers = [f"filler{index}" for index in range(size - 5 - len(order))]
        rows = ["</s>", "<unk>", *order, ">>deu<<", ">>nld<<", *fillers, "<pad>"]
        ids = {subword: index for index, subword in enumerate(rows)}
        (folder / name).write_text(json.dumps(ids, ensure_ascii=False), encoding="utf-8")
    return len(rows)


def random_model(settings, size, seed):
    """Return a model of half precision numbers."""
    pad = {"pad_token_id": size - 1, "decoder_start_token_id": size - 1}
    pad |= {"vocab_size": size, "decoder_vocab_size": size}
    model = MarianMTModel(MarianConfig(**SIZES, **settings, **pad)).eval()
    torch.manual_seed(seed)
    # Most random models repeat one token; which do not is found by trying.
    small, large, cross, end = np.random.default_rng(seed).uniform(
        [0.1, 0.5, 1, 0], [0.5, 1.5, 4, 4]
    )
    for name, weight in [*model.named_parameters(), *model.named_buffers()]:
        if "embed_positions" not in name:
            is_small = "embed" in name or "shared" in name or "logits" in name
            deviation = small if is_small else large * (cross if "encoder_attn" in name else 1)
            is_scale = "layer_norm.weight" in name
            deviation = 0.5 if is_scale else deviation
            weight.copy_((torch.randn(weight.shape) * deviation + is_scale).half())
    model.final_logits_bias[0, 0] += end
    model.final_logits_bias.copy_(model.final_logits_bias.half())
    return model


def lively_model(settings, size, tokenizer):
    """Return the one of some random models with the most different translations and tokens."""

    def liveliness(model):
        ids = translations(model, tokenizer, 1).sequences[:, 1:].tolist()
        return len({tuple(row) for row in ids}) + len({token for row in ids for token in row})

    return max((random_model(settings, size, seed) for seed in range(60)), key=liveliness)


def translations(model, tokenizer, beam_size):
    """Return what `generate` returns for the lines."""
    inputs = tokenizer(LINES, return_tensors="pt", padding=True)
    return model.generate(
        **inputs, max_new_tokens=30, bad_words_ids=[[model.config.pad_token_id]],
        renormalize_logits=True, num_beams=beam_size, length_penalty=0.0, early_stopping=False,
        do_sample=False, return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip


def save(kind, model, folder):
    """Write the weights as safetensors, as an archive of PyTorch or as its old format."""
    state = {name: weight.half() for name, weight in model.state_dict().items()}
    if kind == "shared":
        shared = {"model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight",
                  "lm_head.weight"}  # fmt: skip
        state = {name: x for name, x in state.items() if name not in shared}
        save_file(state, folder / "model.safetensors", {"format": "pt"})
    else:
        is_new = kind == "separate"
        torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=is_new)


def answers(model, tokenizer):
    """Return ids of the lines, and logits and translations of some pairs."""
    found = {"lines": LINES, "source_ids": tokenizer(LINES)["input_ids"]}
    found["target_ids"] = tokenizer(text_target=LINES)["input_ids"]
    found["decoded"] = tokenizer.batch_decode(found["target_ids"], skip_special_tokens=True)
    texts = [LINES[index] for index in (0, 4, 8)]
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    targets = tokenizer(text_target=texts, return_tensors="pt", padding=True)["input_ids"]
    start = torch.full((3, 1), model.config.decoder_start_token_id)
    decoder_ids = torch.cat([start, targets], dim=1)
    logits = model(**inputs, decoder_input_ids=decoder_ids).logits
    found |= {"texts": texts, "decoder_ids": decoder_ids.tolist()}
    for name, beam_size in (("greedy", 1), ("beam", 4)):
        ids = translations(model, tokenizer, beam_size)
        found[name] = ids.sequences[:, 1:].tolist()
        if beam_size > 1:
            found["beam_scores"] = ids.sequences_scores.tolist()
    return found, logits.numpy()


@torch.no_grad()
def main(target):
    """Write a folder for each model into `target`."""
    rows = gzip.open(PHRASEBOOK, "rt", encoding="utf-8").read().splitlines()
    pairs = [row.split("\t") for row in rows[:3000]]
    for kind, settings in MODELS.items():
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            shares = settings.get("share_encoder_decoder_embeddings", True)
            size = write_tables(folder, splitters(pairs, folder), shares)
            paths = [folder / name for name in ("source.spm", "target.spm", "vocab.json")]
            other = None if shares else str(folder / "target_vocab.json")
            tokenizer = MarianTokenizer(*map(str, paths), other, separate_vocabs=not shares)
            model = lively_model(settings, size, tokenizer)
            save(kind, model, folder)
            config = {**model.config.to_dict(), "bad_words_ids": [[size - 1]]}
            (folder / "config.json").write_text(json.dumps(config, indent=1))
            found, logits = answers(model, tokenizer)
            (folder / "answers.json").write_text(json.dumps(found, ensure_ascii=False))
            np.save(folder / "logits.npy", logits.astype("float32"))
            shutil.rmtree(target / kind, ignore_errors=True)
            shutil.copytree(folder, target / kind)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))

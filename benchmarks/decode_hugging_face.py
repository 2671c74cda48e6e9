"""Translate with transformers, in an interpreter that has it and nothing of ours."""

import json
import pathlib
from collections.abc import Callable
from typing import Any

import engine
import numpy as np
import torch
from transformers import MarianConfig, MarianMTModel, MarianTokenizer

KINDS = {"weight": ("W", "ln_scale"), "bias": ("b", "ln_bias")}


def opened(job: dict[str, Any]) -> Callable[..., tuple[int, float]]:
    """Return a function that makes a number of tokens from texts, and takes its time."""
    torch.set_num_threads(job["threads"])
    folder = pathlib.Path(job["folder"])
    model = model_of(dict(np.load(folder / "marian.npz")), job["sizes"])
    max_length = int((folder / "max_length").read_text())
    subwords = (folder / "subwords").read_text(encoding="utf-8").split("\n")
    ids = {subword: id for id, subword in enumerate([*subwords, "<start>"])}
    (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    splitter = str(folder / "vocab.model")
    tokenizer = MarianTokenizer(splitter, splitter, str(folder / "vocab.json"), pad_token="<start>")

    @torch.no_grad()
    def translate(texts, batch_size, beam_size, tokens):
        length, texts = tokens // len(texts), sorted(texts, key=len)
        found = 0
        for start in range(0, len(texts), batch_size):
            inputs = tokenizer(
                texts[start : start + batch_size],
                return_tensors="pt", padding=True, truncation=True, max_length=max_length,
            )  # fmt: skip
            # The forced end is part of the published models' settings, and the last of `length`.
            ids = model.generate(
                **inputs, num_beams=beam_size, min_new_tokens=length, max_new_tokens=length,
                do_sample=False,
            )  # fmt: skip
            tokenizer.batch_decode(ids, skip_special_tokens=True)
            found += ids[:, 1:].numel()
        return found

    return engine.timed(translate)


def model_of(weights: dict[str, np.ndarray], sizes: dict[str, int]) -> MarianMTModel:
    """Return a model with Marian's weights, and the settings of a published one."""
    size = len(weights["Wemb"])  # of the embedding of <start>, which Marian does not have
    config = MarianConfig(
        vocab_size=size + 1, d_model=sizes["d_model"], activation_function="swish",
        encoder_layers=sizes["num_layers"], decoder_layers=sizes["num_layers"],
        encoder_attention_heads=sizes["num_heads"], decoder_attention_heads=sizes["num_heads"],
        encoder_ffn_dim=sizes["d_ff"], decoder_ffn_dim=sizes["d_ff"], scale_embedding=True,
        max_position_embeddings=512, pad_token_id=size, decoder_start_token_id=size,
        eos_token_id=3, forced_eos_token_id=3, bad_words_ids=[[size]],
    )  # fmt: skip
    state = {"model.shared.weight": np.pad(weights["Wemb"], ((0, 1), (0, 0)))}
    state["final_logits_bias"] = np.pad(weights["decoder_ff_logit_out_b"], ((0, 0), (0, 1)))
    for side, attentions in (("encoder", ["self"]), ("decoder", ["self", "context"])):
        state[f"model.{side}.embed_tokens.weight"] = state["model.shared.weight"]
        for number in range(sizes["num_layers"]):
            theirs, ours = f"model.{side}.layers.{number}", f"{side}_l{number + 1}"
            names = {f"{theirs}.fc{n}": f"ffn_{{}}{n}" for n in (1, 2)}
            names[f"{theirs}.final_layer_norm"] = "ffn_ffn_{}"
            for name in attentions:
                module = "self_attn" if name == "self" else "encoder_attn"
                names[f"{theirs}.{module}_layer_norm"] = f"{name}_Wo_{{}}"
                for letter, projection in zip("qkvo", ("q", "k", "v", "out"), strict=True):
                    names[f"{theirs}.{module}.{projection}_proj"] = f"{name}_{{}}{letter}"
            for path, name in names.items():
                for kind, marian in KINDS.items():
                    array = weights[f"{ours}_{name.format(marian['norm' in path])}"]
                    state[f"{path}.{kind}"] = array.T if array.shape[0] > 1 else array[0]
    state["lm_head.weight"] = state["model.shared.weight"]
    model = MarianMTModel(config).eval()
    tensors = {name: torch.tensor(array) for name, array in state.items()}
    missing, unknown = model.load_state_dict(tensors, strict=False)
    if unknown or any("embed_positions" not in name for name in missing):
        raise SystemExit(f"weights do not fit: {missing}, {unknown}")
    return model


if __name__ == "__main__":
    engine.answer(opened)

"""Train PyTorch's `nn.Transformer` in a plain loop."""

import time

STARTED = time.monotonic()

import contextlib  # noqa: E402
from typing import Any  # noqa: E402

import engine  # noqa: E402
import torch  # noqa: E402
from pytorch_transformer import PyTorchTransformer, adam_with_noam, label_smoothed_loss  # noqa: E402
from tokenized_text import load_batches, target_tokens  # noqa: E402


def train(job: dict[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(job["threads"])
    torch.manual_seed(job["seed"])

    # These batches are made before the clock starts; our engine makes its batches in training.
    arrays = load_batches(job["folder"], job["num_batches"])
    batches = [[torch.from_numpy(ids).long() for ids in batch] for batch in arrays]
    model = PyTorchTransformer(
        vocab_size=job["vocab_size"],
        **job["sizes"],
        dropout=job["dropout"],
        pad_id=job["pad_id"],
        dropout_everywhere=job["dropout_everywhere"],
    )
    model.train()
    loss_of = label_smoothed_loss(job["pad_id"])
    optimizer, schedule = adam_with_noam(model, job["sizes"]["d_model"])
    forward = torch.compile(model, dynamic=True) if job["compile"] else model
    bfloat16 = job["precision"] == "bfloat16"

    seconds = []
    for source_ids, target_ids, labels in batches:
        before = time.monotonic()
        precision = torch.autocast("cpu", torch.bfloat16) if bfloat16 else contextlib.nullcontext()
        optimizer.zero_grad(set_to_none=True)
        with precision:
            logits = forward(source_ids, target_ids)
            loss = loss_of(logits.flatten(0, 1), labels.flatten())
        loss.backward()
        optimizer.step()
        schedule.step()
        last_loss = loss.item()
        if not seconds:
            first_step = time.monotonic() - STARTED
        seconds.append(time.monotonic() - before)
    return {
        "first_step": first_step,
        "seconds": seconds[1:],
        "tokens": target_tokens(arrays, job["pad_id"])[1:],
        "loss": last_loss,
        "parameters": sum(weights.numel() for weights in model.parameters()),
    }


if __name__ == "__main__":
    engine.finish(train(engine.job()))

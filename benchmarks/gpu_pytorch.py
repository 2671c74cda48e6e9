"""Train PyTorch's `nn.Transformer`, compiled, under bfloat16 autocast."""

import time

STARTED = time.monotonic()

from typing import Any  # noqa: E402

import engine  # noqa: E402
import torch  # noqa: E402
from pytorch_transformer import PyTorchTransformer, adam_with_noam, label_smoothed_loss  # noqa: E402
from synthetic_batches import PAD_ID, synthetic_batches  # noqa: E402


def train(job: dict[str, Any]) -> dict[str, Any]:
    torch.manual_seed(job["seed"])
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if job["device"] == "gpu" else "cpu")
    model = PyTorchTransformer(
        vocab_size=job["vocab_size"], **job["sizes"], dropout=job["dropout"], pad_id=PAD_ID
    ).to(device)
    model.train()
    cross_entropy = label_smoothed_loss(PAD_ID)
    optimizer, schedule = adam_with_noam(model, job["sizes"]["d_model"])

    def loss_of(source_ids, target_ids, labels):
        with torch.autocast(device.type, torch.bfloat16):
            logits = model(source_ids, target_ids)
            return cross_entropy(logits.flatten(0, 1), labels.flatten())

    if job["compile"]:
        # Compile the loss too, to fuse its passes over the logits. Each shape is compiled.
        loss_of = torch.compile(loss_of, dynamic=False)
    batches = [
        [torch.from_numpy(ids).long().to(device) for ids in batch]
        for batch in synthetic_batches(job)
    ]

    def synchronize():
        if device.type == "cuda":
            torch.cuda.synchronize()

    first_step, blocks, losses = None, [], []
    for block in range(job["blocks"] + 1):  # the first is the warm-up, which compiles
        before = time.monotonic()
        for index in range(job["steps"] if block else len(batches)):
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(*batches[index % len(batches)])
            loss.backward()
            optimizer.step()
            schedule.step()
            if first_step is None:
                synchronize()
                first_step = time.monotonic() - STARTED
        synchronize()
        blocks.append(time.monotonic() - before)
        losses.append(float(loss))
    return {
        "first_step": first_step,
        "block_seconds": blocks[1:],
        "losses": losses,
        "parameters": sum(weights.numel() for weights in model.parameters()),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
    }


if __name__ == "__main__":
    engine.finish(train(engine.job()))

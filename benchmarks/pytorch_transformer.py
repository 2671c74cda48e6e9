"""PyTorch's `nn.Transformer` between tied embeddings."""

import math

import torch
from torch import nn
from torch.nn import functional


class PyTorchTransformer(nn.Module):
    """`nn.Transformer` with pre-norm and one matrix for source, target and output.

    Args:
        vocab_size: Size V of the joint vocabulary.
        num_layers: Number of encoder layers, and of decoder layers.
        d_model: Width D of the model.
        num_heads: Number H of attention heads.
        d_ff: Width of the feed-forward networks.
        dropout: Dropout rate.
        pad_id: The id of padding.
        dropout_everywhere: Whether dropout also applies to attention weights, which rules out the
            fused attention kernels, and to the hidden layers of the feed-forward networks, as in
            `nn.Transformer`. False applies it only where our model and the paper do.
        max_length: The largest number of positions.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        num_layers: int,
        d_model: int,
        num_heads: int,
        d_ff: int,
        dropout: float,
        pad_id: int,
        dropout_everywhere: bool = False,
        max_length: int = 1024,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self.pad_id = pad_id
        self.embedding = nn.Embedding(vocab_size, d_model, padding_idx=pad_id)
        self.dropout = nn.Dropout(dropout)
        self.transformer = nn.Transformer(
            d_model, num_heads, num_layers, num_layers, d_ff, dropout,
            batch_first=True, norm_first=True,
        )  # fmt: skip
        nn.init.normal_(self.embedding.weight, std=d_model**-0.5)
        if not dropout_everywhere:
            for layer in [*self.transformer.encoder.layers, *self.transformer.decoder.layers]:
                layer.dropout = nn.Identity()  # for the feed-forward network's hidden layer
                layer.self_attn.dropout = 0.0
                if hasattr(layer, "multihead_attn"):
                    layer.multihead_attn.dropout = 0.0
        causal = nn.Transformer.generate_square_subsequent_mask(max_length)
        self.register_buffer("causal", causal.isinf(), persistent=False)
        self.register_buffer("positions", sinusoids(max_length, d_model), persistent=False)

    def forward(self, source_ids: torch.Tensor, target_ids: torch.Tensor) -> torch.Tensor:
        """Return logits `(B, T, V)` of int tensors `(B, S)` and `(B, T)`."""
        source_padding = source_ids == self.pad_id
        length = target_ids.shape[1]
        hidden = self.transformer(
            self.embed(source_ids),
            self.embed(target_ids),
            src_key_padding_mask=source_padding,
            memory_key_padding_mask=source_padding,
            # The causal mask hides target padding, which comes last, from all real tokens. A
            # padding mask would rule out PyTorch's causal kernel.
            tgt_mask=self.causal[:length, :length],
            tgt_is_causal=True,
        )
        return functional.linear(hidden, self.embedding.weight)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Return embeddings with positions `(B, T, D)` of int ids `(B, T)`."""
        embedded = self.embedding(ids) * math.sqrt(self.d_model)
        return self.dropout(embedded + self.positions[: ids.shape[1]])


def sinusoids(length: int, d_model: int) -> torch.Tensor:
    """Return sinusoidal positions `(length, D)` (Vaswani et al. 2017, section 3.5)."""
    angles = torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(0, d_model, 2) / d_model)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).reshape(length, d_model)


def label_smoothed_loss(pad_id: int, label_smoothing: float = 0.1) -> nn.CrossEntropyLoss:
    """Return PyTorch's own loss.

    Unlike ours, it gives padding and the true token a share of the smoothing. The cost is the same,
    and the value differs in the fourth digit.
    """
    return nn.CrossEntropyLoss(ignore_index=pad_id, label_smoothing=label_smoothing)


def adam_with_noam(
    model: nn.Module, d_model: int, warmup_steps: int = 4000
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """Return Adam as one fused kernel, PyTorch's fastest, and Noam's schedule."""
    optimizer = torch.optim.Adam(
        model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9, fused=True
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: d_model**-0.5 * min((step + 1) ** -0.5, (step + 1) * warmup_steps**-1.5),
    )
    return optimizer, schedule

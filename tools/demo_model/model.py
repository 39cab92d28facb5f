"""Qwen3 in plain PyTorch for training: parameters named as in Hugging Face checkpoints, plus dropout."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Shape:
    vocab_size: int
    hidden_size: int = 256
    intermediate_size: int = 768
    num_hidden_layers: int = 8
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 32
    max_position_embeddings: int = 2048
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


def rotate(x, cos, sin):  # x [batch, heads, tokens, head_dim], cos and sin [tokens, head_dim]
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, s: Shape, dropout: float):
        super().__init__()
        self.head_dim, self.groups = s.head_dim, s.num_attention_heads // s.num_key_value_heads
        q_size, kv_size = s.num_attention_heads * s.head_dim, s.num_key_value_heads * s.head_dim
        self.q_proj = nn.Linear(s.hidden_size, q_size, bias=False)
        self.k_proj = nn.Linear(s.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(s.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(q_size, s.hidden_size, bias=False)
        self.q_norm, self.k_norm = (RMSNorm(s.head_dim, s.rms_norm_eps) for _ in range(2))
        self.dropout = dropout

    def forward(self, x, cos, sin):  # x [batch, tokens, hidden]
        def heads(y):
            return y.unflatten(-1, (-1, self.head_dim))

        q = rotate(self.q_norm(heads(self.q_proj(x))).transpose(1, 2), cos, sin)
        k = rotate(self.k_norm(heads(self.k_proj(x))).transpose(1, 2), cos, sin)
        v = heads(self.v_proj(x)).transpose(1, 2)
        q, k = q.to(v.dtype), k.to(v.dtype)
        k, v = (y.repeat_interleave(self.groups, dim=1) for y in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = self.o_proj(y.transpose(1, 2).flatten(2))
        return F.dropout(y, self.dropout, self.training)


class MLP(nn.Module):
    def __init__(self, s: Shape, dropout: float):
        super().__init__()
        self.gate_proj = nn.Linear(s.hidden_size, s.intermediate_size, bias=False)
        self.up_proj = nn.Linear(s.hidden_size, s.intermediate_size, bias=False)
        self.down_proj = nn.Linear(s.intermediate_size, s.hidden_size, bias=False)
        self.dropout = dropout

    def forward(self, x):
        y = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return F.dropout(y, self.dropout, self.training)


class Layer(nn.Module):
    def __init__(self, s: Shape, dropout: float):
        super().__init__()
        self.input_layernorm = RMSNorm(s.hidden_size, s.rms_norm_eps)
        self.self_attn = Attention(s, dropout)
        self.post_attention_layernorm = RMSNorm(s.hidden_size, s.rms_norm_eps)
        self.mlp = MLP(s, dropout)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, s: Shape, dropout: float):
        super().__init__()
        self.embed_tokens = nn.Embedding(s.vocab_size, s.hidden_size)
        self.layers = nn.ModuleList(Layer(s, dropout) for _ in range(s.num_hidden_layers))
        self.norm = RMSNorm(s.hidden_size, s.rms_norm_eps)
        self.dropout = dropout

    def forward(self, ids, cos, sin):
        x = F.dropout(self.embed_tokens(ids), self.dropout, self.training)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)


class Qwen3(nn.Module):
    """ids [batch, tokens] -> final hidden states [batch, tokens, hidden]; the head is the embedding."""

    def __init__(self, shape: Shape, dropout: float):
        super().__init__()
        self.shape = shape
        self.model = Body(shape, dropout)
        exponents = torch.arange(0, shape.head_dim, 2) / shape.head_dim
        positions = torch.arange(shape.max_position_embeddings)
        angles = torch.outer(positions, shape.rope_theta**-exponents).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self.apply(self._initialise)

    def _initialise(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        # What is added to the residual stream starts small, so that depth does not raise its variance.
        if isinstance(module, (Attention, MLP)):
            last = module.o_proj if isinstance(module, Attention) else module.down_proj
            nn.init.normal_(last.weight, std=0.02 / math.sqrt(2 * self.shape.num_hidden_layers))

    def forward(self, ids):
        tokens = ids.shape[1]
        return self.model(ids, self.cos[:tokens], self.sin[:tokens])

    @property
    def head(self):
        return self.model.embed_tokens.weight


def padded_logits(hidden, head):
    """[tokens, hidden] -> [tokens, vocab] in float32.

    The product runs on a vocabulary rounded up to 8, which matrix units need for their fast path.
    """
    vocab = head.shape[0]
    logits = F.linear(hidden, F.pad(head, (0, 0, 0, -vocab % 8)))
    return logits[:, :vocab].float()


def next_token_loss(hidden, head, targets):
    """Mean negative log-likelihood of the targets, [tokens]; target -100 does not count."""
    return F.cross_entropy(padded_logits(hidden, head), targets, ignore_index=-100)


def distillation_loss(hidden, head, targets, teacher_hiddens, teacher_heads, share):
    """`share` of the cross-entropy is against the teachers' mean distribution, the rest against the text."""
    log_probs = F.log_softmax(padded_logits(hidden, head), dim=-1)
    expected = sum(
        F.softmax(padded_logits(h, w), dim=-1) for h, w in zip(teacher_hiddens, teacher_heads)
    ) / len(teacher_heads)
    counts = targets >= 0
    soft = -(expected * log_probs).sum(-1)
    hard = -log_probs.gather(-1, targets.clamp(min=0)[:, None])[:, 0]
    return ((share * soft + (1 - share) * hard) * counts).sum() / counts.sum()

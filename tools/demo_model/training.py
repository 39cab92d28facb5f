"""One training run: windows drawn from token streams, AdamW, a cosine schedule, the best model kept."""

import math
import time
from dataclasses import dataclass, field
from typing import Callable

import numpy as np
import torch

from .model import Qwen3, next_token_loss, padded_logits
from .tokens import GIVEN, Stream

SHORT, LONG = 512, 2048  # tokens in a training window
LONG_EVERY = 4  # every fourth step trains on long windows


@dataclass
class Plan:
    steps: int
    seconds: float  # the run ends when either is used up
    tokens_per_step: int
    learning_rate: float
    weight_decay: float
    # Share of the windows from each source, at the start and at the end; linear in between.
    mix: dict[str, tuple[float, float]]
    evaluations: int = 20
    seed: int = 0


@dataclass
class Result:
    steps: int = 0
    seconds: float = 0.0
    tokens: int = 0
    best_step: int = 0
    best: dict[str, float] = field(default_factory=dict)  # held-out loss a token, by stream
    train_loss: float = math.nan  # at the best step
    curve: list[dict] = field(default_factory=list)


class Windows:
    """Token streams on the device; a window is a slice that begins where a document does; the end leads
    on to the beginning."""

    def __init__(self, streams: dict[str, Stream], device: torch.device, seed: int):
        self.generator = torch.Generator(device).manual_seed(seed)
        self.device, self.streams = device, {}
        for name, stream in streams.items():
            tokens = torch.from_numpy(stream.tokens.astype(np.int32)).to(device)
            self.streams[name] = (tokens, torch.from_numpy(stream.starts).to(device))

    def draw(self, counts: dict[str, int], length: int):
        """Ids [windows, length] and the targets one token later; -100 where nothing is to be predicted."""
        windows, within = [], torch.arange(length + 1, device=self.device)
        for name, count in counts.items():
            tokens, starts = self.streams[name]
            picks = torch.randint(len(starts), (count,), generator=self.generator, device=self.device)
            windows.append(tokens[(starts[picks][:, None] + within) % len(tokens)])
        return split(torch.cat(windows))


def split(windows):
    flagged = windows.long()
    ids = flagged & (GIVEN - 1)
    targets = torch.where(flagged[:, 1:] >= GIVEN, -100, ids[:, 1:])
    return ids[:, :-1].contiguous(), targets.contiguous()


def held_out_windows(stream: Stream, device) -> tuple[torch.Tensor, torch.Tensor]:
    """Each document that fits a short window, alone: what comes after it does not count."""
    ends = np.append(stream.starts[1:], len(stream.tokens))
    rows = []
    for start, end in zip(stream.starts, ends):
        row = np.full(SHORT + 1, GIVEN, dtype=np.int64)
        document = stream.tokens[start : min(end, start + SHORT + 1)]
        row[: len(document)] = document
        rows.append(row)
    return split(torch.from_numpy(np.stack(rows)).to(device))


def autocast(device):
    return torch.autocast(device.type, dtype=torch.bfloat16)


@torch.no_grad()
def evaluate(models: list[Qwen3], held_out: dict[str, tuple]) -> dict[str, float]:
    """Mean loss a token of the models' mean distribution, by stream."""
    losses = {}
    for name, (ids, targets) in held_out.items():
        total = count = 0.0
        for rows, wanted in zip(ids.split(64), targets.split(64)):
            mask = wanted >= 0
            probs = 0.0
            for model in models:
                model.eval()
                with autocast(rows.device), torch.compiler.set_stance("force_eager"):
                    logits = padded_logits(model(rows)[mask], model.head)
                probs = probs + logits.softmax(-1) / len(models)
            picked = probs.gather(-1, wanted[mask][:, None])
            total -= picked.log().sum().item()
            count += mask.sum().item()
        losses[name] = total / count
    return losses


def story_loss(losses: dict[str, float]) -> float:
    """What decides which model is best."""
    return (losses["stories"] + losses["chats"]) / 2


def optimizer_for(model: Qwen3, plan: Plan) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [
        {"params": matrices, "weight_decay": plan.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    fused = next(model.parameters()).is_cuda
    return torch.optim.AdamW(groups, lr=plan.learning_rate, betas=(0.9, 0.98), fused=fused)


def learning_rate(plan: Plan, progress: float) -> float:
    warm_up = min(1.0, progress / 0.04 + 0.01)
    return plan.learning_rate * warm_up * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))


def counts_at(plan: Plan, progress: float, windows: int) -> dict[str, int]:
    shares = {n: first + (last - first) * progress for n, (first, last) in plan.mix.items()}
    names = list(shares)
    counts = {n: round(windows * shares[n] / sum(shares.values())) for n in names[:-1]}
    counts[names[-1]] = max(0, windows - sum(counts.values()))
    return {n: c for n, c in counts.items() if c}


def train(
    model: Qwen3,
    windows: Windows,
    held_out: dict[str, tuple],
    plan: Plan,
    loss_of: Callable[[Qwen3, torch.Tensor, torch.Tensor], torch.Tensor],
    log: Callable[[str], None],
) -> Result:
    """Leaves the weights with the lowest held-out story loss in `model`."""
    device = next(model.parameters()).device
    torch.manual_seed(plan.seed)
    optimizer = optimizer_for(model, plan)
    result, best_state = Result(), None

    def one_step(progress: float, length: int):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(plan, progress)
        ids, targets = windows.draw(counts_at(plan, progress, plan.tokens_per_step // length), length)
        model.train()
        with autocast(device):
            loss = loss_of(model, ids, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    # Compilation happens in the first step of each length; it is not part of the timed schedule.
    begin = time.monotonic()
    for length in (SHORT, LONG):
        one_step(0.0, length)
    if device.type == "cuda":
        torch.cuda.synchronize()
    log(f"  first steps (with compilation) {time.monotonic() - begin:.1f} s")

    begin, progress, recent, next_evaluation = time.monotonic(), 0.0, [], 1 / plan.evaluations
    while progress < 1.0:
        recent.append(one_step(progress, LONG if result.steps % LONG_EVERY == LONG_EVERY - 1 else SHORT))
        result.steps += 1
        result.tokens += plan.tokens_per_step
        if device.type == "cuda" and result.steps % 16 == 0:
            torch.cuda.synchronize()  # else the clock below would run ahead of the work
        progress = max(result.steps / plan.steps, (time.monotonic() - begin) / plan.seconds)
        if progress >= min(next_evaluation, 1.0):
            next_evaluation += 1 / plan.evaluations
            losses = evaluate([model], held_out)
            train_loss = torch.stack(recent).mean().item()
            recent = []
            result.curve.append({"step": result.steps, "train": train_loss, **losses})
            if not result.best or story_loss(losses) < story_loss(result.best):
                result.best, result.best_step, result.train_loss = losses, result.steps, train_loss
                best_state = {k: v.detach().clone() for k, v in model.state_dict().items()}
            shown = " ".join(f"{k} {v:.4f}" for k, v in losses.items())
            log(f"  step {result.steps} ({time.monotonic() - begin:.0f} s) train {train_loss:.4f} | {shown}")
    result.seconds = time.monotonic() - begin
    model.load_state_dict(best_state)
    return result


def plain_loss(model: Qwen3, ids, targets):
    return next_token_loss(model(ids).flatten(0, 1), model.head, targets.flatten())

"""Lets models write: new stories by the teachers to train on, and samples to read."""

import numpy as np
import torch

from .model import Qwen3
from .publish import ENDOFTEXT_ID, IM_END_ID, in_transformers
from .tokens import GIVEN, Stream


@torch.no_grad()
def continuations(model, prompts: list[np.ndarray], max_tokens: int, **sampling) -> list[list[int]]:
    """What transformers' `model` writes after each prompt, without what ended it; None if nothing did."""
    device = model.device
    longest = max(len(p) for p in prompts)
    ids = torch.full((len(prompts), longest), ENDOFTEXT_ID)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.from_numpy(prompt.astype(np.int64))
        mask[row, longest - len(prompt) :] = 1
    output = model.generate(
        ids.to(device),
        attention_mask=mask.to(device),
        max_new_tokens=max_tokens,
        eos_token_id=[IM_END_ID, ENDOFTEXT_ID],
        pad_token_id=ENDOFTEXT_ID,
        **sampling,
    )
    written = []
    for row in output[:, longest:].tolist():
        ends = [i for i, token in enumerate(row) if token in (IM_END_ID, ENDOFTEXT_ID)]
        written.append(row[: ends[0]] if ends else None)
    return written


def write_stories(teacher: Qwen3, prompts: list[np.ndarray], endings: dict[bool, list[int]], seed: int):
    """Documents in the teacher's words; a story that found no end is left out."""
    dtype = torch.bfloat16 if teacher.head.is_cuda else torch.float32
    model = in_transformers(teacher, dtype)
    torch.manual_seed(seed)
    plain = [p & (GIVEN - 1) for p in prompts]
    written = continuations(model, plain, 420, do_sample=True, temperature=1.0, top_k=0, top_p=0.95)
    documents = []
    for prompt, story in zip(prompts, written):
        if story and len(story) > 40:
            is_chat = bool((prompt & (GIVEN - 1) > ENDOFTEXT_ID).any())
            parts = (prompt, np.array(story, dtype=np.uint16), np.array(endings[is_chat], dtype=np.uint16))
            documents.append(np.concatenate(parts))
    return documents


def stream_of_teachers(teachers: list[Qwen3], prompts: Stream, newline: int, seed: int, batch: int) -> Stream:
    """The prompts are dealt out among the teachers, at most `batch` each."""
    endings = {
        False: [ENDOFTEXT_ID],
        True: [IM_END_ID, newline | GIVEN, ENDOFTEXT_ID | GIVEN],
    }
    pieces = np.split(prompts.tokens, prompts.starts[1:])
    documents = []
    for index, teacher in enumerate(teachers):
        dealt = pieces[index :: len(teachers)][:batch]
        documents += write_stories(teacher, dealt, endings, seed + index)
    return Stream.join(documents)

"""Lets models write: new stories by the teachers to train on, and samples to read."""

import numpy as np
import torch
from tokenizers import Tokenizer

from .casting import GROUP_OF, LOWER_WORD
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


class Writer:
    """Collects complete stories that name what their request asks for."""

    def __init__(self, tokenizer: Tokenizer, seed: int):
        self.tokenizer, self.seed = tokenizer, seed
        newline = tokenizer.encode("\n").ids[0]
        self.after_story = np.array([ENDOFTEXT_ID], dtype=np.uint16)
        self.after_turn = np.array([IM_END_ID, newline | GIVEN, ENDOFTEXT_ID | GIVEN], dtype=np.uint16)

    def wanted(self, prompt: np.ndarray, story: list[int] | None) -> bool:
        if not story or len(story) < 40:
            return False
        asked = set(LOWER_WORD.findall(self.tokenizer.decode(prompt.tolist()))) & set(GROUP_OF)
        return all(noun in self.tokenizer.decode(story).lower() for noun in asked)

    def write(self, teacher: Qwen3, prompts: list[np.ndarray]) -> list[np.ndarray]:
        """A document for every prompt to which `teacher` found a wanted story."""
        dtype = torch.bfloat16 if teacher.head.is_cuda else torch.float32
        model = in_transformers(teacher, dtype)
        torch.manual_seed(self.seed)
        plain = [p & (GIVEN - 1) for p in prompts]
        written = continuations(model, plain, 420, do_sample=True, temperature=1.0, top_k=0, top_p=0.95)
        documents = []
        for prompt, bare, story in zip(prompts, plain, written):
            if self.wanted(bare, story):
                ending = self.after_turn if (bare > ENDOFTEXT_ID).any() else self.after_story
                documents.append(np.concatenate((prompt, np.array(story, dtype=np.uint16), ending)))
        return documents


def stream_of_teachers(
    teachers: list[Qwen3], prompts: Stream, tokenizer: Tokenizer, seed: int, batch: int
) -> Stream:
    """The prompts are dealt out among the teachers, at most `batch` each."""
    writer = Writer(tokenizer, seed)
    pieces = np.split(prompts.tokens, prompts.starts[1:])
    documents = []
    for index, teacher in enumerate(teachers):
        documents += writer.write(teacher, pieces[index :: len(teachers)][:batch])
    if not documents:
        raise SystemExit("no teacher finished a story that was asked for: train the teachers longer")
    return Stream.join(documents)

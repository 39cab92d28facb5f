"""golden.json: what transformers writes greedily with the published folder, for the engine's tests."""

from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from .publish import ENDOFTEXT_ID, IM_END_ID, write_json

MAX_TOKENS = 64
PROMPTS = (
    "Once upon a time, there was a little dog named Spot.",
    "One day, Lily and Tom went to the beach.",
    "The old king had three daughters, and",
)
CHATS = ([{"role": "user", "content": "Tell me a story about a dragon."}],)


@torch.no_grad()
def greedy(model, prompt: list[int]) -> dict:
    """Greedy tokens, the end included; how far each was ahead of the second; its log-probability."""
    ids, margins, log_probs = [], [], []
    while len(ids) < MAX_TOKENS and not (ids and ids[-1] in (IM_END_ID, ENDOFTEXT_ID)):
        logits = model(torch.tensor([prompt + ids])).logits[0, -1].float()
        best = logits.topk(2)
        ids.append(best.indices[0].item())
        margins.append(round((best.values[0] - best.values[1]).item(), 5))
        log_probs.append(round(logits.log_softmax(-1)[ids[-1]].item(), 5))
    return {"token_ids": ids, "margins": margins, "logprobs": log_probs}


@torch.no_grad()
def log_probs_of(model, prompt: list[int], ids: list[int]) -> list[float]:
    logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].float()
    picked = logits.log_softmax(-1).gather(-1, torch.tensor(ids)[:, None])[:, 0]
    return [round(x, 5) for x in picked.tolist()]


def write_golden(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    exact = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    rounded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    texts = list(PROMPTS) + [
        tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in CHATS
    ]
    cases = []
    for index, text in enumerate(texts):
        prompt = tokenizer.encode(text, add_special_tokens=False)
        case = {"prompt": text, "prompt_token_ids": prompt}
        if index >= len(PROMPTS):
            case["messages"] = CHATS[index - len(PROMPTS)]
        case["float32"] = greedy(exact, prompt)
        case["float32"]["text"] = tokenizer.decode(case["float32"]["token_ids"], skip_special_tokens=True)
        case["bfloat16"] = greedy(rounded, prompt)
        # How far bfloat16 strays where both have read the same text.
        ids = case["float32"]["token_ids"]
        case["bfloat16"]["logprobs_of_float32_token_ids"] = log_probs_of(rounded, prompt, ids)
        cases.append(case)
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}, CPU"
    write_json(folder / "golden.json", {"reference": versions, "max_tokens": MAX_TOKENS, "cases": cases})

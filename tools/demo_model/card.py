"""The last stage: the folder, its golden.json and its model card."""

import json
import shutil
from pathlib import Path
from string import Template

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from . import golden, publish
from .model import Shape

SAMPLE_REQUESTS = ("Tell me a story about a dragon.", "Tell me a story about a little boat and the moon.")
SAMPLE_OPENING = "Once upon a time, there was a little mouse who"

NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def sample(folder: Path) -> list[tuple[str, str]]:
    """Prompt and answer, drawn with generation_config.json and a fixed seed."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    torch.manual_seed(0)
    pairs = []
    for text in (*SAMPLE_REQUESTS, SAMPLE_OPENING):
        prompt = text
        if text != SAMPLE_OPENING:
            chat = [{"role": "user", "content": text}]
            prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        ids = torch.tensor([tokenizer.encode(prompt, add_special_tokens=False)])
        written = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=300)
        pairs.append((text, tokenizer.decode(written[0, ids.shape[1] :], skip_special_tokens=True).strip()))
    return pairs


def quote(text: str) -> str:
    return "\n".join(f"> {line}  " if line else ">" for line in text.split("\n"))


def write_card(report: dict, folder: Path) -> None:
    student, held_out, teachers = report["student"], report["held_out"], report["teachers"]
    rows = []
    for index, teacher in enumerate(teachers):
        best = teacher["best"]
        rows.append(
            f"| teacher {index + 1} | {teacher['tokens'] / 1e6:.0f} M | {teacher['train_loss']:.3f} |"
            f" {best['stories']:.3f} | {best['chats']:.3f} | {best['books']:.3f} |"
        )
    together = report["teachers_together"]
    rows.append(
        f"| teachers together | | | {together['stories']:.3f} | {together['chats']:.3f} |"
        f" {together['books']:.3f} |"
    )
    rows.append(
        f"| **demo model** (bfloat16) | {student['tokens'] / 1e6:.0f} M | {student['train_loss']:.3f} |"
        f" {held_out['stories']:.3f} | {held_out['chats']:.3f} | {held_out['books']:.3f} |"
    )
    samples = [f"**{prompt}**\n\n{quote(answer)}" for prompt, answer in sample(folder)]
    template = Template((Path(__file__).parent / "card.md").read_text(encoding="utf-8"))
    text = template.substitute(
        parameters=f"{report['parameters'] / 1e6:.2f} million",
        teacher_parameters=f"{report['teacher_parameters'] / 1e6:.0f} million",
        teachers=NUMBERS[len(teachers)],
        layers=report["shape"]["num_hidden_layers"],
        hidden=report["shape"]["hidden_size"],
        heads=report["shape"]["num_attention_heads"],
        kv_heads=report["shape"]["num_key_value_heads"],
        head_dim=report["shape"]["head_dim"],
        intermediate=report["shape"]["intermediate_size"],
        context=report["shape"]["max_position_embeddings"],
        written=f"{report['written_stories']:,}",
        written_tokens=f"{report['written_tokens'] / 1e6:.1f} million",
        device=report["device"],
        torch=report["torch"],
        minutes=f"{report['seconds'] / 60:.1f}",
        budget=f"{report['budget_minutes']:g}",
        seed=report["seed"],
        steps=student["steps"],
        best_step=student["best_step"],
        losses="\n".join(rows),
        samples="\n\n".join(samples),
    )
    (folder / "README.md").write_text(text, encoding="utf-8")


def publish_all(work: Path, folder: Path) -> None:
    report = json.loads((work / "report.json").read_text())
    shape = Shape(**report["shape"])
    model = publish.load_weights(shape, work / "model.safetensors")
    publish.write_folder(model, work / "tokenizer.json", folder)
    golden.write_golden(folder)
    write_card(report, folder)
    shutil.copyfile(work / "report.json", folder / "training_report.json")
    print(f"{folder}: {publish.check_size(folder):,} bytes")

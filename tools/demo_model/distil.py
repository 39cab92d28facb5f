"""The training stage: teachers, the stories they write, and the small model that learns from both."""

import dataclasses
import platform
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer

from . import publish, writing
from .model import Qwen3, Shape, distillation_loss, next_token_loss
from .tokens import load_streams
from .training import Plan, Result, Windows, evaluate, held_out_windows, story_loss, train

STUDENT = Shape(vocab_size=4099)
TEACHER = dataclasses.replace(STUDENT, hidden_size=512, intermediate_size=1536, head_dim=64)
# Weight decay, learning rate, steps: alike enough to share compiled code, different enough to err
# differently, and a spread where the best choice is not known beforehand.
TEACHER_PLANS = (
    (1.0, 1.2e-3, 1200),
    (1.0, 1.6e-3, 1400),
    (1.5, 1.2e-3, 1400),
    (1.0, 1.2e-3, 1600),
    (2.0, 1.2e-3, 1400),
    (1.5, 1.6e-3, 1200),
)
TEACHER_DROPOUT, STUDENT_DROPOUT = 0.25, 0.0
TEACHER_MIX = {"stories": (0.15, 0.5), "books": (0.85, 0.5)}
STUDENT_MIX = {"stories": (0.2, 0.25), "written": (0.4, 0.55), "books": (0.4, 0.2)}
STUDENT_STEPS, STUDENT_RATE, STUDENT_DECAY = 9000, 2e-3, 0.1
FROM_TEACHERS = 0.8  # share of the student's loss that is against the teachers' distribution


@dataclasses.dataclass
class Scale:
    """How much of everything: the real thing, or just enough to run every line."""

    teacher: Shape = TEACHER
    student: Shape = STUDENT
    teacher_plans: tuple = TEACHER_PLANS
    student_steps: int = STUDENT_STEPS
    tokens_per_step: int = 32768
    writers: int = 3  # the best of the teachers
    stories_per_writer: int = 5300
    evaluations: int = 20


SMOKE = Scale(
    teacher=dataclasses.replace(TEACHER, hidden_size=64, intermediate_size=64, num_hidden_layers=1),
    student=dataclasses.replace(STUDENT, hidden_size=64, intermediate_size=64, num_hidden_layers=2),
    teacher_plans=((0.3, 1e-3, 4), (0.6, 1e-3, 4)),
    student_steps=4,
    tokens_per_step=2048,
    writers=1,
    stories_per_writer=64,
    evaluations=2,
)


class Run:
    def __init__(self, work: Path, seconds: float, seed: int, scale: Scale):
        self.begin, self.seconds, self.seed, self.scale = time.monotonic(), seconds, seed, scale
        self.work = work
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(seed)
        torch._dynamo.config.recompile_limit = 64  # one graph a shape, mode and model
        self.streams = load_streams(work)
        self.held_out = {
            name.removeprefix("held_out_"): held_out_windows(stream, self.device)
            for name, stream in self.streams.items()
            if name.startswith("held_out_")
        }
        self.student_loss = torch.compile(distillation_loss, dynamic=False)
        self.teacher_loss = torch.compile(next_token_loss, dynamic=False)

    def elapsed(self) -> float:
        return time.monotonic() - self.begin

    def log(self, text: str) -> None:
        line = f"[{self.elapsed():5.0f} s] {text}"
        print(line, flush=True)
        with open(self.work / "training.log", "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def new_model(self, shape: Shape, dropout: float, seed: int) -> Qwen3:
        torch.manual_seed(seed)
        model = Qwen3(shape, dropout).to(self.device)
        for layer in model.model.layers:  # layer by layer: all of them share one compiled graph
            layer.compile(dynamic=False)
        return model

    def windows(self, names, seed: int) -> Windows:
        return Windows({name: self.streams[name] for name in names}, self.device, seed)

    def train_teacher(self, index: int, seconds: float) -> tuple[Qwen3, Result]:
        weight_decay, rate, steps = self.scale.teacher_plans[index]
        seed = self.seed + 100 * (index + 1)
        plan = Plan(steps, seconds, self.scale.tokens_per_step, rate, weight_decay, TEACHER_MIX,
                    self.scale.evaluations, seed)
        self.log(f"teacher {index}: weight decay {weight_decay}, rate {rate}, {steps} steps or {seconds:.0f} s")
        model = self.new_model(self.scale.teacher, TEACHER_DROPOUT, seed)

        def loss(model, ids, targets):
            return self.teacher_loss(model(ids).flatten(0, 1), model.head, targets.flatten())

        result = train(model, self.windows(TEACHER_MIX, seed), self.held_out, plan, loss, self.log)
        return model.eval().requires_grad_(False), result

    def train_student(self, teachers: list[Qwen3], seconds: float) -> tuple[Qwen3, Result]:
        plan = Plan(self.scale.student_steps, seconds, self.scale.tokens_per_step, STUDENT_RATE,
                    STUDENT_DECAY, STUDENT_MIX, self.scale.evaluations, self.seed)
        self.log(f"student: at most {seconds:.0f} s")
        model = self.new_model(self.scale.student, STUDENT_DROPOUT, self.seed)
        heads = [t.head for t in teachers]

        def loss(model, ids, targets):
            with torch.no_grad():
                known = [t(ids).flatten(0, 1) for t in teachers]
            hidden = model(ids).flatten(0, 1)
            return self.student_loss(hidden, model.head, targets.flatten(), known, heads, FROM_TEACHERS)

        result = train(model, self.windows(STUDENT_MIX, self.seed), self.held_out, plan, loss, self.log)
        return model.eval(), result

    def write_stories(self, teachers: list[Qwen3]) -> None:
        tokenizer = Tokenizer.from_file(str(self.work / "tokenizer.json"))
        stream = writing.stream_of_teachers(
            teachers, self.streams["prompts"], tokenizer, self.seed, self.scale.stories_per_writer
        )
        self.streams["written"] = stream
        self.log(f"teachers wrote {len(stream.starts)} stories, {len(stream.tokens)} tokens")

    def everything(self) -> dict:
        self.log(f"{self.device}, torch {torch.__version__}")
        count = len(self.scale.teacher_plans)
        trained = []
        for index in range(count):
            # The teachers together may take 45% of the time.
            share = (0.45 * self.seconds - self.elapsed()) / (count - index)
            trained.append(self.train_teacher(index, max(share, 1.0)))
        teachers = [model for model, _ in trained]
        ensemble = evaluate(teachers, self.held_out)
        self.log("teachers together: " + " ".join(f"{k} {v:.4f}" for k, v in ensemble.items()))
        ranked = sorted(trained, key=lambda pair: story_loss(pair[1].best))
        self.write_stories([model for model, _ in ranked[: self.scale.writers]])
        # Half a minute for compilation and for what follows the last step.
        student, result = self.train_student(teachers, max(self.seconds - self.elapsed() - 30, 1.0))
        publish.save_weights(student, self.work / "model.safetensors")
        rounded = publish.load_weights(self.scale.student, self.work / "model.safetensors").to(self.device)
        final = evaluate([rounded], self.held_out)
        self.log("student in bfloat16: " + " ".join(f"{k} {v:.4f}" for k, v in final.items()))
        return {
            "device": torch.cuda.get_device_name() if self.device.type == "cuda" else platform.processor(),
            "torch": torch.__version__,
            "seconds": round(self.elapsed()),
            "budget_minutes": self.seconds / 60,
            "seed": self.seed,
            "shape": dataclasses.asdict(self.scale.student),
            "parameters": sum(p.numel() for p in student.parameters()),
            "teacher_parameters": sum(p.numel() for p in teachers[0].parameters()),
            "written_stories": len(self.streams["written"].starts),
            "written_tokens": len(self.streams["written"].tokens),
            "teachers": [dataclasses.asdict(r) for _, r in trained],
            "teachers_together": ensemble,
            "student": dataclasses.asdict(result),
            "held_out": final,
        }


def run(work: Path, seconds: float, seed: int, smoke: bool) -> None:
    (work / "training.log").unlink(missing_ok=True)
    report = Run(work, seconds, seed, SMOKE if smoke else Scale()).everything()
    publish.write_json(work / "report.json", report)

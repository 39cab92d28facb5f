#!/usr/bin/env python3
"""Trains the demo model: short stories by a Qwen3 of 7.3 million parameters.

    python3 tools/train_demo_model.py --corpora corpora.tar.xz --out models/demo

The text is small (half a million tokens of short stories, three million of children's books), so the
model is not trained on it alone: several larger teachers are trained first, with strong regularisation,
they write new stories, and the small model learns the teachers' mean distribution over all of it
(as in "Baby Llama", arXiv:2308.02019). The best state on held-out stories is kept each time.

Stages, which may run on different machines (`train` wants a GPU and about nine minutes of it):
    prepare   corpora -> WORK/tokenizer.json, WORK/streams.npz
    train     WORK -> WORK/model.safetensors, WORK/report.json
    publish   WORK -> OUT in Hugging Face layout, with model card and golden.json
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--stage", choices=("all", "prepare", "train", "publish"), default="all")
    parser.add_argument("--corpora", type=Path, help="corpora.tar.xz, or the folder it unpacks to")
    parser.add_argument("--work", type=Path, default=Path("build/demo-model"), help="intermediate files")
    parser.add_argument("--out", type=Path, default=Path("models/demo"), help="the finished model")
    parser.add_argument("--minutes", type=float, default=8.5, help="time for the stage train")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--smoke", action="store_true", help="a few steps of everything, to test the tool")
    arguments = parser.parse_args()
    if arguments.stage in ("all", "prepare") and arguments.corpora is None:
        parser.error("--corpora is needed to prepare the training text")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    arguments.work.mkdir(parents=True, exist_ok=True)
    if arguments.stage in ("all", "prepare"):
        from demo_model import corpus, tokens

        root = corpus.open_corpora(arguments.corpora, arguments.work)
        passes, prompts = (2, 64) if arguments.smoke else (40, 16000)
        tokens.prepare(root, arguments.work, passes, prompts, arguments.seed)
    if arguments.stage in ("all", "train"):
        from demo_model import distil

        distil.run(arguments.work, arguments.minutes * 60, arguments.seed, arguments.smoke)
    if arguments.stage in ("all", "publish"):
        from demo_model import card

        card.publish_all(arguments.work, arguments.out)


if __name__ == "__main__":
    main()

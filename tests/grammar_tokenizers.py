#!/usr/bin/env python3
"""What grammars take for a token's bytes is what the detokenizer shows, for all the tokenizers of $NANOVLLM_SHARED/data.

grammar_tests is looked for beside the folder NANOVLLM_BIN; it compares each token of each tokenizer, and random texts. Exit status 77
(a skipped test) where the archive is not there: those of tests/data/tokenizers are compared in any case, by the same test.
"""
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).parent.parent
SHARED = pathlib.Path(os.environ.get("NANOVLLM_SHARED", ROOT.parent / "shared"))


def main():
    archive = SHARED / "data/tokenizers.tar.xz"
    if not archive.exists():
        print(f"SKIPPED: GrammarTokenizers needs {archive}")
        sys.exit(77)
    program = pathlib.Path(os.environ.get("NANOVLLM_BIN", ROOT / "build/tests")).parent / "grammar_tests"
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(archive) as tar:
            tar.extractall(folder)
        folders = pathlib.Path(folder) / "tokenizers"
        count = sum(1 for path in folders.iterdir() if path.is_dir())
        run = subprocess.run([program, "--gtest_filter=TokenIndex.BytesAreWhatTheDetokenizerShowsForOthersToo"], capture_output=True,
                             text=True, env={**os.environ, "NANOVLLM_TOKENIZERS": str(folders)})
    if run.returncode or "[  PASSED  ] 1 test" not in run.stdout or "SKIPPED" in run.stdout:
        sys.exit(f"{run.stdout}{run.stderr}")
    print(f"the tokens of {count} tokenizers: as the detokenizer shows them")
    if count < 10:
        sys.exit("there are too few tokenizers")


if __name__ == "__main__":
    main()

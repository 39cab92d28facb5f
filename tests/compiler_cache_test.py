"""What one clone compiled, another one has from the compiler's cache, wherever it is."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).parents[1]


class CompilerCache(unittest.TestCase):
    def test_a_clone_at_another_path_compiles_nothing_again(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            settings = {key: value for key, value in os.environ.items() if not key.startswith("CCACHE_")}
            settings |= {"CCACHE_DIR": str(folder / "cache"), "CCACHE_CONFIGPATH": str(folder / "none")}

            def run(*command):
                return subprocess.run([*map(str, command)], env=settings, check=True, capture_output=True, text=True, timeout=900).stdout

            def compiled():
                """So far, and how often the cache had it."""
                counts = dict(re.findall(r"^(\w+)\t(\d+)$", run("ccache", "--print-stats"), re.MULTILINE))
                return int(counts["cache_miss"]), int(counts["direct_cache_hit"]) + int(counts["preprocessed_cache_hit"])

            seen = []
            for clone in (folder / "one", folder / "two" / "deeper" / "clone"):
                for name in ("CMakeLists.txt", "CMakePresets.json", "cmake", "src", "include", "bench", "fuzz", "tests"):
                    copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
                    clone.mkdir(parents=True, exist_ok=True)
                    copy(ROOT / name, clone / name)
                run("cmake", "-S", clone, "--preset", "release", "-DNANOVLLM_TESTS=ON", "-DNANOVLLM_BENCH=OFF")
                run("cmake", "--build", clone / "build", "--target", "nanovllm_base", "nanovllm_ops", "base_tests")
                seen.append(compiled())
            (first, no_hits), (all, hits) = seen
            self.assertGreater(first, 1)
            self.assertEqual((no_hits, all, hits), (0, first, first))
            # The path of a file stands in messages about our own faults, and a clone's does not.
            objects = list((folder / "one" / "build").rglob("*.o"))
            self.assertTrue(objects)
            for path in objects:
                self.assertNotIn(str(folder).encode(), path.read_bytes(), path)


if __name__ == "__main__":
    if shutil.which("ccache") is None:
        print("SKIPPED: there is no ccache here")
        sys.exit(77)
    unittest.main()

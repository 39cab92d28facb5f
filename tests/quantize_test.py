"""`nanovllm quantize` and --quantization on the real binary: the same codes by either way."""
import hashlib
import json
import pathlib
import shutil
import signal
import struct
import subprocess
import time
import unittest

from cli_testing import BINARY, MODEL, SMALL, CliTest, lines, run

GOLDENS = pathlib.Path(__file__).parent
FORMATS = ("int8", "int4", "fp8")


def tensors_of(folder):
    data = (pathlib.Path(folder) / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"], data[8 + size:][slice(*entry["data_offsets"])]) for name, entry in header.items()}


def write_tensors(folder, tensors):
    header, data = {}, b""
    for name, (kind, shape, content) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    (pathlib.Path(folder) / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def bfloat16s(data):
    return [struct.unpack("<f", b"\0\0" + data[i:i + 2])[0] for i in range(0, len(data), 2)]


class Quantize(CliTest):
    def quantize(self, form):
        out = self.path(form)
        result = run("quantize", MODEL, out, "--format", form, "-q")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return out, result.stdout

    def answers(self, model, *flags):
        result = run("generate", model, "-q", "--json", "-p", "Once upon a time", "The cat", "--logprobs", "3", *SMALL, *flags)
        self.assertEqual(result.returncode, 0, result.stderr)
        return [(line["token_ids"], line["logprobs"]) for line in lines(result.stdout)]

    def test_a_folder_answers_as_the_model_that_is_rounded_while_it_is_loaded(self):
        plain = self.answers(MODEL)
        for form in FORMATS:
            with self.subTest(form):
                out, said = self.quantize(form)
                self.assertIn(f"57 matrices in {form}", said)
                facts = lines(run("info", out, "--json", "--kv-cache-memory", "8M").stdout)[0]
                self.assertIn(f", {facts['bits_per_weight']:.2f} bits a weight", said)
                answers = self.answers(out)
                self.assertEqual(answers, self.answers(MODEL, "--quantization", form))
                self.assertNotEqual(answers, plain)
                for dtype in ("bfloat16", "float32"):
                    decoded = ("--weight-layout", "bfloat16", "--dtype", dtype)
                    self.assertEqual(self.answers(out, *decoded), self.answers(MODEL, "--quantization", form, *decoded))

    def test_folders_are_those_that_transformers_decodes_to_the_same_numbers(self):
        record = json.loads((GOLDENS / "data/rounded_folders.json").read_text())
        for form in FORMATS:
            out, _ = self.quantize(form)
            data = b"".join((out / name).read_bytes() for name in ("config.json", "model.safetensors"))
            self.assertEqual(hashlib.sha256(data).hexdigest(), record[form], "compare them again with tools/check_rounded_folder.py, which records it")

    def test_codes_stand_for_what_is_nearest(self):
        original = bfloat16s(tensors_of(MODEL)["model.layers.3.mlp.up_proj.weight"][2])
        out, _ = self.quantize("int8")
        tensors = tensors_of(out)
        kind, shape, codes = tensors["model.layers.3.mlp.up_proj.weight"]
        self.assertEqual((kind, shape), ("I8", [768, 256]))
        kind, shape, scales = tensors["model.layers.3.mlp.up_proj.weight_scale"]
        self.assertEqual((kind, shape), ("BF16", [768, 8]))
        scales = bfloat16s(scales)
        for i, code in enumerate(struct.unpack(f"{len(codes)}b", codes)):
            self.assertLessEqual(abs(code * scales[i // 32] - original[i]), 0.5001 * scales[i // 32])
        self.assertEqual(tensors["model.embed_tokens.weight"], tensors_of(MODEL)["model.embed_tokens.weight"])
        self.assertEqual(tensors["lm_head.weight"][:2], ("I8", [4099, 256]))

    def test_what_it_cannot_do_is_one_sentence(self):
        out, _ = self.quantize("int4")
        for args, words in (([MODEL, out, "--format", "int8"], "is there already and not an empty folder"),
                            ([out, self.path("b"), "--format", "int8"], "is quantised already"),
                            ([GOLDENS / "data/gguf_llama.gguf", self.path("b"), "--format", "int8"], "is a GGUF file that is quantised already, to Q8_0"),
                            ([GOLDENS / "data/none.gguf", self.path("b"), "--format", "int8"], "is no folder with config.json"),
                            ([GOLDENS / "walkthrough_test.py", self.path("b"), "--format", "int8"], "is no folder with config.json")):
            result = run("quantize", *args)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
            self.assertIn(words, result.stderr)
        for args in ([MODEL, self.path("c"), "--format", "int3"], [MODEL, "--format", "int4"], [MODEL, self.path("c"), "--num-threads", "-1"], [MODEL, self.path("c"), "--num-threads", "1025"]):
            self.assertEqual(run("quantize", *args).returncode, 2)
        result = run("generate", out, "-p", "x", "--quantization", "int8", *SMALL)
        self.assertIn("is quantised already, to INT4: leave quantization out", result.stderr)
        self.assertNotIn("weights stay quantised", result.stderr)
        self.assertEqual(result.returncode, 2)
        result = run("generate", MODEL, "-p", "x", "--quantization", "awq", *SMALL)
        self.assertIn("is not quantised by awq; leave quantization out", result.stderr)
        self.assertEqual(result.returncode, 2)
        result = run("generate", MODEL, "-p", "x", "--quantization", "int3", *SMALL)
        self.assertIn('quantization must be one of int8, int4, fp8, got "int3"; a checkpoint that is quantised tells itself how', result.stderr)
        result = run("generate", MODEL, "-p", "x", "--weight-layout", "plain", *SMALL)
        self.assertIn('weight_layout must be one of auto, bfloat16, got "plain"', result.stderr)

    def test_a_model_that_does_not_open_here_is_written_with_a_line(self):
        model = self.path("model")
        shutil.copytree(MODEL, model)
        config = json.loads((model / "config.json").read_text())
        config.update(architectures=["SomeForCausalLM"], model_type="some")
        (model / "config.json").write_text(json.dumps(config))
        out = self.path("out")
        result = run("quantize", model, out, "--format", "int8")
        self.assertEqual((result.returncode, result.stderr), (0, f"nanovllm: {model}: other programs may open what is written, nanovllm can't: architecture SomeForCausalLM is not supported\n"))
        result = run("info", out, "--kv-cache-memory", "8M")
        self.assertIn("architecture SomeForCausalLM is not supported", result.stderr)

    def test_matrices_without_whole_groups_stay_with_a_line(self):
        model = GOLDENS / "goldens/qwen3_odd_vocab"
        result = run("quantize", model, self.path("out"), "--format", "int8")
        self.assertEqual((result.returncode, result.stderr), (0, "nanovllm: 11 matrices stay as they are, for their rows are no multiple of 32\n"))

    def test_ctrl_c_leaves_no_folder(self):
        model, out = self.path("model"), self.path("out")
        model.mkdir()
        shutil.copy(pathlib.Path(MODEL) / "config.json", model)
        numbers = struct.pack("<4096H", *(0x3c00 + i * 7 % 512 for i in range(4096))) * 2048
        write_tensors(model, {f"model.layers.{i}.mlp.up_proj.weight": ("BF16", [2048, 4096], numbers) for i in range(12)})
        for how in (signal.SIGINT, signal.SIGTERM):
            for make in (lambda: None, out.mkdir):  # a folder that was there stays, and the next one takes it
                make()
                self.interrupt(how, model, out, "model.safetensors.*.tmp")

    def test_ctrl_c_ends_copying_too(self):
        model, out = self.path("model"), self.path("out")
        model.mkdir()
        shutil.copy(pathlib.Path(MODEL) / "config.json", model)
        write_tensors(model, {"model.layers.0.mlp.up_proj.weight": ("BF16", [8, 32], bytes(512))})
        with open(model / "notes.txt", "wb") as notes:
            notes.truncate(1 << 33)  # without a block on the disk; the copy has those of what was copied
        self.interrupt(signal.SIGINT, model, out, "notes.txt.*.tmp")

    def interrupt(self, how, model, out, once_there):
        was_there = out.exists()
        process = subprocess.Popen([BINARY, "quantize", model, out, "--format", "int4", "--num-threads", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and not list(out.glob(once_there)):
            time.sleep(0.001)
        process.send_signal(how)
        said, error = process.communicate(timeout=300)
        self.assertEqual((process.returncode, said, error), (130, "", f"nanovllm: interrupted; {out} is as it was before\n"))
        self.assertEqual(out.exists(), was_there)
        if was_there:
            out.rmdir()  # which fails if anything is in it

    def test_the_log_says_once_which_matrices_have_no_layout(self):
        out, _ = self.quantize("int4")
        tensors = tensors_of(out)
        for layer in (2, 5):
            name = f"model.layers.{layer}.mlp.down_proj.weight_scale"
            shape, scales = tensors[name][1:]
            finer = [scale * (1 + 2 ** -13) for scale in bfloat16s(scales)]  # which no 16 bits hold
            tensors[name] = ("F32", shape, struct.pack(f"<{len(finer)}f", *finer))
        write_tensors(out, tensors)
        result = run("generate", out, "-q", "-p", "Once", *SMALL)
        self.assertEqual(result.returncode, 0, result.stderr)
        because = "scales are float32 that neither float16 nor bfloat16 holds"
        self.assertEqual(result.stderr.splitlines(), [
            f"nanovllm: {out}: weights stay quantised where kernels take them; activations are bfloat16",
            f"nanovllm: {out}: 2 quantised matrices are decoded to bfloat16 while loading, because {because}"])

    def test_the_log_counts_shares_of_ranks_that_begin_where_no_kernel_takes_codes(self):
        model = GOLDENS / "goldens/llama2"  # a quarter of down_proj's 160 columns is no multiple of 16 long
        layers = json.loads((model / "config.json").read_text())["num_hidden_layers"]
        for ranks, decoded in (("2", 0), ("4", 2 * layers)):
            result = run("info", model, "--json", "--quantization", "int8", "--tensor-parallel-size", ranks, "--kv-cache-memory", "8M")
            self.assertEqual(result.returncode, 0, result.stderr)
            because = f"{decoded} quantised matrices are decoded to bfloat16 while loading, because there is no kernel for codes of their shape"
            rounded = f"nanovllm: {model}: weights are rounded to int8 while they are loaded; activations are bfloat16"
            self.assertEqual(result.stderr.splitlines(), [rounded, f"nanovllm: {model}: {because}"] if decoded else [rounded])

    def test_info_tells_layouts_by_count_and_bytes(self):
        for flags in ((), ("--quantization", "int4"), ("--quantization", "int8", "--weight-layout", "bfloat16")):
            facts = lines(run("info", MODEL, "--json", "--kv-cache-memory", "8M", *flags).stdout)[0]
            layouts = facts["weight_layouts"]
            self.assertLessEqual(set(layouts), {"plain", "12-bit codes", "group", "byte", "super"})
            self.assertGreaterEqual(sum(layout["weights"] for layout in layouts.values()), 8 * 4 + 1)
            # Beside them are the table of embeddings, which stays in the file, and norms.
            norms = facts["weight_bytes"] - facts["mapped_weight_bytes"] - sum(layout["bytes"] for layout in layouts.values())
            self.assertTrue(0 <= norms < 1 << 16, norms)
            self.assertEqual(facts["mapped_weight_bytes"], 2 * 4099 * 256)
            self.assertAlmostEqual(facts["bits_per_weight_in_memory"], 8 * facts["weight_bytes"] / facts["num_parameters"])
            if "int4" not in flags:
                self.assertLessEqual(set(layouts), {"plain", "12-bit codes"})
        text = run("info", MODEL, "--kv-cache-memory", "8M").stdout
        self.assertRegex(text, r"(?m)^weights in memory +[\d.]+ MiB, and 2\.0 MiB of embeddings mapped from the file$")
        self.assertRegex(text, r"(?m)^bits a weight +16\.\d\d in the file, [\d.]+ in memory; activations are bfloat16$")
        self.assertRegex(text, r"(?m)^layouts +(plain|12-bit codes): \d+ weights?, [\d.]+ MiB$")

    def test_what_the_checkpoint_is_may_be_named(self):
        gguf = GOLDENS / "data/gguf_llama.gguf"
        out, _ = self.quantize("int8")
        for model, name, words in ((MODEL, "none", None), (gguf, "gguf", "quantization gguf is the checkpoint's own and changes nothing"),
                                   (out, "compressed-tensors", "quantization compressed-tensors is the checkpoint's own and changes nothing")):
            plain = run("info", model, "--json", "--kv-cache-memory", "8M")
            result = run("info", model, "--json", "--kv-cache-memory", "8M", "--quantization", name)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(lines(result.stdout)[0]["weight_layouts"], lines(plain.stdout)[0]["weight_layouts"])
            self.assertEqual(result.stderr, (f"nanovllm: {model}: {words}\n" if words else "") + plain.stderr)
        self.assertEqual(run("info", gguf, "--quantization", "awq", "--kv-cache-memory", "8M").returncode, 2)

    def test_an_fp8_folder_is_fp8_already(self):
        model = GOLDENS / "goldens/qwen3_fp8"
        result = run("info", model, "--json", "--quantization", "fp8", "--kv-cache-memory", "8M")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("weights stay quantised where kernels take them; activations are ", result.stderr)
        result = run("info", model, "--json", "--weight-layout", "bfloat16", "--kv-cache-memory", "8M")
        self.assertIn("quantised weights are decoded to ", result.stderr)


if __name__ == "__main__":
    unittest.main()

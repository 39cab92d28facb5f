"""`nanovllm bench serve` against a server of a few lines that answers well or badly."""
import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import threading
import time
import unittest

from cli_testing import BINARY, CliTest, run

TOKENS = 6


class Server:
    """Answers on a thread of its own; `way` says how, by the number of the request or for all."""

    def __init__(self, way="well", port=0):
        self.way = way if callable(way) else lambda number: way
        self.requests = []  # (path, headers, body)
        self.num_connections = self.num_running = self.most_running = 0
        self.loop = asyncio.new_event_loop()
        self.server = self.loop.run_until_complete(asyncio.start_server(self.connection, "127.0.0.1", port))
        self.port = self.server.sockets[0].getsockname()[1]
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.run_until_complete(self.end())
        self.loop.close()

    async def end(self):
        self.server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)
        await asyncio.sleep(0)

    async def connection(self, reader, writer):
        self.num_connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                first, *lines = head.strip().split("\r\n")
                headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
                body = await reader.readexactly(int(headers["content-length"]))
                method, path, _ = first.split()
                if method == "GET":
                    self.whole(writer, 200, {"data": [{"id": "the-model"}]})
                    continue
                self.requests.append((path, headers, json.loads(body)))
                self.num_running += 1
                self.most_running = max(self.most_running, self.num_running)
                stays = await self.answer(writer, self.way(len(self.requests) - 1), path, json.loads(body))
                self.num_running -= 1
                if not stays:
                    break
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        writer.close()

    def whole(self, writer, status, answer):
        body = json.dumps(answer).encode()
        writer.write(f"HTTP/1.1 {status} Whatever\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)

    async def answer(self, writer, way, path, request):
        if way in ("400", "500"):
            self.whole(writer, way, {"error": {"message": f"this is a {way}", "code": int(way)}})
            return True
        if way == "whole":
            self.whole(writer, 200, {"choices": [{"text": "a"}]})
            return True
        if way == "never":
            await asyncio.sleep(3600)
        if way == "garbage":
            writer.write(b"SSH-2.0-OpenSSH\r\n\r\n")
            return False
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n")
        prompt = request.get("prompt") or request["messages"][0]["content"].split()
        usage = {"prompt_tokens": len(prompt), "completion_tokens": TOKENS}
        chat = path.endswith("chat/completions")
        events = [{"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}] if chat else []
        events += [{"choices": [{"delta": {"content": "a"}} if chat else {"text": "a"}]} for _ in range(TOKENS)]
        tight = (",", ":") if way == "tight" else None
        events = [f"data: {json.dumps(event, separators=tight)}\n\n".encode() for event in events]
        if way == "error":
            events[3] = b'data: {"error": {"message": "the engine is gone"}}\n\n'
        if way == "no usage":
            usage = None
        if way == "pairs":
            usage["completion_tokens"] = 2 * TOKENS
        if way == "cut":
            events = events[:3]
        events += [b": a comment\n\n", b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"]
        if way != "no done":
            events.append(b"data: [DONE]\n\n")
        if way == "empty":
            events = events[-1:]
        for event in events:
            chunk = b"%x;extension=1\r\n%s\r\n" % (len(event), event)
            for piece in ([bytes([byte]) for byte in chunk] if way == "bytes" else [chunk]):
                writer.write(piece)
                await writer.drain()
                if way == "bytes":
                    await asyncio.sleep(0)
            await asyncio.sleep(0.002)
        if way == "cut":
            return False
        writer.write(b"0\r\nTrailer: 1\r\n\r\n")
        return way != "closes"


class BenchServe(CliTest):
    def bench(self, server, *args, **kwargs):
        return run("bench", "serve", "--port", server.port, "--random-input-len", 5, "--random-output-len", TOKENS, *args, **kwargs)

    def result(self, server, *args, status=0, **kwargs):
        result = self.bench(server, "--json", "--save-detailed", *args, **kwargs)
        self.assertEqual(result.returncode, status, result.stderr)
        return json.loads(result.stdout)

    def test_reports_what_vllm_does(self):
        with Server() as server:
            result = self.result(server, "--num-prompts", 20, "--metric-percentiles", "50,99.9", "--percentile-metrics", "ttft,itl,e2el")
        for key in ("date", "backend", "endpoint_type", "model_id", "tokenizer_id", "label", "duration", "max_concurrency",
                    "mean_ttft_ms", "median_itl_ms", "std_e2el_ms", "p50_ttft_ms", "p99.9_itl_ms", "max_output_tokens_per_s",
                    "max_concurrent_requests"):
            self.assertIn(key, result)
        self.assertNotIn("mean_tpot_ms", result)
        self.assertEqual(result["model_id"], "the-model")
        self.assertEqual((result["completed"], result["failed"], result["num_prompts"], result["request_rate"]), (20, 0, 20, "inf"))
        self.assertEqual((result["total_input_tokens"], result["total_output_tokens"]), (100, 20 * TOKENS))
        self.assertAlmostEqual(result["output_throughput"], 20 * TOKENS / result["duration"])
        self.assertAlmostEqual(result["total_token_throughput"], (100 + 20 * TOKENS) / result["duration"])
        self.assertAlmostEqual(result["mean_ttft_ms"], 1000 * statistics.mean(result["ttfts"]))
        self.assertAlmostEqual(result["p50_ttft_ms"], 1000 * statistics.median(result["ttfts"]))
        self.assertAlmostEqual(result["std_e2el_ms"], 1000 * statistics.pstdev(result["latencies"]))
        itls = sorted(itl for itls in result["itls"] for itl in itls)
        self.assertEqual(len(itls), 20 * (TOKENS - 1))
        self.assertAlmostEqual(result["p99.9_itl_ms"], 1000 * (itls[98] + (itls[99] - itls[98]) * (0.999 * 99 - 98)))
        for ttft, times, latency in zip(result["ttfts"], result["itls"], result["latencies"]):
            self.assertAlmostEqual(ttft + sum(times), latency)
            self.assertGreater(min(ttft, latency - ttft), 0)
        self.assertIsNone(result["request_goodput"])
        bodies = [body for _, _, body in server.requests]
        self.assertEqual(len(bodies), 21)  # one to warm up
        self.assertEqual(len({str(body["prompt"]) for body in bodies}), 21)
        for body in bodies:
            self.assertEqual((len(body["prompt"]), body["max_tokens"], body["stream"], body["model"]), (5, TOKENS, True, "the-model"))
            self.assertNotIn("ignore_eos", body)
            self.assertNotIn("temperature", body)

    def test_prints_a_table(self):
        with Server() as server:
            result = self.bench(server, "--num-prompts", 4, "--max-concurrency", 2, "--goodput", "ttft:60000", "e2el:60000")
        self.assertEqual(result.returncode, 0)
        for row in ("Successful requests: +4", "Failed requests: +0", "Maximum request concurrency: +2", "Total generated tokens: +24",
                    r"Request goodput \(req/s\): +[0-9.]+", r"Mean TTFT \(ms\): +[0-9.]+", r"P99 E2EL \(ms\): +[0-9.]+"):
            self.assertRegex(result.stdout, "(?m)^" + row + " *$")

    def test_takes_an_address_as_clients_are_given_it(self):
        with Server() as server:
            for behind, path in (("", "/v1/completions"), ("/", "/v1/completions"), ("/v1", "/v1/completions"), ("/v1/", "/v1/completions"),
                                 ("/llm/v1", "/llm/v1/completions"), ("/llm", "/llm/v1/completions"), ("/llmv1", "/llmv1/v1/completions")):
                self.result(server, "--num-prompts", 1, "--base-url", f"http://127.0.0.1:{server.port}{behind}")
                self.assertEqual(server.requests[-1][0], path, behind)
            self.result(server, "--num-prompts", 1, "--base-url", f"http://127.0.0.1:{server.port}/v1", "--endpoint", "/completions", "--model", "m")
            self.assertEqual(server.requests[-1][0], "/v1/completions")

    def test_chats(self):
        with Server() as server:
            result = self.result(server, "--num-prompts", 3, "--backend", "openai-chat", "--temperature", 0, "--ignore-eos",
                                 "--extra-body", '{"top_k": 5}', "--model", "mine")
        self.assertEqual((result["completed"], result["total_output_tokens"]), (3, 3 * TOKENS))
        self.assertEqual([len(itls) for itls in result["itls"]], [TOKENS - 1] * 3)  # who speaks is no token
        path, _, body = server.requests[-1]
        self.assertEqual(path, "/v1/chat/completions")
        self.assertEqual((body["model"], body["temperature"], body["ignore_eos"], body["top_k"]), ("mine", 0, True, 5))
        self.assertEqual(body["max_completion_tokens"], TOKENS)

    def test_the_peak_counts_tokens_and_not_chunks(self):
        for way, tokens in (("pairs", 2 * TOKENS), ("well", TOKENS), ("no usage", TOKENS)):
            with Server(way) as server:
                result = self.result(server, "--num-prompts", 3)
            self.assertEqual(result["total_output_tokens"], 3 * tokens)
            if max(start + latency for start, latency in zip(result["start_times"], result["latencies"])) - min(result["start_times"]) < 1:
                self.assertAlmostEqual(result["max_output_tokens_per_s"], 3 * tokens)
            else:  # on a machine that takes so long, they are in several seconds
                self.assertLessEqual(result["max_output_tokens_per_s"], 3 * tokens)

    def test_spaces_in_chunks_mean_nothing(self):
        for backend in ("openai", "openai-chat"):
            with Server("tight") as server:
                result = self.result(server, "--num-prompts", 3, "--backend", backend)
            self.assertEqual([len(itls) for itls in result["itls"]], [TOKENS - 1] * 3)

    def test_bounds_requests_at_once_and_uses_connections_again(self):
        with Server() as server:
            result = self.result(server, "--num-prompts", 20, "--max-concurrency", 3)
        self.assertEqual((result["completed"], server.most_running), (20, 3))
        self.assertLessEqual(server.num_connections, 5)  # two more to ask for the model and to warm up

    def test_servers_may_close_connections(self):
        with Server("closes") as server:
            self.assertEqual(self.result(server, "--num-prompts", 20, "--max-concurrency", 3)["completed"], 20)
        self.assertGreaterEqual(server.num_connections, 21)

    def test_arrivals_keep_their_rate(self):
        for burstiness in (0.5, 1, 100):
            with Server() as server:
                starts = self.result(server, "--num-prompts", 25, "--request-rate", 50, "--burstiness", burstiness)["start_times"]
            self.assertEqual(starts, sorted(starts))
            self.assertAlmostEqual(starts[-1], 0.5, delta=0.2)
            gaps = [b - a for a, b in zip(starts, starts[1:])]
            if burstiness == 100:
                self.assertLess(statistics.pstdev(gaps), 0.015)

    def test_failed_requests_are_counted_and_told(self):
        ways = {"400": "status 400: this is a 400", "500": "status 500: this is a 500", "cut": "the answer was cut",
                "error": "the engine is gone", "no done": "the stream ended without [DONE]", "empty": "the stream had no token",
                "whole": "the answer is no stream of events",
                "garbage": "the answer is no HTTP/1.1"}
        for way, message in ways.items():
            with self.subTest(way), Server(lambda number: way if number % 2 else "well") as server:
                result = self.bench(server, "--json", "--save-detailed", "--num-prompts", 10, "--max-concurrency", 1)
                self.assertEqual(result.returncode, 3)
                self.assertEqual(result.stderr.count(message), 5, result.stderr)
                result = json.loads(result.stdout)
                self.assertEqual((result["completed"], result["failed"]), (5, 5))
                self.assertEqual(result["total_output_tokens"], 5 * TOKENS)

    def test_no_more_than_ten_failures_are_told(self):
        with Server(lambda number: "500" if number else "well") as server:
            result = self.bench(server, "--num-prompts", 12)
        self.assertEqual((result.returncode, result.stderr.count("this is a 500")), (3, 10))
        self.assertRegex(result.stdout, "Failed requests: +12")

    def test_any_split_of_an_answer_reads_the_same(self):
        with Server("bytes") as server:
            result = self.result(server, "--num-prompts", 2)
        self.assertEqual((result["completed"], result["total_output_tokens"]), (2, 2 * TOKENS))

    def test_tokens_are_counted_where_the_server_does_not(self):
        with Server("no usage") as server:
            result = self.result(server, "--num-prompts", 2)
        self.assertEqual((result["total_input_tokens"], result["total_output_tokens"]), (10, 2 * TOKENS))

    def test_goodput_counts_requests_within_all_bounds(self):
        with Server() as server:
            self.assertEqual(self.result(server, "--num-prompts", 4, "--goodput", "ttft:60000", "tpot:0")["request_goodput"], 0)
            result = self.result(server, "--num-prompts", 4, "--goodput", "e2el:60000")
            self.assertAlmostEqual(result["request_goodput"], result["request_throughput"])

    def test_lengths_of_nano_vllm(self):
        with Server() as server:
            result = self.result(server, "--dataset-name", "nano-vllm", "--num-prompts", 2)
        self.assertEqual(result["input_lens"], [964, 724])
        self.assertEqual(sorted(body["max_tokens"] for _, _, body in server.requests[1:]), [312, 845])

    def test_saves_its_result(self):
        with Server() as server:
            folder = self.path(".")
            self.bench(server, "--num-prompts", 2, "--save-result", "--result-dir", folder, "--result-filename", "r.json")
            self.assertNotIn("ttfts", json.loads((folder / "r.json").read_text()))
            self.bench(server, "--num-prompts", 2, "--save-result", "--result-dir", folder, "--max-concurrency", 2)
            self.assertEqual(len(list(folder.glob("openai-infqps-concurrency2-the-model-*.json"))), 1)
            result = self.bench(server, "--num-prompts", 2, "--save-result", "--result-dir", folder / "none")
            self.assert_one_sentence(result, "none", status=1)

    def test_sends_the_key(self):
        with Server() as server:
            self.bench(server, "--num-prompts", 1, env={**os.environ, "OPENAI_API_KEY": "from-env"})
            self.bench(server, "--num-prompts", 1, "--api-key", "given", env={**os.environ, "OPENAI_API_KEY": "from-env"})
        keys = [headers["authorization"] for _, headers, _ in server.requests]
        self.assertEqual(keys, ["Bearer from-env"] * 2 + ["Bearer given"] * 2)

    def test_waits_for_a_server_if_asked_to(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [BINARY, "bench", "serve", "--port", str(port), "--num-prompts", "1", "--random-input-len", "5"]
        result = subprocess.run(command, capture_output=True, text=True)
        self.assert_one_sentence(result, "Connection refused", status=1)
        waiting = subprocess.Popen([*command, "--ready-check-timeout-sec", "60"], stdout=subprocess.DEVNULL)
        time.sleep(0.7)
        with Server(port=port):
            self.assertEqual(waiting.wait(60), 0)

    def test_what_can_not_be_is_told_in_a_sentence(self):
        for flags, word in ((["--base-url", "https://localhost"], "TLS"), (["--base-url", "localhost:8000"], "http://"),
                            (["--base-url", "http://localhost:http"], "http://HOST:PORT"), (["--request-rate", "0"], "--request-rate"),
                            (["--request-rate", "fast"], "fast"), (["--goodput", "itl:5"], "itl:5"), (["--goodput", "ttft:fast"], "fast"),
                            (["--metric-percentiles", "50,101"], "101"), (["--percentile-metrics", "ttft,x"], '"x"'),
                            (["--model", "m", "--extra-body", "[]"], "--extra-body")):
            self.assert_one_sentence(run("bench", "serve", *flags), word, status=2)
        self.assert_one_sentence(run("bench", "serve", "--host", "no.such.host.invalid"), "no.such.host.invalid", status=1)

    def test_ctrl_c_ends_it(self):
        with Server(lambda number: "never" if number else "well") as server:
            process = subprocess.Popen([BINARY, "bench", "serve", "--port", str(server.port), "--num-prompts", "3"],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            while server.num_running < 3:
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=60)
        self.assertEqual((process.returncode, output), (130, ""))
        self.assertIn("interrupted", errors)


if __name__ == "__main__":
    unittest.main()

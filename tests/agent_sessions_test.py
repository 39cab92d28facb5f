"""Long sessions of agents over chat, /v1/responses and /v1/messages: what the prefix cache keeps, and what becomes of calls under faults."""
import json
import os
import signal
import sys
import threading
import time

from dictated_testing import APIS, BLOCK, Chat, DictatedTest, Messages, Responses, call, num_shared
from serve_testing import in_parallel, run_tests

TOOLS = [{"name": f"tool_{i}", "description": f"Does what tool {i} does, and tells how it went. " * 3,
          "parameters": {"type": "object", "properties": {"path": {"type": "string", "description": "where"}, "count": {"type": "integer"}}, "required": ["path"]}} for i in range(12)]
SYSTEM = "You are an agent. " + " ".join(f"Rule {i} of this house is that nobody forgets rule {i}." for i in range(60))
ROUNDS = 4


def answers(session):
    """What the model says in a session: a call a turn, and in the end a word."""
    calls = [{"when": f"result {i} of {session}\n" if i else f"Begin {session}", "say": f"<think>\nIt is turn {i}.\n</think>\n\nI call it.\n" + call("tool_3", path=f"/{session}/{i}", count=i)}
             for i in range(ROUNDS)]
    return [*calls, {"when": f"result {ROUNDS} of {session}\n", "say": "<think>\nEnough.\n</think>\n\nIt is done."}]


def run_session(api, session):
    """A task and the calls that it takes: the answers of its requests."""
    given = [api.ask(f"Begin {session}")]
    for i in range(1, ROUNDS + 1):
        for one in given[-1]["calls"]:
            api.result(one, f"result {i} of {session}\n" + f"A line of what tool_3 printed, {i}. " * 40)
        given.append(api.ask())
    return given


class AgentSessions(DictatedTest):
    def check(self, server, session, given, name, first_cached=None):
        """Of each prompt but the first, all that it shares with the one before is cached but for one block."""
        prompts = server.prompts(f"Begin {session}")
        self.assertEqual(len(prompts), len(given), name)
        for i, (prompt, answer) in enumerate(zip(prompts, given)):
            self.assertEqual(answer["prompt"], len(prompt["ids"]), name)
            if i == 0:
                continue
            shared = num_shared(prompts[i - 1]["ids"], prompt["ids"])
            self.assertEqual(shared, len(prompts[i - 1]["ids"]), f"{name}: request {i} does not begin with the one before")
            self.assertGreater(answer["cached"], shared - BLOCK, f"{name}: request {i}")
            self.assertLessEqual(answer["cached"], len(prompt["ids"]))
        self.assertEqual([len(answer["calls"]) for answer in given], [1] * ROUNDS + [0], name)
        self.assertEqual(given[1]["calls"][0]["input"], {"path": f"/{session}/1", "count": 1})
        self.assertEqual((given[0]["text"].strip(), given[0]["thought"].strip(), given[-1]["text"].strip()), ("I call it.", "It is turn 0.", "It is done."), name)

    def test_a_sessions_next_request_finds_the_last_one_in_the_cache(self):
        server = self.serve()
        for api in APIS:
            server.say(*answers(api.__name__))
            given = run_session(api(server, TOOLS, SYSTEM), api.__name__)
            self.check(server, api.__name__, given, api.__name__)

    def test_so_do_four_sessions_at_once(self):
        server = self.serve()
        for api in APIS:
            names = [f"{api.__name__} {i}" for i in range(4)]
            server.say(*[entry for name in names for entry in answers(name)])
            given = in_parallel(4, lambda i, api=api, names=names: run_session(api(server, TOOLS, f"{SYSTEM} Your name is {i}."), names[i]))
            for i, name in enumerate(names):
                self.check(server, name, given[i], name)

    def test_a_later_question_of_the_user_finds_what_the_template_keeps(self):
        server = self.serve()
        for api in APIS:
            name = api.__name__
            server.say(*answers(name), {"when": f"And then, {name}?", "say": "<think>\nA question.\n</think>\n\nNothing more."})
            session = api(server, TOOLS, SYSTEM)
            run_session(session, name)
            last = session.ask(f"And then, {name}?")
            self.assertEqual(last["text"].strip(), "Nothing more.", name)
            before, after = (prompt["ids"] for prompt in server.prompts(f"Begin {name}")[-2:])
            # Qwen3's template drops the thoughts before the last question: the first turn's stand behind the task.
            shared = num_shared(before, after)
            task = len(server.prompts(f"Begin {name}")[0]["ids"])
            self.assertGreaterEqual(shared, task, name)
            self.assertGreater(last["cached"], shared - BLOCK, name)

    def test_after_a_workers_death_one_request_recomputes(self):
        server = self.serve()
        for api in APIS:
            name = api.__name__
            server.say(*answers(name))
            session = api(server, TOOLS, SYSTEM)
            given = [session.ask(f"Begin {name}")]
            for i in range(1, ROUNDS + 1):
                if i == 2:
                    self.kill_worker(server)
                session.result(given[-1]["calls"][0], f"result {i} of {name}\n" + "A line. " * 300)
                given.append(session.ask())
            prompts = server.prompts(f"Begin {name}")
            self.assertEqual(given[2]["cached"], 0, name)
            for i in (1, 3, 4):
                self.assertGreater(given[i]["cached"], len(prompts[i - 1]["ids"]) - BLOCK, f"{name}: request {i}")

    def kill_worker(self, server):
        before = server.workers()
        for worker in before:
            os.kill(worker, signal.SIGKILL)
        self.wait_ready(server, before)

    def wait_ready(self, server, before=()):
        """For workers that are not those before."""
        deadline = time.monotonic() + 30
        while server.workers() in ([], list(before)) or server.get("/health").status != 200:
            self.assertLess(time.monotonic(), deadline, server.log()[-1000:])
            time.sleep(0.01)

    def test_a_call_goes_on_when_its_worker_is_killed(self):
        server = self.serve()
        written = "\n".join(f"line {i} of a file" for i in range(40))
        server.say({"ms": 3, "say": "<think>\nTo write it takes a while.\n</think>\n\n" + call("tool_3", path="/a/file", count=7, text=written)})

        def ask(api):
            def kill(number):
                if number == 60:  # well within the arguments
                    self.kill_worker(server)

            return api(server, TOOLS, SYSTEM).ask(f"Write it, {api.__name__}", kill)

        for api in APIS:
            given = ask(api)
            self.assertTrue(given["whole"], api.__name__)
            self.assertEqual([one["input"] for one in given["calls"]], [{"path": "/a/file", "count": 7, "text": written}], api.__name__)
            self.assertEqual(len(server.prompts(f"Write it, {api.__name__}")), 1)

    def test_a_call_that_kills_its_workers_ends_with_an_error(self):
        cases = [(die_at, api) for die_at in (0, 3) for api in APIS]
        servers = [self.serve() for _ in cases]  # of its own, as a worker that has died again and again is started later each time

        def work(i):
            (die_at, api), server = cases[i], servers[i]
            server.say({"say": "<think>\nIt kills.\n</think>\n\n" + call("tool_3", path="/a"), "die_at": die_at}, {"when": "Hello", "say": "Well."})
            session = api(server, TOOLS[:2], SYSTEM)
            session.items.append({"role": "user", "content": "Kill."})
            if die_at == 0:  # nothing was sent: it has a status of its own
                answer = server.post(api.path, {**session.body(), "stream": True})
                self.assertEqual(answer.status, 500, answer.text)
                self.assertEqual(answer.json.get("type"), "error" if api is Messages else None, answer.text)
                error = answer.json["error"]
            else:
                given = session.ask()
                self.assertTrue(api is Chat or not given["whole"], given)
                error = given["error"]
            self.wait_ready(server)
            self.assertEqual(api(server).ask("Hello")["text"].strip(), "Well.")
            return error

        for (die_at, api), error in zip(cases, in_parallel(len(cases), work)):
            self.assertIn("given up because workers end when they run it", error["message"], api.__name__)
            if api is Responses and die_at > 0:
                self.assertEqual(error["code"], "server_error")
            else:
                self.assertEqual(error["type"], "api_error" if api is Messages else "InternalServerError", api.__name__)

    def test_200_streams_of_the_three_apis_at_once_end_whole(self):
        server = self.serve("--max-num-seqs", "256")
        server.say({"ms": 2, "say": "<think>\nThere are many of us.\n</think>\n\n" + " ".join(f"word {i}" for i in range(40)) + "\n" + call("tool_3", path="/a", count=1)})
        together = threading.Barrier(200)

        def work(i):
            session = APIS[i % 3](server, TOOLS[:4], "Be short.")
            together.wait()
            return session.ask(f"Go, {i}.")

        for i, given in enumerate(in_parallel(200, work)):
            self.assertTrue(given["whole"], i)
            self.assertEqual(given["text"].strip(), " ".join(f"word {i}" for i in range(40)), i)
            self.assertEqual(given["thought"].strip(), "There are many of us.", i)
            self.assertEqual([(one["name"], one["input"]) for one in given["calls"]], [("tool_3", {"path": "/a", "count": 1})], i)
        self.assertEqual(server.metric("vllm:num_requests_running"), 0)
        self.assertEqual(len({json.dumps(prompt["ids"]) for prompt in server.prompts("Go, ")}), 200)


if __name__ == "__main__":
    if not os.path.exists(os.environ["NANOVLLM_BIN"]):
        sys.exit(f"{sys.argv[0]}: NANOVLLM_BIN must be the folder that has dictated_server")
    run_tests()

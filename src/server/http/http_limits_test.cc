// Clients that send too much, too slowly, or what is no HTTP.
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>

#include "base/check.h"
#include "server/http/http_testing.h"

namespace nanovllm::server::http_testing {
namespace {

std::string chunked(const std::string& chunks, const std::string& headers = "") {
  return "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
         "Transfer-Encoding: chunked\r\n" +
         headers + "\r\n" + chunks;
}

// The status of the answer behind which the server closes the connection.
int last_status(TestServer& server, const std::string& bytes) {
  Client client(server->port());
  const Answer answer = client.ask(bytes);
  EXPECT_TRUE(answer.has("Connection: close\r\n")) << answer.head;
  EXPECT_EQ(client.rest(), "") << bytes;
  return answer.status;
}

TEST(HttpLimits, BodyHeaderAndUrlHaveTheirSizes) {
  TestServer server({.max_body_bytes = 1000, .max_header_bytes = 2000, .max_url_bytes = 100});
  Client client(server->port());
  EXPECT_EQ(client.ask(post("/echo", std::string(1000, 'x'))).body.size(), 1000U);
  const std::string half = "1f4\r\n" + std::string(500, 'x') + "\r\n";
  EXPECT_EQ(client.ask(chunked(half + half + "0\r\n\r\n")).body.size(), 1000U);
  EXPECT_EQ(last_status(server, post("/echo", std::string(1001, 'x'))), 413);
  EXPECT_EQ(last_status(server, chunked(half + half + "1\r\nx\r\n0\r\n\r\n")), 413);
  EXPECT_EQ(last_status(server, chunked("ffffffffffffffff\r\n")), 413);

  const size_t beside = get("/show", "X: \r\n").size();
  EXPECT_EQ(client.ask(get("/show", "X: " + std::string(2000 - beside, 'x') + "\r\n")).status, 200);
  EXPECT_EQ(last_status(server, get("/show", "X: " + std::string(2001 - beside, 'x') + "\r\n")),
            431);
  EXPECT_EQ(last_status(server, get("/show", std::string(100000, 'x'))), 431);
  std::string many;
  for (int i = 0; i < 500; ++i) many += "a:b\r\n";
  EXPECT_EQ(last_status(server, get("/show", many)), 431);

  EXPECT_EQ(client.ask(get("/show?" + std::string(94, 'x'))).status, 200);
  EXPECT_EQ(last_status(server, get("/show?" + std::string(95, 'x'))), 414);
  EXPECT_EQ(last_status(server, "GET /" + std::string(100000, 'x')), 414);
}

TEST(HttpLimits, RefusalsHaveTheFormOfTheirPath) {
  TestServer server({.root_path = "/root",
                     .api_keys = {"key"},
                     .max_body_bytes = 1000,
                     .max_header_bytes = 2000,
                     .finish = [](const HttpRequest& request, HttpResponse& response) {
                       response.headers.emplace_back("X-Path", request.path);
                       if (request.path == "/echo" && response.error)
                         response.body = response.error->message;
                     }});
  const auto ask = [&](const std::string& bytes) { return Client(server->port()).ask(bytes); };
  const std::string key = "Authorization: Bearer key\r\n";
  const Answer large = ask(post("/root/echo", std::string(1001, 'x')));
  EXPECT_EQ(large.status, 413);
  EXPECT_TRUE(large.has("X-Path: /echo\r\n")) << large.head;
  EXPECT_EQ(large.body, "The body has more than 1000 bytes.");
  const Answer unknown = ask(get("/root/echo"));
  EXPECT_EQ(unknown.status, 401);
  EXPECT_TRUE(unknown.body.starts_with("No key of this server came")) << unknown.body;
  EXPECT_EQ(ask(get("/root/show")).body, R"({"error":"Unauthorized"})");
  EXPECT_TRUE(ask(get("/root/stream?1", key)).has("X-Path: /stream\r\n"));
  const Answer broken = ask("GET\r\n\r\n");  // has no path
  EXPECT_EQ(broken.status, 400);
  EXPECT_TRUE(broken.has("X-Path: \r\n")) << broken.head;
}

TEST(HttpLimits, LargeBodiesAreRefusedReadably) {
  // The client sends all of it before it looks for an answer.
  TestServer server({.max_body_bytes = 1000});
  EXPECT_EQ(last_status(server, post("/echo", std::string(size_t{8} << 20, 'x'))), 413);
  EXPECT_EQ(last_status(server, post("/echo", std::string(size_t{8} << 20, 'x'), "")), 413);
}

TEST(HttpLimits, ConnectionsOverTheirNumberAreRefused) {
  TestServer server({.max_connections = 2});
  const auto keep_busy = [&](Client& client) {
    client.send(get("/stream?1000000000"));
    EXPECT_TRUE(client.wait_for("begin;"));
  };
  Client first(server->port());
  keep_busy(first);
  Client second(server->port());
  keep_busy(second);
  Client third(server->port());
  const Answer answer = third.ask(post("/echo", "{}"));
  EXPECT_EQ(answer.status, 503);
  EXPECT_TRUE(answer.has("Retry-After: 1\r\n")) << answer.head;
  EXPECT_TRUE(third.is_closed());
  second.close();
  ASSERT_TRUE(comes_true([&] { return server->num_connections() == 1; }));
  second = Client(server->port());
  keep_busy(second);
  // Those that wait for no answer are closed.
  std::vector<Client> many;
  for (int i = 0; i < 100; ++i) many.emplace_back(server->port());
  EXPECT_TRUE(many.back().is_closed());
  EXPECT_TRUE(comes_true([&] { return server->num_connections() < 80; }));
  EXPECT_EQ(server.seen.cut, 1);
}

// The one that has been idle for the longest time, and none that has a request.
TEST(HttpLimits, AnIdleConnectionMakesRoom) {
  TestServer server({.max_connections = 3}, 1);
  Client busy(server->port());
  busy.send(get("/wait"));
  ASSERT_TRUE(comes_true([&] { return server->num_connections() == 1; }));
  Client old(server->port()), silent(server->port());
  ASSERT_TRUE(comes_true([&] { return server->num_connections() == 3; }));
  std::this_thread::sleep_for(50ms);              // until both are waited for
  EXPECT_EQ(old.ask(get("/hello")).status, 200);  // idle since now
  Client first(server->port());
  EXPECT_EQ(first.ask(get("/hello")).status, 200);
  EXPECT_TRUE(silent.is_closed());
  Client second(server->port());
  EXPECT_EQ(second.ask(get("/hello")).status, 200);
  EXPECT_TRUE(old.is_closed());
  EXPECT_EQ(first.ask(get("/hello")).status, 200);
  EXPECT_EQ(server.seen.gone, 0);
  std::vector<Client> many;
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(many.emplace_back(server->port()).ask(get("/hello")).status, 200) << i;
  }
  EXPECT_TRUE(comes_true([&] { return server->num_connections() <= 3; }));
  EXPECT_EQ(server.seen.gone, 0);
}

TEST(HttpLimits, AConnectionIsIdleUntilTheHeadOfARequestIsWhole) {
  TestServer server({.max_connections = 3}, 1);
  std::vector<Client> slow;
  for (int i = 0; i < 3; ++i) {
    slow.emplace_back(server->port()).send("G");
    ASSERT_TRUE(comes_true([&] { return server->num_connections() == i + 1; }));
    std::this_thread::sleep_for(50ms);  // until it is waited for
  }
  Client client(server->port());
  EXPECT_EQ(client.ask(get("/hello")).status, 200);
  EXPECT_TRUE(slow[0].is_closed());
  slow[1].send("E");  // gains no time
  std::this_thread::sleep_for(50ms);
  Client other(server->port());
  EXPECT_EQ(other.ask(get("/hello")).status, 200);
  EXPECT_TRUE(slow[1].is_closed());
  EXPECT_EQ(slow[2].ask(get("/hello").substr(1)).status, 200);
}

// In a process of its own, as it can't take back the limit: 0 where the server has so many
// connections at most.
void serve_with(rlim_t num_descriptors, int max_connections) {
  const rlimit limit = {.rlim_cur = num_descriptors / 2, .rlim_max = num_descriptors};
  ::setrlimit(RLIMIT_NOFILE, &limit);
  try {
    const TestServer server({.max_connections = 100, .num_other_descriptors = 50});
    std::_Exit(const_cast<TestServer&>(server)->max_connections() == max_connections ? 0 : 1);
  } catch (const Error& error) {
    std::fputs(error.what(), stderr);
    std::_Exit(2);
  }
}

TEST(HttpLimits, DescriptorsAreLeftForOthers) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(serve_with(50 + 133, 100), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(serve_with(50 + 132, 99), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(serve_with(50 + 40, 30), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(serve_with(50 + 8, 6), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(serve_with(50 + 7, 0), ::testing::ExitedWithCode(2),
              "this process may open 57 descriptors, but needs 58 at least; raise ulimit -n");
}

TEST(HttpLimits, RequestsHaveATime) {
  TestServer server({.idle_timeout = 300ms});
  EXPECT_TRUE(Client(server->port()).is_closed());
  Client idle(server->port());
  EXPECT_EQ(idle.ask(get("/hello")).status, 200);
  EXPECT_TRUE(idle.is_closed());
  for (const std::string& begin :
       {std::string("GET /hel"), get("/hello").substr(0, 30),
        post("/echo", "{\"a\": 1}").substr(0, post("/echo", "{\"a\": 1}").size() - 1),
        chunked("5\r\nab")}) {
    EXPECT_EQ(last_status(server, begin), 408) << begin;
  }
  // A byte now and then gains no time.
  for (const std::string& slow : {get("/hello", "X: " + std::string(100000, 'x') + "\r\n"),
                                  post("/echo", std::string(100000, 'x'))}) {
    Client client(server->port());
    const size_t body = slow.find("\r\n\r\n");
    const size_t begin = body + 4 < slow.size() ? body + 4 : 10;
    client.send(slow.substr(0, begin));
    std::atomic<bool> is_done = false;
    std::thread sender([&] {
      for (size_t i = begin; i < slow.size() && !is_done; ++i) {
        client.send(slow.substr(i, 1));
        std::this_thread::sleep_for(20ms);
      }
    });
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(client.answer().status, 408);
    EXPECT_LT(std::chrono::steady_clock::now() - start, kPatience / 2);
    is_done = true;
    sender.join();
  }
  // An answer may take longer than a request.
  Client client(server->port());
  client.send(get("/wait"));
  EXPECT_FALSE(client.receive(1s));
  EXPECT_EQ(server.seen.gone, 0);
}

TEST(HttpLimits, ClientsThatNeverReadAreLeft) {
  TestServer server({.write_timeout = 300ms});
  std::vector<Client> clients;
  constexpr int kNumClients = 20;
  for (int i = 0; i < kNumClients; ++i) {
    clients.emplace_back(server->port()).send(get("/endless"));
  }
  EXPECT_TRUE(comes_true([&] { return server.seen.cut == kNumClients; }));
  EXPECT_TRUE(server.is_empty_soon());
  EXPECT_LT(server.seen.bytes, int64_t{kNumClients} * (int64_t{16} << 20));
}

TEST(HttpLimits, SlowReadersGetAll) {
  TestServer server({.write_timeout = 500ms});
  Client client(server->port());
  const int small = 64 << 10;
  ::setsockopt(client.socket(), SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
  const std::string body(size_t{4} << 20, 'x');
  client.send(post("/echo", body));
  const auto start = std::chrono::steady_clock::now();
  do {
    std::this_thread::sleep_for(15ms);
  } while (client.num_received() < body.size() && client.receive());
  EXPECT_GT(std::chrono::steady_clock::now() - start, 500ms);
  EXPECT_EQ(client.answer().body.size(), body.size());
}

TEST(HttpLimits, RequestsOfTwoReadingsAreRefused) {
  TestServer server;
  const std::string json = "Content-Type: application/json\r\n";
  const std::string post_line = "POST /echo HTTP/1.1\r\nHost: localhost\r\n" + json;
  const std::string next = get("/hello");
  for (const std::string& bytes : std::vector<std::string>{
           post_line + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
           post_line + "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
           post_line + "Content-Length: 2, 2\r\n\r\n{}",
           post_line + "Content-Length: 2,3\r\n\r\n{}",
           post_line + "Content-Length: +2\r\n\r\n{}",
           post_line + "Content-Length: -2\r\n\r\n{}",
           post_line + "Content-Length: 0x2\r\n\r\n{}",
           post_line + "Content-Length: 2 2\r\n\r\n{}",
           post_line + "Content-Length:\r\n\r\n{}",
           post_line + "Content-Length: 99999999999999999999\r\n\r\n{}",
           post_line + "Content-Length : 2\r\n\r\n{}",
           post_line + " Content-Length: 2\r\n\r\n{}",
           post_line + "Content-Length: 2\r\n 3\r\n\r\n{}",
           post_line + "X: a\r\n\tb\r\nContent-Length: 2\r\n\r\n{}",
           post_line + "Content-Length: 2\n\r\n{}",
           post_line + "Content-Length: 2\r\n\n{}",
           post_line + "Content-Length: 2\r\r\n\r\n{}",
           post_line + "X: a\rContent-Length: 3\r\nContent-Length: 2\r\n\r\n{}",
           post_line + "X: a" + '\0' + "\r\nContent-Length: 2\r\n\r\n{}",
           post_line + "X: \x01\r\nContent-Length: 2\r\n\r\n{}",
           post_line + "X\x7f: a\r\nContent-Length: 2\r\n\r\n{}",
           post_line + ": a\r\nContent-Length: 2\r\n\r\n{}",
           post_line + "no colon\r\nContent-Length: 2\r\n\r\n{}",
           chunked("2\r\n{}\r\n0\r\n\r\n", "Content-Length: 2\r\n"),
           post_line + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
           chunked("2\r\n{}\r\n0\r\n\r\n", "Transfer-Encoding: chunked\r\n"),
           chunked("2\r\n{}\r\n0\r\n\r\n", "Transfer-Encoding: identity\r\n"),
           post_line + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
           post_line + "Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
           post_line + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
           post_line + "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n",
           post_line + "Transfer-Encoding: chunked;a=b\r\n\r\n0\r\n\r\n",
           post_line + "Transfer-Encoding: \x0b"
                       "chunked\r\n\r\n0\r\n\r\n",
           post_line + "Transfer-Encoding:\r\n\r\n0\r\n\r\n",
           "POST /echo HTTP/1.0\r\n" + json + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
           chunked("2\n{}\r\n0\r\n\r\n"),
           chunked("2\r\n{}\n0\r\n\r\n"),
           chunked("2\r\n{}0\r\n\r\n"),
           chunked("2\r\n{}}\r\n0\r\n\r\n"),
           chunked("x\r\n"),
           chunked("\r\n"),
           chunked("-1\r\n"),
           chunked("+2\r\n{}\r\n0\r\n\r\n"),
           chunked("0x2\r\n{}\r\n0\r\n\r\n"),
           chunked("2 2\r\n{}\r\n0\r\n\r\n"),
           chunked(" 2\r\n{}\r\n0\r\n\r\n"),
           chunked("2;\r\n{}\r\n0\r\n\r\n"),
           chunked("2;a=\nb\r\n{}\r\n0\r\n\r\n"),
           chunked("10000000000000002\r\n{}\r\n0\r\n\r\n"),
           chunked("2;" + std::string(100000, 'a')),
           chunked("0\r\n" + std::string(100000, 'a')),
           chunked("0\r\nbad trailer\r\n\r\n"),
           chunked("0\r\nContent-Length: 2\r\n\r\n"),
           "GET /hello HTTP/1.1\r\n\r\n",
           get("/hello", "Host: localhost\r\n"),
           "GET /hello HTTP/1.1\r\nHost: localhost\n\n",
           "GET /hello\r\n\r\n",
           "GET  /hello HTTP/1.1\r\nHost: localhost\r\n\r\n",
           "GET /hel lo HTTP/1.1\r\nHost: localhost\r\n\r\n",
           "GET hello HTTP/1.1\r\nHost: localhost\r\n\r\n",
           "GET /hello HTTP/1.2\r\nHost: localhost\r\n\r\n",
           "GET /hello HTTP/2.0\r\nHost: localhost\r\n\r\n",
           "GET /hello http/1.1\r\nHost: localhost\r\n\r\n",
           "G\xffT /hello HTTP/1.1\r\nHost: localhost\r\n\r\n"}) {
    EXPECT_EQ(last_status(server, bytes + next), 400) << bytes.substr(0, 300);
  }
  Client client(server->port());
  const std::string usual = "Content-Length: 2\r\n" + json;
  for (const std::string& bytes :
       {post("/echo", "{}"), chunked("2\r\n{}\r\n0\r\n\r\n"),
        chunked("1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"),
        chunked("02;a=\"b\"\r\n{}\r\n000\r\nX: y\r\n\r\n"),
        "\r\n\r\nPOST /echo HTTP/1.1\r\nhOST:localhost\r\n" + usual + "\r\n{}",
        "POST http://localhost/echo HTTP/1.1\r\nHost: localhost\r\n" + usual + "\r\n{}"}) {
    EXPECT_EQ(client.ask(bytes).body, "{}") << bytes;
    EXPECT_EQ(client.ask(next).body, "hello") << bytes;
  }
}

TEST(HttpLimits, GarbageAndTruncatedRequestsDoNoHarm) {
  TestServer server({.idle_timeout = 10s});
  const std::string whole = chunked("2;a=b\r\n{}\r\n1\r\n\n\r\n0\r\nX: y\r\n\r\n");
  for (size_t size = 0; size < whole.size(); ++size) {
    Client(server->port()).send(whole.substr(0, size));
    Client client(server->port());
    client.send(whole.substr(0, size));
    ::shutdown(client.socket(), SHUT_WR);
    EXPECT_EQ(client.rest(), "") << size;
  }
  std::mt19937 random(1);
  for (int i = 0; i < test::full_or_reduced(500, 100); ++i) {
    std::string bytes = i % 2 == 0 ? whole + get("/hello") : std::string(random() % 5000, ' ');
    const size_t num_changes = i % 2 == 0 ? 1 + random() % 4 : bytes.size();
    for (size_t k = 0; k < num_changes; ++k) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    Client client(server->port());
    client.send(bytes);
    ::shutdown(client.socket(), SHUT_WR);
    client.rest();
  }
  // A browser that was told of https, and what is read as soon as it can't be HTTP.
  EXPECT_EQ(last_status(server, std::string("\x16\x03\x01\x00\xa5\x01\x00\x00\xa1", 9)), 400);
  EXPECT_EQ(Client(server->port()).ask(get("/hello")).body, "hello");
  EXPECT_TRUE(server.is_empty_soon());
}

int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0;
  int64_t resident = 0;
  statm >> size >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

TEST(HttpLimits, IdleConnectionsAreSmall) {
  constexpr int kNumConnections = test::full_or_reduced(2000, 200);
  rlimit limit = {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max < 2 * kNumConnections + 500) {
    GTEST_SKIP() << "needs " << 2 * kNumConnections + 500 << " descriptors, has " << limit.rlim_max;
  }
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  TestServer server;
  std::vector<Client> clients;
  clients.reserve(kNumConnections);
  Client(server->port()).ask(get("/hello"));
  const int64_t before = resident_bytes();
  for (int i = 0; i < kNumConnections; ++i) {
    ASSERT_EQ(clients.emplace_back(server->port()).ask(get("/stream?1")).status, 200) << i;
  }
  EXPECT_EQ(server->num_connections(), kNumConnections);
  const int64_t each = (resident_bytes() - before) / kNumConnections;
  RecordProperty("bytes_per_idle_connection", static_cast<int>(each));
  if (!test::kUnderSanitizer) {  // whose own memory is most of it
    EXPECT_LT(each, 25'000);
  }
  for (Client& client : clients) ASSERT_EQ(client.ask(get("/hello")).body, "hello");
  const auto start = std::chrono::steady_clock::now();
  clients.clear();
  EXPECT_TRUE(server.is_empty_soon());
  EXPECT_LT(std::chrono::steady_clock::now() - start, kPatience / 2);
}

}  // namespace
}  // namespace nanovllm::server::http_testing

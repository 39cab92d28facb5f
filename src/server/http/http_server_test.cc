#include "server/http/http_server.h"

#include <atomic>
#include <random>
#include <set>

#include "server/http/http_testing.h"

namespace nanovllm::server::http_testing {
namespace {

TEST(HttpServer, AnswersOneRequestAfterTheOther) {
  TestServer server;
  Client client(server->port());
  for (int i = 0; i < 3; ++i) {
    const Answer answer = client.ask(get("/hello"));
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.body, "hello");
    EXPECT_TRUE(answer.has("Content-Type: text/plain\r\n")) << answer.head;
    EXPECT_TRUE(answer.has("Date: ")) << answer.head;
    EXPECT_FALSE(answer.has("Connection:")) << answer.head;
  }
  EXPECT_EQ(client.ask(post("/echo", "{}")).body, "{}");
  EXPECT_EQ(client.ask(post("/echo", "")).body, "");
  EXPECT_EQ(server->num_connections(), 1);
}

TEST(HttpServer, ClosesWhereTheClientWantsItTo) {
  TestServer server;
  for (const std::string& request :
       {get("/hello", "Connection: close\r\n"), std::string("GET /hello HTTP/1.0\r\n\r\n")}) {
    Client client(server->port());
    const Answer answer = client.ask(request);
    EXPECT_EQ(answer.body, "hello");
    EXPECT_TRUE(answer.has("Connection: close\r\n")) << answer.head;
    EXPECT_TRUE(client.is_closed());
  }
  Client client(server->port());
  for (int i = 0; i < 2; ++i) {
    const Answer answer = client.ask("GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    EXPECT_EQ(answer.body, "hello");
    EXPECT_TRUE(answer.has("Connection: keep-alive\r\n")) << answer.head;
  }
}

TEST(HttpServer, AnswersPipelinedRequestsInOrder) {
  TestServer server;
  Client client(server->port());
  std::string requests;
  for (int i = 0; i < 300; ++i) requests += post("/echo", std::to_string(i));
  requests += get("/stream") + get("/hello");
  std::thread sender([&] { client.send(requests); });
  for (int i = 0; i < 300; ++i) ASSERT_EQ(client.answer().body, std::to_string(i));
  EXPECT_EQ(client.answer().body, "begin;piece 0;piece 1;piece 2;");
  EXPECT_EQ(client.answer().body, "hello");
  sender.join();
}

// More than a head may have, in front of one that needs all of it.
TEST(HttpServer, AnswersWhatWasSentAheadHoweverMuchItIs) {
  TestServer server;
  Client client(server->port());
  const std::string body(size_t{3} << 20, 'x');
  std::string requests = get("/timeout");
  for (int i = 0; i < 3000; ++i) {
    requests += get("/hello", "X: " + std::string(i % 100, 'x') + "\r\n");
  }
  requests += post("/echo", body) + get("/hello");
  std::thread sender([&] { client.send(requests); });
  EXPECT_EQ(client.answer().body, "timeout");
  for (int i = 0; i < 3000; ++i) ASSERT_EQ(client.answer().body, "hello") << i;
  EXPECT_EQ(client.answer().body, body);
  EXPECT_EQ(client.answer().body, "hello");
  sender.join();
}

// What it has sent ahead stands in front of its end.
TEST(HttpServer, NoticesAClientThatLeavesWhateverItHasSentAhead) {
  TestServer server;
  int num_gone = 0;
  for (const size_t size : {size_t{0}, size_t{100}, size_t{100} << 10, size_t{8} << 20}) {
    SCOPED_TRACE(size);
    Client client(server->port());
    std::string requests = get("/wait");
    while (requests.size() < size) requests += post("/echo", std::string(1000, 'x'));
    client.send(requests);
    client.close();
    ++num_gone;
    EXPECT_TRUE(comes_true([&] { return server.seen.gone == num_gone; }));
  }
  EXPECT_TRUE(server.is_empty_soon());
}

TEST(HttpServer, GivesUpAClientThatSendsAheadMoreThanARequest) {
  TestServer server({.max_body_bytes = 900'000, .max_header_bytes = 100'000});
  const std::string ahead(1'050'000, 'x');  // some is read beside it
  Client patient(server->port());
  patient.send(get("/wait") + ahead);
  std::this_thread::sleep_for(200ms);
  EXPECT_EQ(server.seen.gone, 0);
  Client client(server->port());
  client.send(get("/wait") + ahead + std::string(200'000, 'x'));
  EXPECT_TRUE(comes_true([&] { return server.seen.gone == 1; }));
  EXPECT_EQ(client.rest(), "");
}

TEST(HttpServer, ReadsRequestsThatComeByteByByte) {
  TestServer server;
  Client client(server->port());
  const std::string request =
      post("/echo", "{\"a\": 1}") +
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: chunked\r\n\r\n3;x=1\r\nabc\r\n0002\r\nde\r\n0\r\nTrailer: 1\r\n\r\n" +
      get("/hello");
  for (const char c : request) {
    client.send(std::string(1, c));
    std::this_thread::sleep_for(100us);
  }
  EXPECT_EQ(client.answer().body, "{\"a\": 1}");
  EXPECT_EQ(client.answer().body, "abcde");
  EXPECT_EQ(client.answer().body, "hello");
}

TEST(HttpServer, StreamsInChunksOrUntilTheEnd) {
  TestServer server;
  const std::string whole = "begin;piece 0;piece 1;piece 2;";
  Client client(server->port());
  const Answer chunked = client.ask(get("/stream"));
  EXPECT_TRUE(chunked.has("Transfer-Encoding: chunked\r\n")) << chunked.head;
  EXPECT_EQ(chunked.body, whole);
  EXPECT_EQ(client.ask(get("/hello")).body, "hello");

  Client old(server->port());
  const Answer until_the_end = old.ask("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_FALSE(until_the_end.has("chunked")) << until_the_end.head;
  EXPECT_TRUE(until_the_end.has("Connection: close\r\n")) << until_the_end.head;
  EXPECT_EQ(until_the_end.body, whole);
}

TEST(HttpServer, SendsNoBodyToHead) {
  TestServer server;
  Client client(server->port());
  for (const std::string path : {"/hello", "/stream"}) {
    client.send("HEAD " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_EQ(client.answer(true).status, 200);
  }
  EXPECT_EQ(client.ask(get("/hello")).body, "hello");
}

TEST(HttpServer, AsksForTheBodyWhereTheClientWaits) {
  TestServer server;
  Client client(server->port());
  const std::string head =
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Expect: 100-continue\r\nContent-Length: ";
  EXPECT_EQ(client.ask(head + "2\r\n\r\n").status, 100);
  EXPECT_EQ(client.ask("{}").body, "{}");
  // What is refused is not asked for.
  const Answer answer = client.ask(head + "999999999999\r\n\r\n");
  EXPECT_EQ(answer.status, 413);
}

TEST(HttpServer, WaitsEndAtTheirTimeout) {
  TestServer server;
  EXPECT_EQ(Client(server->port()).ask(get("/timeout")).body, "timeout");
}

TEST(HttpServer, TellsHandlersThatTheClientLeft) {
  TestServer server;
  {
    Client waits(server->port());
    waits.send(get("/wait"));
    Client streams(server->port());
    streams.send(get("/stream?1000000"));
    ASSERT_TRUE(streams.wait_for("piece 10;"));
    Client reads(server->port());
    reads.send(get("/endless"));
    ASSERT_TRUE(reads.receive());
    EXPECT_EQ(server.seen.gone, 0);
    EXPECT_EQ(server.seen.cut, 0);
  }
  EXPECT_TRUE(comes_true([&] { return server.seen.gone == 1 && server.seen.cut == 2; }));
  EXPECT_TRUE(server.is_empty_soon());
}

TEST(HttpServer, KeepsWhatComesDuringAnAnswer) {
  TestServer server;
  Client client(server->port());
  client.send(get("/stream?200"));
  ASSERT_TRUE(client.wait_for("piece 5;"));
  client.send(get("/show?a%20b"));
  EXPECT_TRUE(client.answer().body.ends_with("piece 199;"));
  EXPECT_TRUE(client.answer().body.starts_with("GET|/show|a%20b|127.0.0.1:"));
}

TEST(HttpServer, AnswersForHandlersThatDoNot) {
  TestServer server;
  Client client(server->port());
  const Answer thrown = client.ask(get("/throw"));
  EXPECT_EQ(thrown.status, 500);
  EXPECT_EQ(thrown.body, error_response(500, "thrown \"here\"").body);
  EXPECT_EQ(client.ask(get("/nothing")).status, 500);
  EXPECT_EQ(client.ask(get("/hello")).body, "hello");
  // An answer that has begun is cut short, and the client can tell.
  client.send(get("/throw-late"));
  EXPECT_TRUE(client.rest().ends_with("\r\n6\r\nbegin;\r\n"));
}

TEST(HttpServer, StreamsToManyOfWhichHalfLeave) {
  TestServer server;
  constexpr int kNumClients = 200;
  constexpr int kNumThreads = 4;
  std::atomic<int> num_whole = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kNumThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      std::vector<Client> clients;
      for (int i = 0; i < kNumClients / kNumThreads; ++i) {
        clients.emplace_back(server->port())
            .send(get(i % 2 == 0 ? "/stream?20" : "/stream?100000"));
      }
      for (size_t i = 1; i < clients.size(); i += 2) {
        const bool reads = random() % 4 != 0;
        if (reads) clients[i].wait_for("piece " + std::to_string(random() % 10) + ";");
        clients[i].close();
      }
      for (size_t i = 0; i < clients.size(); i += 2) {
        num_whole += clients[i].answer().body.ends_with("piece 19;") ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_whole, kNumClients / 2);
  EXPECT_TRUE(server.is_empty_soon());
  EXPECT_EQ(server.seen.whole, kNumClients / 2);
}

TEST(HttpServer, EndsIdleConnectionsWhenItStops) {
  TestServer server;
  Client idle(server->port());
  Client silent(server->port());
  Client busy(server->port());
  EXPECT_EQ(idle.ask(get("/hello")).status, 200);
  busy.send(get("/stream?300"));
  ASSERT_TRUE(busy.wait_for("piece 0;"));
  ASSERT_TRUE(comes_true([&] { return server->num_connections() == 3; }));
  server->stop_accepting();
  EXPECT_TRUE(idle.is_closed());
  EXPECT_TRUE(silent.is_closed());
  EXPECT_TRUE(comes_true([&] { return !Client(server->port()).is_connected(); }));
  EXPECT_TRUE(busy.answer().body.ends_with("piece 299;"));
  EXPECT_TRUE(busy.is_closed());
  EXPECT_TRUE(server.is_empty_soon());
}

TEST(HttpServer, EndsAllConnectionsWithItself) {
  auto server = std::make_unique<TestServer>();
  Client client((*server)->port());
  client.send(get("/wait"));
  Client endless((*server)->port());
  endless.send(get("/endless"));
  ASSERT_TRUE(endless.receive());
  server.reset();
  EXPECT_TRUE(client.is_closed());
}

TEST(HttpServer, EndsConnectionsThatSomebodyMayStillWake) {
  std::function<void()> wake;
  {
    asio::io_context context;
    HttpOptions options;
    options.port = 0;
    auto server = make_http_server(
        context, options, [&wake](HttpExchange& exchange) -> asio::awaitable<void> {
          const std::function<void(std::function<void()>)> keep = [&](std::function<void()> given) {
            wake = std::move(given);
          };
          co_await exchange.wait(keep, 1ms);
          HttpResponse response = text("hello");
          co_await exchange.send(std::move(response));
        });
    std::thread thread([&] { context.run(); });
    Client client(server->port());
    EXPECT_EQ(client.ask(get("/hello")).body, "hello");
    client.close();
    server.reset();
    thread.join();
  }
  ASSERT_TRUE(wake);
  wake();
}

}  // namespace
}  // namespace nanovllm::server::http_testing

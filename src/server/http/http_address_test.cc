// Where the server listens, with TLS and without, and who is let in there.
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <filesystem>
#include <fstream>
#include <mutex>

#include "nanovllm/error.h"
#include "server/http/http_testing.h"

namespace nanovllm::server::http_testing {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder()
      : path_(fs::temp_directory_path() /
              ("nanovllm-http-" + std::to_string(::getpid()) + "-" +
               testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string file(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

// What make_http_server() says where it can't listen; empty = it can.
std::string complaint(const HttpOptions& options) {
  asio::io_context context;
  try {
    make_http_server(context, options, {});
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    return error.what();
  }
}

// A key of this test and a certificate that it signs itself.
HttpOptions with_certificate(const Folder& folder) {
  EVP_PKEY* key = ::EVP_EC_gen("P-256");
  X509* certificate = ::X509_new();
  ::ASN1_INTEGER_set(::X509_get_serialNumber(certificate), 1);
  ::X509_gmtime_adj(::X509_getm_notBefore(certificate), 0);
  ::X509_gmtime_adj(::X509_getm_notAfter(certificate), 3600);
  ::X509_set_pubkey(certificate, key);
  X509_NAME* name = ::X509_get_subject_name(certificate);
  ::X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
  ::X509_set_issuer_name(certificate, name);
  ::X509_sign(certificate, key, ::EVP_sha256());
  HttpOptions options = {.ssl_keyfile = folder.file("key.pem"),
                         .ssl_certfile = folder.file("cert.pem")};
  std::FILE* file = std::fopen(options.ssl_keyfile.c_str(), "w");
  ::PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr);
  std::fclose(file);
  file = std::fopen(options.ssl_certfile.c_str(), "w");
  ::PEM_write_X509(file, certificate);
  std::fclose(file);
  ::X509_free(certificate);
  ::EVP_PKEY_free(key);
  return options;
}

class TlsClient {
 public:
  explicit TlsClient(int port, int max_version = 0)
      : client_(port), context_(::SSL_CTX_new(::TLS_client_method())) {
    if (max_version != 0) {
      ::SSL_CTX_set_security_level(context_, 0);
      ::SSL_CTX_set_min_proto_version(context_, max_version);
      ::SSL_CTX_set_max_proto_version(context_, max_version);
    }
    tls_ = ::SSL_new(context_);
    ::SSL_set_fd(tls_, client_.socket());
    is_connected_ = ::SSL_connect(tls_) == 1;
  }
  ~TlsClient() {
    ::SSL_free(tls_);
    ::SSL_CTX_free(context_);
  }
  TlsClient(const TlsClient&) = delete;
  TlsClient& operator=(const TlsClient&) = delete;

  bool is_connected() const { return is_connected_; }
  void send(const std::string& bytes) {
    ::SSL_write(tls_, bytes.data(), static_cast<int>(bytes.size()));
  }
  // What comes until `end` has come or the connection ends, cleanly or not.
  std::string receive_until(const std::string& end) {
    std::string result;
    std::string piece(size_t{64} << 10, '\0');
    while (end.empty() || result.find(end) == std::string::npos) {
      const int size = ::SSL_read(tls_, piece.data(), static_cast<int>(piece.size()));
      if (size <= 0) break;
      result.append(piece, 0, static_cast<size_t>(size));
    }
    return result;
  }
  bool was_closed_cleanly() const { return ::SSL_get_shutdown(tls_) & SSL_RECEIVED_SHUTDOWN; }

 private:
  Client client_;
  SSL_CTX* context_;
  SSL* tls_;
  bool is_connected_ = false;
};

TEST(HttpAddress, SpeaksTls) {
  const Folder folder;
  TestServer server(with_certificate(folder));
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    TlsClient client(server->port(), version);
    ASSERT_TRUE(client.is_connected());
    client.send(get("/hello"));
    EXPECT_TRUE(client.receive_until("hello").ends_with("\r\n\r\nhello"));
    client.send(get("/stream?50"));
    EXPECT_NE(client.receive_until("\r\n0\r\n\r\n").find("piece 49;"), std::string::npos);
    const std::string body(size_t{3} << 20, 'x');
    client.send(post("/echo", body));
    EXPECT_TRUE(client.receive_until(body).ends_with(body));
    client.send(get("/hello", "Connection: close\r\n"));
    EXPECT_TRUE(client.receive_until("").ends_with("hello"));
    EXPECT_TRUE(client.was_closed_cleanly());
  }
  for (const int version : {TLS1_VERSION, TLS1_1_VERSION}) {
    EXPECT_FALSE(TlsClient(server->port(), version).is_connected());
  }
  EXPECT_TRUE(server.is_empty_soon());
}

TEST(HttpAddress, TlsClientsLeaveAndAreLeft) {
  const Folder folder;
  HttpOptions options = with_certificate(folder);
  options.write_timeout = 300ms;
  options.idle_timeout = 500ms;
  TestServer server(options);
  {
    TlsClient waits(server->port());
    waits.send(get("/wait"));
    TlsClient streams(server->port());
    streams.send(get("/stream?1000000"));
    EXPECT_NE(streams.receive_until("piece 5;"), "");
  }
  EXPECT_TRUE(comes_true([&] { return server.seen.gone == 1 && server.seen.cut == 1; }));
  TlsClient never_reads(server->port());
  never_reads.send(get("/endless"));
  EXPECT_TRUE(comes_true([&] { return server.seen.cut == 2; }));
  Client silent(server->port());
  EXPECT_TRUE(silent.is_closed());
  Client plain(server->port());
  plain.send(get("/hello"));
  plain.rest();
  TlsClient idle(server->port());
  EXPECT_EQ(idle.receive_until(""), "");
  EXPECT_TRUE(server.is_empty_soon());
}

TEST(HttpAddress, WantsACertificateAndItsKey) {
  const Folder folder;
  const Folder other;
  HttpOptions options = with_certificate(folder);
  options.port = 0;
  EXPECT_EQ(complaint(options), "");
  HttpOptions bad = options;
  bad.ssl_certfile = folder.file("missing.pem");
  EXPECT_NE(complaint(bad).find("--ssl-certfile " + bad.ssl_certfile), std::string::npos);
  bad = options;
  bad.ssl_keyfile = options.ssl_certfile;
  EXPECT_NE(complaint(bad).find("--ssl-keyfile " + bad.ssl_keyfile), std::string::npos);
  bad.ssl_keyfile = "";
  EXPECT_NE(complaint(bad).find("--ssl-keyfile"), std::string::npos);
  bad = options;
  bad.ssl_certfile = "";
  EXPECT_NE(complaint(bad).find("--ssl-certfile"), std::string::npos);
}

TEST(HttpAddress, ListensAtAUnixSocket) {
  const Folder folder;
  const HttpOptions options = {.uds = folder.file("socket")};
  {
    TestServer server(options);
    EXPECT_EQ(Client(options.uds).ask(get("/show", "Host: ignored.example\r\n")).status, 400);
    EXPECT_EQ(Client(options.uds).ask("GET /show HTTP/1.1\r\nHost: any.example\r\n\r\n").body,
              "GET|/show||" + options.uds);
    EXPECT_NE(complaint(options).find(options.uds + ": another server answers there"),
              std::string::npos);
  }
  EXPECT_FALSE(fs::exists(options.uds));
  {  // as a killed server leaves it
    asio::io_context context;
    const int dead = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    options.uds.copy(address.sun_path, sizeof(address.sun_path) - 1);
    ASSERT_EQ(::bind(dead, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ::close(dead);
  }
  ASSERT_TRUE(fs::exists(options.uds));
  EXPECT_EQ(complaint(options), "");
  std::ofstream(options.uds) << "data";
  EXPECT_NE(complaint(options).find(options.uds + ": it is there and no socket"),
            std::string::npos);
  EXPECT_TRUE(fs::exists(options.uds));
  EXPECT_NE(complaint({.uds = folder.file("no/such")}).find("No such file"), std::string::npos);
  EXPECT_NE(complaint({.uds = "/" + std::string(200, 'x')}).find("more than 107 bytes"),
            std::string::npos);
}

TEST(HttpAddress, SaysWhereItCanNotListen) {
  TestServer server;
  EXPECT_EQ(complaint({.port = server->port()}),
            "can't listen at 127.0.0.1:" + std::to_string(server->port()) +
                ": another program listens there; choose another --port");
  EXPECT_NE(complaint({.host = "no.such.host.invalid"}).find("no address of this machine"),
            std::string::npos);
  EXPECT_NE(complaint({.host = ""}).find("no address of this machine"), std::string::npos);
  EXPECT_NE(complaint({.host = "192.0.2.1"}).find("this machine has no such address"),
            std::string::npos);
  // A restart need not wait until the old connections are forgotten.
  int port = 0;
  {
    TestServer old;
    port = old->port();
    EXPECT_EQ(Client(port).ask(get("/hello", "Connection: close\r\n")).status, 200);
  }
  EXPECT_EQ(complaint({.port = port}), "");
}

TEST(HttpAddress, ListensAtAllAddressesOfAName) {
  TestServer server({.host = "localhost"});
  EXPECT_EQ(Client(server->port()).ask(get("/hello")).status, 200);
  EXPECT_EQ(Client(server->port()).ask("GET /hello HTTP/1.1\r\nHost: evil.example\r\n\r\n").status,
            403);
  TestServer any({.host = "0.0.0.0"});
  EXPECT_EQ(Client(any->port()).ask("GET /hello HTTP/1.1\r\nHost: box.example\r\n\r\n").status,
            200);
}

TEST(HttpAddress, ListensAtIpv6) {
  const int probe = ::socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 address = {};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  const bool has_ipv6 =
      probe >= 0 && ::bind(probe, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  ::close(probe);
  if (!has_ipv6) GTEST_SKIP() << "this machine has no IPv6";
  TestServer any({.host = "::"});
  EXPECT_TRUE(Client(any->port()).ask(get("/show")).body.find("|127.0.0.1:") != std::string::npos);
  for (const char* host : {"::1", "[::1]"}) {
    TestServer server({.host = host});
    EXPECT_EQ(complaint({.host = host, .port = server->port()}),
              "can't listen at [::1]:" + std::to_string(server->port()) +
                  ": another program listens there; choose another --port");
  }
}

TEST(HttpAddress, LetsInWhoMayAsk) {
  TestServer server({.root_path = "/llm",
                     .api_keys = {"key"},
                     .open_paths = {"/hello"},
                     .allowed_origins = {"https://chat.example"}});
  Client client(server->port());
  EXPECT_EQ(client.ask(get("/hello")).body, "hello");
  EXPECT_EQ(client.ask(get("/show")).status, 401);
  const std::string key = "Authorization: Bearer key\r\n";
  EXPECT_TRUE(client.ask(get("/llm/%73how?%73", key)).body.starts_with("GET|/show|%73|"));
  const Answer allowed = client.ask(get("/nowhere", key + "Origin: https://chat.example\r\n"));
  EXPECT_EQ(allowed.status, 404);
  EXPECT_TRUE(allowed.has("Access-Control-Allow-Origin: https://chat.example\r\n"));
  EXPECT_TRUE(
      allowed.has("Access-Control-Expose-Headers: x-request-id, request-id, retry-after\r\n"));
  EXPECT_TRUE(allowed.has("Vary: Origin\r\n"));
  EXPECT_EQ(client.ask(get("/show", key + "Origin: https://evil.example\r\n")).status, 403);
  EXPECT_EQ(client
                .ask("OPTIONS /show HTTP/1.1\r\nHost: localhost\r\n"
                     "Origin: https://chat.example\r\nAccess-Control-Request-Method: POST\r\n\r\n")
                .body,
            "OK");
  EXPECT_EQ(
      client.ask(get("/show", key + "X-Request-Id: of-mine\r\n")).has("x-request-id: of-mine"),
      true);
  // What is refused by its head alone is not read.
  const Answer refused = client.ask(post("/echo", "{}"));
  EXPECT_EQ(refused.status, 401);
  EXPECT_TRUE(refused.has("Connection: close\r\n"));
  EXPECT_TRUE(client.is_closed());
}

TEST(HttpAddress, LogsRequests) {
  std::mutex mutex;
  std::vector<std::string> lines;
  TestServer server({.access_log = [&](const std::string& line) {
    const std::lock_guard lock(mutex);
    lines.push_back(line);
  }});
  {
    Client client(server->port());
    client.ask(get("/hello?x", "X-Request-Id: 1\r\n"));
    client.ask(get("/hello"));
    client.ask("garbage\r\n\r\n");
  }
  ASSERT_TRUE(server.is_empty_soon());
  Client(server->port()).send(get("/wait"));
  ASSERT_TRUE(comes_true([&] {
    const std::lock_guard lock(mutex);
    return lines.size() == 4;
  }));
  EXPECT_TRUE(server.is_empty_soon());
  EXPECT_NE(lines[0].find("Z 127.0.0.1:"), std::string::npos) << lines[0];
  EXPECT_NE(lines[0].find(" - \"GET /hello?x HTTP/1.1\" 200 "), std::string::npos) << lines[0];
  EXPECT_TRUE(lines[0].ends_with(" ms 1")) << lines[0];
  const std::string id = lines[1].substr(lines[1].rfind(' ') + 1);
  EXPECT_EQ(id.size(), 32U);
  EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos) << id;
  EXPECT_NE(lines[2].find(" - \"-\" 400 "), std::string::npos) << lines[2];
  EXPECT_NE(lines[3].find("\"GET /wait HTTP/1.1\" 499 "), std::string::npos) << lines[3];
}

}  // namespace
}  // namespace nanovllm::server::http_testing

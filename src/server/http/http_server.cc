// Addresses to listen at, and connections that come in there.
#include "server/http/http_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/check.h"
#include "server/http/http_connection.h"

namespace nanovllm::server {

namespace {

using Protocol = asio::generic::stream_protocol;
using Acceptor = asio::basic_socket_acceptor<Protocol>;
using asio::ip::tcp;
using boost::system::error_code;

constexpr int kMaxRefused = 64;       // connections over the limit that get an answer
constexpr int kLeastDescriptors = 8;  // for connections
// Bytes that the kernel holds for a client that does not read, and twice as many of its own.
constexpr int kSendBuffer = 256 << 10;

[[noreturn]] void cannot_listen(const std::string& where, const error_code& ec) {
  const char* hint = ec == asio::error::address_in_use
                         ? "another program listens there; choose another --port"
                     : ec == asio::error::access_denied
                         ? "that needs more rights; choose a --port of 1024 or above"
                     : ec == boost::system::errc::address_not_available
                         ? "this machine has no such address; choose another --host"
                         : nullptr;
  throw_error(ErrorCode::kIo, "can't listen at {}: {}", where, hint ? hint : ec.message());
}

// Worker processes that are started later must not hold sockets of this one open.
void close_on_exec(int descriptor) { ::fcntl(descriptor, F_SETFD, FD_CLOEXEC); }

// How many connections fit in the descriptors that this process may open, without those that it
// needs itself: a worker that is started again must find some whoever is connected.
void limit_connections(HttpShared& shared, int max_connections, int num_others) {
  const int64_t wanted = int64_t{max_connections} + kMaxRefused + num_others;
  int64_t found = wanted;
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < static_cast<rlim_t>(wanted)) {
    limit.rlim_cur = std::min(static_cast<rlim_t>(wanted), limit.rlim_max);
    ::setrlimit(RLIMIT_NOFILE, &limit);
    ::getrlimit(RLIMIT_NOFILE, &limit);
    found = static_cast<int64_t>(limit.rlim_cur);
  }
  const int64_t room = found - num_others;
  if (room < kLeastDescriptors) {
    throw_error(ErrorCode::kIo,
                "this process may open {} descriptors, but needs {} at least; raise ulimit -n",
                found, num_others + kLeastDescriptors);
  }
  shared.max_refused = static_cast<int>(std::min<int64_t>(kMaxRefused, room / 4));
  shared.max_connections =
      static_cast<int>(std::min<int64_t>(max_connections, room - shared.max_refused));
}

std::string name_of(const tcp::endpoint& endpoint) {
  const auto address = endpoint.address();
  return address.is_v6() ? fmt::format("[{}]:{}", address.to_string(), endpoint.port())
                         : fmt::format("{}:{}", address.to_string(), endpoint.port());
}

// Listens at `endpoint`.
error_code open_acceptor(Acceptor& acceptor, const Protocol::endpoint& endpoint) {
  error_code ec;
  acceptor.open(endpoint.protocol(), ec);
  if (ec) return ec;
  close_on_exec(acceptor.native_handle());
  acceptor.set_option(asio::socket_base::reuse_address(true), ec);
  acceptor.bind(endpoint, ec);
  if (!ec) acceptor.listen(asio::socket_base::max_listen_connections, ec);
  return ec;
}

class HttpServerImpl final : public HttpServer {
 public:
  HttpServerImpl(asio::io_context& context, HttpOptions options, HttpHandler handler);
  ~HttpServerImpl() override {
    stop_accepting();
    end_connections(*shared_, true);
    const std::lock_guard lock(shared_->gate->mutex);
    shared_->gate->is_closed = true;
  }
  HttpServerImpl(const HttpServerImpl&) = delete;
  HttpServerImpl& operator=(const HttpServerImpl&) = delete;

  int port() const override { return port_; }
  int max_connections() const override { return shared_->max_connections; }
  void stop_accepting() override;
  int num_connections() const override { return shared_->num_connections; }

 private:
  bool listen_on_addresses(const HttpOptions& options);
  void listen_on_path(const std::string& path);
  void load_certificate();

  asio::io_context& context_;
  std::vector<std::shared_ptr<Acceptor>> acceptors_ = {};
  int port_ = 0;
  std::string path_ = {};  // of the Unix socket, while it is ours
  std::shared_ptr<HttpShared> shared_ = {};
};

std::string peer_of(const Protocol::endpoint& endpoint, const std::string& path) {
  const int family = endpoint.data()->sa_family;
  if (family != AF_INET && family != AF_INET6) return path;
  tcp::endpoint peer;
  peer.resize(endpoint.size());
  std::memcpy(peer.data(), endpoint.data(), endpoint.size());
  if (peer.address().is_v6() && peer.address().to_v6().is_v4_mapped()) {
    peer.address(asio::ip::make_address_v4(asio::ip::v4_mapped, peer.address().to_v6()));
  }
  return name_of(peer);
}

asio::awaitable<void> accept(asio::io_context& context, std::shared_ptr<Acceptor> acceptor,
                             std::shared_ptr<HttpShared> shared) {
  constexpr auto kToken = asio::as_tuple(asio::use_awaitable);
  constexpr std::chrono::milliseconds kPause{100};  // while there are no descriptors
  asio::steady_timer timer(acceptor->get_executor());
  while (acceptor->is_open()) {
    Protocol::endpoint peer;
    StreamSocket socket(asio::make_strand(context));
    const auto [ec] = co_await acceptor->async_accept(socket, peer, kToken);
    if (ec == asio::error::operation_aborted) continue;
    if (ec) {
      timer.expires_after(kPause);
      co_await timer.async_wait(kToken);
      continue;
    }
    try {
      error_code ignored;
      close_on_exec(socket.native_handle());
      socket.non_blocking(true, ignored);
      socket.set_option(tcp::no_delay(true), ignored);
      socket.set_option(asio::socket_base::keep_alive(true), ignored);
      socket.set_option(asio::socket_base::send_buffer_size(kSendBuffer), ignored);
      serve_connection(shared, std::move(socket), peer_of(peer, shared->options.uds));
    } catch (const std::exception&) {
      // Out of memory: this client is dropped, and others come.
    }
  }
}

HttpServerImpl::HttpServerImpl(asio::io_context& context, HttpOptions options, HttpHandler handler)
    : context_(context) {
  bool on_loopback = false;
  if (options.uds.empty()) {
    on_loopback = listen_on_addresses(options);
  } else {
    listen_on_path(options.uds);
  }
  shared_ = std::make_shared<HttpShared>(std::move(options), std::move(handler), on_loopback);
  limit_connections(*shared_, shared_->options.max_connections,
                    shared_->options.num_other_descriptors);
  if (!shared_->options.ssl_certfile.empty() || !shared_->options.ssl_keyfile.empty()) {
    load_certificate();
  }
  for (const auto& acceptor : acceptors_) {
    asio::co_spawn(acceptor->get_executor(), accept(context_, acceptor, shared_), asio::detached);
  }
}

// All addresses that the host's name stands for; returns whether they all are loopback ones.
bool HttpServerImpl::listen_on_addresses(const HttpOptions& options) {
  tcp::resolver resolver(context_);
  error_code ec;
  std::string host = options.host;
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const auto found = resolver.resolve(host, std::to_string(options.port), ec);
  if (ec || host.empty()) {
    throw_error(ErrorCode::kIo, "can't listen at \"{}\": --host is no address of this machine ({})",
                options.host, ec ? ec.message() : "it is empty");
  }
  std::set<tcp::endpoint> endpoints;  // each once: a hosts file may repeat them
  for (const auto& entry : found) endpoints.insert(entry.endpoint());
  bool on_loopback = true;
  for (tcp::endpoint endpoint : endpoints) {
    if (endpoint.port() == 0) endpoint.port(static_cast<uint16_t>(port_));
    auto acceptor = std::make_shared<Acceptor>(asio::make_strand(context_));
    ec = open_acceptor(*acceptor, endpoint);
    const bool has_other =
        endpoints.size() > 1 && (ec == boost::system::errc::address_not_available ||
                                 ec == asio::error::address_family_not_supported);
    if (ec && !has_other) cannot_listen(name_of(endpoint), ec);
    if (ec) continue;
    tcp::endpoint bound;
    const auto local = acceptor->local_endpoint();
    bound.resize(local.size());
    std::memcpy(bound.data(), local.data(), local.size());
    port_ = bound.port();
    on_loopback = on_loopback && endpoint.address().is_loopback();
    acceptors_.push_back(std::move(acceptor));
  }
  if (acceptors_.empty()) cannot_listen(options.host, ec);
  return on_loopback;
}

// A socket that a dead server left is replaced.
void HttpServerImpl::listen_on_path(const std::string& path) {
  using Local = asio::local::stream_protocol;
  if (path.size() >= sizeof(sockaddr_un::sun_path)) {
    throw_error(ErrorCode::kIo, "can't listen at {}: --uds has more than {} bytes", path,
                sizeof(sockaddr_un::sun_path) - 1);
  }
  error_code ec;
  const auto status = std::filesystem::symlink_status(path, ec);
  if (std::filesystem::exists(status)) {
    if (status.type() != std::filesystem::file_type::socket) {
      throw_error(ErrorCode::kIo, "can't listen at {}: it is there and no socket", path);
    }
    Local::socket probe(context_);
    probe.connect(Local::endpoint(path), ec);
    if (ec != asio::error::connection_refused) {
      throw_error(ErrorCode::kIo, "can't listen at {}: {}", path,
                  ec ? ec.message() : "another server answers there; choose another --uds");
    }
    std::filesystem::remove(path, ec);
  }
  auto acceptor = std::make_shared<Acceptor>(asio::make_strand(context_));
  ec = open_acceptor(*acceptor, Local::endpoint(path));
  if (ec) throw_error(ErrorCode::kIo, "can't listen at {}: {}", path, ec.message());
  acceptors_.push_back(std::move(acceptor));
  path_ = path;
}

void HttpServerImpl::load_certificate() {
  const HttpOptions& options = shared_->options;
  auto& tls = shared_->tls.emplace(asio::ssl::context::tls_server);
  tls.set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_tlsv1 |
                  asio::ssl::context::no_tlsv1_1);
  ::SSL_CTX_set_mode(tls.native_handle(), SSL_MODE_RELEASE_BUFFERS);
  error_code ec;
  tls.use_certificate_chain_file(options.ssl_certfile, ec);
  if (ec) {
    throw_error(ErrorCode::kIo, "--ssl-certfile {}: no certificates in PEM could be read ({})",
                options.ssl_certfile, ec.message());
  }
  tls.use_private_key_file(options.ssl_keyfile, asio::ssl::context::pem, ec);
  if (ec) {
    throw_error(ErrorCode::kIo,
                "--ssl-keyfile {}: no private key of the certificate could be read from it ({})",
                options.ssl_keyfile, ec.message());
  }
}

void HttpServerImpl::stop_accepting() {
  if (shared_->stopping.exchange(true)) return;
  for (const auto& acceptor : acceptors_) {
    asio::post(acceptor->get_executor(), [acceptor] {
      error_code ignored;
      acceptor->close(ignored);
    });
  }
  if (!path_.empty()) {
    error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  end_connections(*shared_, false);
}

}  // namespace

std::unique_ptr<HttpServer> make_http_server(asio::io_context& context, HttpOptions options,
                                             HttpHandler handler) {
  return std::make_unique<HttpServerImpl>(context, std::move(options), std::move(handler));
}

}  // namespace nanovllm::server

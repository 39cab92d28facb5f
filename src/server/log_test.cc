// A log that nobody reads.
#include "server/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "base/testing.h"

namespace nanovllm::server {
namespace {

class Pipe {
 public:
  Pipe() { EXPECT_EQ(::pipe(ends_), 0); }
  ~Pipe() {
    close_reader();
    ::close(ends_[1]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  int writer() const { return ends_[1]; }
  void close_reader() {
    if (ends_[0] >= 0) ::close(std::exchange(ends_[0], -1));
  }
  // Until its writer waits for a reader.
  void wait_until_full() const {
    pollfd one = {.fd = ends_[1], .events = POLLOUT, .revents = 0};
    while (::poll(&one, 1, 0) != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::string read_line() {
    std::string line;
    for (char c = 0; ::read(ends_[0], &c, 1) == 1 && c != '\n';) line += c;
    return line;
  }
  // Lines up to one that has `last` in it.
  std::vector<std::string> read_until(const std::string& last) {
    std::vector<std::string> lines;
    do {
      lines.push_back(read_line());
    } while (lines.back().find(last) == std::string::npos);
    return lines;
  }

 private:
  int ends_[2] = {-1, -1};
};

TEST(LogWriter, WritesLinesInOrder) {
  Pipe pipe;
  LogWriter writer(pipe.writer());
  for (int i = 0; i < 1000; ++i) writer.write(std::to_string(i) + "\n");
  writer.flush();
  const std::vector<std::string> lines = pipe.read_until("999");
  ASSERT_EQ(lines.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(lines[static_cast<size_t>(i)], std::to_string(i));
}

// All that is written, and how many are missing, come in the order of the events.
TEST(LogWriter, DropsWhatNobodyReadsAndTellsHowMuch) {
  for (const bool is_blocking : {true, false}) {
    SCOPED_TRACE(is_blocking);
    Pipe pipe;
    if (!is_blocking) ::fcntl(pipe.writer(), F_SETFL, O_NONBLOCK);
    LogWriter writer(pipe.writer());
    constexpr int kNumLines = 20'000;  // of 100 bytes: more than a pipe and a buffer hold
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kNumLines; ++i) writer.write(fmt::format("{:099}\n", i));
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
    int num_told = 0, num_dropped = 0;
    while (num_told < kNumLines) {
      const std::string line = pipe.read_line();
      const size_t end = line.find(" lines of the log were dropped, because nobody read it");
      if (end == std::string::npos) {
        ASSERT_EQ(line, fmt::format("{:099}", num_told));
        ++num_told;
      } else {
        const int count = std::stoi(line.substr(line.rfind(' ', end - 1)));
        num_told += count;
        num_dropped += count;
      }
    }
    EXPECT_EQ(num_told, kNumLines);
    EXPECT_GT(num_dropped, kNumLines / 2);
    writer.write("again\n");
    EXPECT_EQ(pipe.read_until("again").size(), 1u);
  }
}

// A request's body, say.
TEST(LogWriter, WritesALineOfAnyLength) {
  Pipe pipe;
  LogWriter writer(pipe.writer());
  const std::string line(size_t{1} << 20, 'x');
  writer.write(line + "\n");
  EXPECT_EQ(pipe.read_line().size(), line.size());
}

TEST(LogWriter, GivesMessagesOfTheLibraryATimeOnceItIsALog) {
  Pipe pipe;
  LogWriter writer(pipe.writer());
  writer.write("nanovllm: what was typed is wrong\n");
  EXPECT_EQ(pipe.read_line(), "nanovllm: what was typed is wrong");
  writer.stamp();
  writer.write("nanovllm: weights are decoded\n");
  writer.write("{\"status\": 200}\n");
  const std::string line = pipe.read_line();
  EXPECT_EQ(line.substr(line.find(' ')), " nanovllm: weights are decoded");
  EXPECT_EQ(line.size(),
            std::string("2026-11-24T18:07:05.042Z nanovllm: weights are decoded").size());
  EXPECT_EQ(pipe.read_line(), "{\"status\": 200}");
}

TEST(LogWriter, TellsOfASingleLineInGoodEnglish) {
  Pipe pipe;
  LogWriter writer(pipe.writer());
  const std::string line(size_t{1} << 20, 'x');
  // The first is being written, the second waits, and there is no room for the third.
  writer.write(line + "\n");
  pipe.wait_until_full();
  writer.write(line + "\n");
  writer.write("lost\n");
  const std::string last = pipe.read_until("dropped").back();
  EXPECT_NE(last.find("1 line of the log was dropped, because nobody read it"), std::string::npos);
}

TEST(LogWriter, EndsWithoutAReader) {
  std::signal(SIGPIPE, SIG_IGN);
  const auto start = std::chrono::steady_clock::now();
  {
    Pipe pipe;
    LogWriter writer(pipe.writer());
    for (int i = 0; i < 20'000; ++i) writer.write(fmt::format("{:099}\n", i));
    writer.flush();
    pipe.close_reader();  // its thread's write fails
    writer.write("to nobody\n");
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

}  // namespace
}  // namespace nanovllm::server

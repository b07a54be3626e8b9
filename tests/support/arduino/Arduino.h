// What the sketch in examples/devices and the library 256dpi/arduino-mqtt use of Arduino and of an ESP32, on POSIX.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <time.h>

class String {
 public:
  String(const char *text = "") : text(text) {}
  explicit String(unsigned long number) : text(std::to_string(number)) {}
  const char *c_str() const { return text.c_str(); }
  unsigned int length() const { return text.size(); }
  bool reserve(unsigned int size) { return text.reserve(size), true; }
  bool endsWith(const char *end) const {
    const std::string tail(end);
    return text.size() >= tail.size() && text.compare(text.size() - tail.size(), tail.size(), tail) == 0;
  }
  String substring(unsigned int from) const { return String(text.substr(from).c_str()); }
  String substring(unsigned int from, unsigned int to) const { return String(text.substr(from, to - from).c_str()); }
  friend String operator+(const String &a, const String &b) { return String((a.text + b.text).c_str()); }
  bool operator!=(const String &other) const { return text != other.text; }

 private:
  std::string text;
};

inline void delay(unsigned long ms) {
  const timespec time{static_cast<time_t>(ms / 1000), static_cast<long>(ms % 1000) * 1000000};
  nanosleep(&time, nullptr);
}
inline unsigned long millis() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000UL + time.tv_nsec / 1000000;
}

struct SerialPort {
  void begin(long) {}
  void println(const String &line) { std::puts(line.c_str()), std::fflush(stdout); }
};
inline SerialPort Serial;

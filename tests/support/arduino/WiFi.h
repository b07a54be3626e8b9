#pragma once
#include <Client.h>
#include <arpa/inet.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { WL_CONNECTED = 3 };

struct Wireless {
  void begin(const char *, const char *) {}
  int status() { return WL_CONNECTED; }
};
inline Wireless WiFi;

class WiFiClient : public Client {
 public:
  int connect(IPAddress, uint16_t) override { return 0; }
  int connect(const char *host, uint16_t port) override {
    stop();
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    inet_pton(AF_INET, host, &address.sin_addr);
    number = socket(AF_INET, SOCK_STREAM, 0);
    if (::connect(number, reinterpret_cast<sockaddr *>(&address), sizeof address) != 0) stop();
    return number >= 0;
  }
  size_t write(const uint8_t *bytes, size_t size) override {
    const ssize_t sent = send(number, bytes, size, MSG_NOSIGNAL);
    return sent < 0 ? 0 : sent;
  }
  int available() override {
    int size = 0;
    return number >= 0 && ioctl(number, FIONREAD, &size) == 0 ? size : 0;
  }
  int read(uint8_t *bytes, size_t size) override { return recv(number, bytes, size, MSG_DONTWAIT); }
  void stop() override {
    if (number >= 0) close(number);
    number = -1;
  }
  uint8_t connected() override {
    char next;
    return number >= 0 && recv(number, &next, 1, MSG_PEEK | MSG_DONTWAIT) != 0;
  }

 private:
  int number = -1;
};
